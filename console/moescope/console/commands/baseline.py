"""`moescope baseline`: windows that are known to be healthy."""

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
from moescope.console.output import print_json, print_pairs, print_table

app = typer.Typer(
    help="Declare which windows are healthy.", no_args_is_help=True, rich_markup_mode=None
)

Some = list[str] | None


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Name; a name that exists gets a new version.")],
    begin: Annotated[
        str, typer.Option("--from", metavar="TIME", help="Event time, ISO 8601; UTC by default.")
    ] = "",
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="Event time, excluded.")] = "",
    model: Annotated[Some, typer.Option(help="Only this model; repeatable.")] = None,
    revision: Annotated[Some, typer.Option(help="Only this revision; repeatable.")] = None,
    scene: Annotated[Some, typer.Option(help="Only this scene; repeatable.")] = None,
    node: Annotated[Some, typer.Option(help="Only this node; repeatable.")] = None,
    domain: Annotated[
        Some, typer.Option(help="Only this watermark domain; repeatable. By default all.")
    ] = None,
    exclude_node: Annotated[Some, typer.Option(help="Not this node; repeatable.")] = None,
    exclude: Annotated[
        Some, typer.Option(metavar="FROM/TO", help="Not this span of event time; repeatable.")
    ] = None,
    config: ConfigFile = None,
    data: DataDirectory = None,
    as_json: AsJson = False,
    yes: Yes = False,
    reason: Reason = "",
) -> None:
    """Declare a span of event time healthy; thresholds are calibrated from its windows.

    Without --from and --to windows of any time belong, and those without times (imports). Leave
    out what was not healthy: incidents, nodes with faults, load tests.

    Example: moescope baseline create default --from 2026-11-20 --to 2026-11-27 --yes
    """
    from moescope.console.changes import CreateBaseline
    from moescope.console.changing import change_and_print
    from moescope.console.times import span_us

    from_us, to_us = span_us(f"{begin}/{end}") if begin or end else (None, None)
    change_and_print(
        settings_from(config, data),
        CreateBaseline(
            name=name,
            from_us=from_us,
            to_us=to_us,
            models=tuple(model or ()),
            revisions=tuple(revision or ()),
            scenes=tuple(scene or ()),
            nodes=tuple(node or ()),
            domains=tuple(domain or ()),
            without_nodes=tuple(exclude_node or ()),
            without_spans=tuple(span_us(each) for each in exclude or ()),
        ),
        question=f"Declare {f'{begin} to {end}' if begin else 'all windows'} healthy, as {name}?",
        yes=yes,
        reason=reason,
        as_json=as_json,
    )


@app.command("list")
def list_(config: ConfigFile = None, data: DataDirectory = None, as_json: AsJson = False) -> None:
    """List baselines and their versions.

    Example: moescope baseline list --data moescope-data
    """
    from moescope.console.reading import Reader
    from moescope.console.times import shown

    with Reader(settings_from(config, data)) as reader:
        found = reader.rows(
            "SELECT baseline, version, created_at, author, reason, selection_json"
            " FROM baselines ORDER BY baseline, version"
        )
    if as_json:
        print_json(found)
        return
    print_table(
        ("baseline", "version", "created (UTC)", "author", "reason"),
        [
            (r["baseline"], r["version"], shown(r["created_at"]), r["author"], r["reason"])
            for r in found
        ],
    )


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Name of a baseline.")],
    version: Annotated[int, typer.Option(help="Version; 0: the newest.")] = 0,
    config: ConfigFile = None,
    data: DataDirectory = None,
    as_json: AsJson = False,
) -> None:
    """Show what a baseline selects, and the threshold versions that were made from it.

    Example: moescope baseline show default
    """
    import json

    from moescope.console.reading import Reader
    from moescope.console.times import shown

    with Reader(settings_from(config, data)) as reader:
        row = reader.one(
            "SELECT baseline, version, created_at, author, reason, selection_json FROM baselines"
            " WHERE baseline = ? AND ? IN (0, version) ORDER BY version DESC LIMIT 1",
            [name, version],
            f"There is no baseline {name!r}" + (f" with version {version}." if version else "."),
        )
        made = reader.rows(
            "SELECT version FROM threshold_versions WHERE baseline = ? AND baseline_version = ?"
            " ORDER BY created_at",
            [name, row["version"]],
        )
    selection = json.loads(row.pop("selection_json"))
    thresholds = [each["version"] for each in made]
    if as_json:
        print_json({**row, "selection": selection, "thresholds": thresholds})
        return
    print_pairs(
        {
            **row,
            "created_at": shown(row["created_at"]),
            **{
                key.replace("_", " "): _words(key, value)
                for key, value in selection.items()
                if value
            },
            "thresholds": ", ".join(thresholds) or "none",
        }
    )


def _words(key: str, value: object) -> object:
    from moescope.console.times import shown

    if not isinstance(value, list):
        return value
    if key.endswith("spans"):
        return "; ".join(f"{shown(begin)} to {shown(end)}" for begin, end in value)
    return ", ".join(map(str, value))
