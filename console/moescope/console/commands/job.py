"""`moescope job`: scheduled work of the owner."""

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
from moescope.console.output import print_json, print_table

if TYPE_CHECKING:
    from moescope.console.changes import Change

app = typer.Typer(
    help="Look at scheduled jobs, run and pause them.", no_args_is_help=True, rich_markup_mode=None
)

JobName = Annotated[str, typer.Argument(metavar="NAME", help="A job; `job list` shows them.")]


@app.command("list")
def list_(config: ConfigFile = None, data: DataDirectory = None, as_json: AsJson = False) -> None:
    """List the jobs: when each runs, whether it is paused, and what its last run did.

    Example: moescope job list --data moescope-data
    """
    from moescope.console.job_status import job_status
    from moescope.console.times import shown

    found = job_status(settings_from(config, data))
    if as_json:
        print_json(found)
        return
    print_table(
        ("job", "runs", "paused", "last run", "state", "what it did"),
        [
            (
                each["job"],
                each["when"],
                each["paused"],
                shown(each["last_run"]),
                each["state"],
                _short(each["result"]),
            )
            for each in found
        ],
    )


@app.command()
def run(
    name: JobName,
    config: ConfigFile = None,
    data: DataDirectory = None,
    as_json: AsJson = False,
    yes: Yes = False,
    reason: Reason = "",
) -> None:
    """Run a job now, paused or not, and wait for it; exit code 4 when it had too little data.

    Example: moescope job run calibrate --yes --reason "new baseline"
    """
    from moescope.console.changes import RunJob

    result = _change(RunJob(job=name), f"Run {name} now?", config, data, as_json, yes, reason)
    if result["state"] == "failed":
        raise typer.Exit(70)
    if result["state"] == "nothing":
        raise typer.Exit(4)


@app.command()
def pause(
    name: JobName,
    config: ConfigFile = None,
    data: DataDirectory = None,
    as_json: AsJson = False,
    yes: Yes = False,
    reason: Reason = "",
) -> None:
    """Skip a job's planned times until it is resumed.

    Example: moescope job pause calibrate --yes --reason "the fleet is being rebuilt"
    """
    from moescope.console.changes import PauseJob

    _change(PauseJob(job=name), f"Pause {name}?", config, data, as_json, yes, reason)


@app.command()
def resume(
    name: JobName,
    config: ConfigFile = None,
    data: DataDirectory = None,
    as_json: AsJson = False,
    yes: Yes = False,
    reason: Reason = "",
) -> None:
    """Follow a paused job's schedule again, from its next planned time on.

    Example: moescope job resume calibrate --yes --reason "the fleet is back"
    """
    from moescope.console.changes import ResumeJob

    _change(ResumeJob(job=name), f"Resume {name}?", config, data, as_json, yes, reason)


def _change(
    change: Change,
    question: str,
    config: Any,  # noqa: ANN401 (options, passed on)
    data: Any,  # noqa: ANN401 (same)
    as_json: bool,  # noqa: FBT001 (same)
    yes: bool,  # noqa: FBT001 (same)
    reason: str,
) -> dict[str, Any]:
    from moescope.console.changing import change_and_print

    return change_and_print(
        settings_from(config, data),
        change,
        question=question,
        yes=yes,
        reason=reason,
        as_json=as_json,
    )


def _short(result: dict[str, Any]) -> str:
    said = ((name, value) for name, value in result.items() if value not in ("", None, []))
    return ", ".join(f"{name} {_words(value)}" for name, value in said)[:80]


def _words(value: object) -> object:
    """A value in few words: lists of texts as they are, lists of entries by their number."""
    if not isinstance(value, list):
        return value
    return " ".join(value) if all(isinstance(each, str) for each in value) else len(value)
