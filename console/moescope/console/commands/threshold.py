"""`moescope threshold`: versions of calibrated lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

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

if TYPE_CHECKING:
    from moescope.console.threshold_rows import LineFilter

app = typer.Typer(
    help="Calibrate lines, and say which version judges.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Version = Annotated[str, typer.Argument(help="A version; `threshold list` shows them.")]
Model = Annotated[str, typer.Option(help="Only this model.")]
Revision = Annotated[str, typer.Option(help="Only this revision.")]


@app.command()
def calibrate(
    baseline: Annotated[
        str, typer.Option(help="Baseline; setting calibration.baseline unless told otherwise.")
    ] = "",
    model: Model = "",
    revision: Revision = "",
    activate_: Annotated[
        bool, typer.Option("--activate", help="Also let the new version judge, as soon as it may.")
    ] = False,
    config: ConfigFile = None,
    data: DataDirectory = None,
    as_json: AsJson = False,
    yes: Yes = False,
    reason: Reason = "",
) -> None:
    """Make a version per served model, revision and fidelity, as a draft; exit code 4: too little.

    Example: moescope threshold calibrate --baseline default --activate --yes
    """
    from moescope.console.changes import CalibrateThresholds
    from moescope.console.changing import change_and_print

    settings = settings_from(config, data)
    chosen = baseline or settings["calibration.baseline"]
    change_and_print(
        settings,
        CalibrateThresholds(baseline=chosen, model=model, revision=revision, activate=activate_),
        question=f"Calibrate from baseline {chosen}{' and activate the result' * activate_}?",
        yes=yes,
        reason=reason,
        as_json=as_json,
    )


@app.command("list")
def list_(config: ConfigFile = None, data: DataDirectory = None, as_json: AsJson = False) -> None:
    """List versions, what each is made from, and from which event time on it judges.

    Example: moescope threshold list --data moescope-data
    """
    from moescope.console.reading import Reader
    from moescope.console.threshold_rows import VERSIONS_SQL
    from moescope.console.times import shown

    with Reader(settings_from(config, data)) as reader:
        found = reader.rows(VERSIONS_SQL)
    if as_json:
        print_json(found)
        return
    print_table(
        (
            "version", "model", "revision", "fidelity", "status", "judges from (UTC)", "baseline",
            "lines", "firm", "created (UTC)",
        ),
        [
            (
                r["version"], r["model"], r["revision"], r["fidelity"], r["status"],
                shown(r["effective_from_us"]), f"{r['baseline']} {r['baseline_version']}",
                r["lines"], r["firm"], shown(r["created_at"]),
            )
            for r in found
        ],
    )  # fmt: skip


@app.command()
def show(
    version: Version,
    metric: Annotated[str, typer.Option(help="Only lines of this metric.")] = "",
    layer: Annotated[int | None, typer.Option(help="Only lines of this layer.")] = None,
    kind: Annotated[str, typer.Option(help="Only this window kind, for example token.")] = "",
    config: ConfigFile = None,
    data: DataDirectory = None,
    as_json: AsJson = False,
) -> None:
    """Show a version's lines: a summary per kind of window, or each line with a filter.

    Example: moescope threshold show t-1 --metric topk_load_share --kind token
    """
    from moescope.console.reading import Reader
    from moescope.console.threshold_rows import LineFilter, version_document

    lines = LineFilter(metric=metric, layer=layer, kind=kind)
    with Reader(settings_from(config, data)) as reader:
        document = version_document(reader, version, lines)
    if as_json:
        print_json(document)
    else:
        _print_version(document, lines)


@app.command()
def diff(
    old: Annotated[str, typer.Argument(metavar="A", help="A version.")],
    new: Annotated[str, typer.Argument(metavar="B", help="The version to compare it with.")],
    config: ConfigFile = None,
    data: DataDirectory = None,
    as_json: AsJson = False,
) -> None:
    """Show how far the lines of two versions lie apart, in spreads of the first one.

    Example: moescope threshold diff t-1 t-2
    """
    from moescope.console.reading import Reader, window_words
    from moescope.console.threshold_rows import diff_rows

    with Reader(settings_from(config, data)) as reader:
        found = diff_rows(reader, old, new)
    if as_json:
        print_json(found)
        return
    print_table(
        (
            "phase", "window", "scope", "metric", "in both", f"only {old}", f"only {new}",
            "farthest warn", "farthest red", "at layer",
        ),
        [
            (
                r["phase"], window_words(r), r["scope_kind"], r["metric"], r["both"],
                r["only_old"], r["only_new"], r["warn_move"], r["red_move"], r["layer"],
            )
            for r in found
        ],
    )  # fmt: skip
    note("moves are in spreads of the first version's baseline; positive: the line moved up")


@app.command()
def activate(
    version: Version,
    begin: Annotated[
        str,
        typer.Option(
            "--from", metavar="TIME", help="Event time, ISO 8601; by default as soon as it may be."
        ),
    ] = "",
    config: ConfigFile = None,
    data: DataDirectory = None,
    as_json: AsJson = False,
    yes: Yes = False,
    reason: Reason = "",
) -> None:
    """Let a version judge the windows that end at an event time or later.

    Example: moescope threshold activate t-2 --yes --reason "reviewed the report"
    """
    from moescope.console.changes import ActivateThresholds
    from moescope.console.changing import change_and_print
    from moescope.console.times import time_us

    change_and_print(
        settings_from(config, data),
        ActivateThresholds(version=version, from_us=time_us(begin) if begin else None),
        question=f"Let {version} judge?",
        yes=yes,
        reason=reason,
        as_json=as_json,
    )


@app.command()
def rollback(
    model: Model = "",
    revision: Revision = "",
    config: ConfigFile = None,
    data: DataDirectory = None,
    as_json: AsJson = False,
    yes: Yes = False,
    reason: Reason = "",
) -> None:
    """Let the version that judged before judge again; without one, judging is off.

    Example: moescope threshold rollback --model olmoe --yes --reason "false pages"
    """
    from moescope.console.changes import RollBackThresholds
    from moescope.console.changing import change_and_print
    from moescope.console.reading import Reader
    from moescope.console.threshold_rows import rollback_question

    settings = settings_from(config, data)
    question = ""
    if not yes:
        with Reader(settings) as reader:
            question = rollback_question(reader, model, revision)
    change_and_print(
        settings,
        RollBackThresholds(model=model, revision=revision),
        question=question,
        yes=yes,
        reason=reason,
        as_json=as_json,
    )


def _print_version(document: dict[str, Any], lines: LineFilter) -> None:
    from moescope.console.threshold_rows import LINE_HEAD, SUMMARY_HEAD, line_cells, summary_cells

    print_pairs(document["head"])
    print()
    if lines.is_set:
        print_table(LINE_HEAD, [line_cells(row) for row in document["lines"]])
    else:
        print_table(SUMMARY_HEAD, [summary_cells(row) for row in document["summary"]])
