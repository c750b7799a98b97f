"""`moescope alert`: what fired, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from moescope.console.options import (
    AsJson,
    ConfigFile,
    DataDirectory,
    Reason,
    Yes,
    settings_from,
)
from moescope.console.output import note, print_json, print_pairs, print_table

app = typer.Typer(help="Look at alerts.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_(
    only_open: Annotated[
        bool, typer.Option("--open", help="Only those that are not over.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Also those that were sent with another alert.")
    ] = False,
    config: ConfigFile = None,
    data: DataDirectory = None,
    as_json: AsJson = False,
) -> None:
    """List alerts that fired, newest first: one per cause, unless all are asked for.

    Example: moescope alert list --open
    """
    from moescope.console.alert_rows import alert_rows, own_pages, page_words
    from moescope.console.reading import Reader, scope_words, window_words
    from moescope.console.times import shown

    with Reader(settings_from(config, data)) as reader:
        fired = alert_rows(reader, only_open=only_open)
    found = fired if every else own_pages(fired)
    if len(found) < len(fired):
        note(
            f"left out: {len(fired) - len(found)} that were sent with one of these;"
            " --all lists them"
        )
    if as_json:
        print_json(found)
        return
    print_table(
        (
            "alert", "state", "model", "revision", "phase", "window", "scope", "family",
            "pattern", "fired (UTC)", "resolved (UTC)", "worst", "of", "layer", "page",
        ),
        [
            (
                r["alert"], r["state"], r["model"], r["revision"], r["phase"], window_words(r),
                scope_words(r), r["family"], r["pattern"], shown(r["fired_at"]),
                shown(r["resolved_at"]), r["worst_value"], r["worst_metric"], r["worst_layer"],
                page_words(r),
            )
            for r in found
        ],
    )  # fmt: skip


@app.command()
def show(
    alert: Annotated[str, typer.Argument(metavar="ID", help="An alert, or how its id begins.")],
    config: ConfigFile = None,
    data: DataDirectory = None,
    as_json: AsJson = False,
) -> None:
    """Show an alert: its worst window, what became of it, and who was told.

    Example: moescope alert show 3f2a
    """
    from shlex import quote

    from moescope.console.alert_rows import alert_document
    from moescope.console.reading import Reader, scope_words, window_words
    from moescope.console.times import shown
    from moescope.core.printable import printable

    with Reader(settings_from(config, data)) as reader:
        document = alert_document(reader, alert)
    if as_json:
        print_json(document)
        return
    row = document["alert"]
    print_pairs(
        {
            "alert": row["alert"],
            "state": row["state"],
            "model": f"{row['model']} {row['revision']}, {row['phase']}",
            "windows": f"{window_words(row)}, scope {scope_words(row)}",
            "family": row["family"],
            **({"pattern": row["pattern"]} if row["pattern"] else {}),
            "began": shown(row["began_at"]),
            "fired": shown(row["fired_at"]),
            "resolved": shown(row["resolved_at"]),
            "worst": f"{row['worst_metric']} in layer {row['worst_layer']}, "
            f"{row['worst_value']:.2f} spreads past its red line",
            **({"request": row["worst_request"]} if row["worst_request"] else {}),
            "thresholds": row["version"],
            "historic": row["historic"],
            **({"caused by": row["caused_by"]} if row["caused_by"] else {}),
        }
    )
    print()
    print_table(
        ("number", "event time (UTC)", "state", "why"),
        [(e["number"], shown(e["slot"]), e["state"], e["why"]) for e in document["events"]],
    )
    print()
    print_table(
        ("receiver", "created (UTC)", "delivered (UTC)", "attempts", "last error"),
        [
            (
                n["receiver"], shown(n["created_at"]), shown(n["delivered_at"]), n["attempts"],
                n["last_error"],
            )
            for n in document["notifications"]
        ],
    )  # fmt: skip
    if document["window_sql"]:
        # Names in it come from producers, and it is there to be pasted into a shell: on one line
        # in a quoted here-document nothing in them is obeyed.
        query = printable(document["window_sql"])
        folder = "" if data is None else f"--data {quote(str(data))} "
        print(f"\nIts worst window:\nmoescope sql {folder}- <<'SQL'\n{query}\nSQL")


@app.command("test")
def send_test(
    config: ConfigFile = None,
    data: DataDirectory = None,
    as_json: AsJson = False,
    yes: Yes = False,
    reason: Reason = "",
) -> None:
    """Send a test notification to every receiver.

    Example: moescope alert test --yes
    """
    from moescope.console.changes import SendTestAlert
    from moescope.console.changing import change_and_print

    change_and_print(
        settings_from(config, data),
        SendTestAlert(),
        question="Send a test notification to every receiver?",
        yes=yes,
        reason=reason,
        as_json=as_json,
    )
