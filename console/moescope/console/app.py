"""The command tree. Only declarations: every command imports what it needs when it runs."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from moescope.console.commands import (
    alert,
    baseline,
    config,
    demo,
    doctor,
    importing,
    job,
    kafka,
    pattern,
    report,
    run,
    simulate,
    sql,
    store,
    threshold,
)
from moescope.console.failures import OutputClosedError


def _print_version(wanted: bool) -> None:  # noqa: FBT001 (typer's signature)
    if wanted:
        from importlib.metadata import version

        print(f"moescope {version('moescope')}")
        raise typer.Exit


class Commands(TyperGroup):
    """The commands, with a reader of their output that may go away at any time."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 (typer keeps its context's type to itself)
        """Run a command, and write what it printed.

        Raises:
            OutputClosedError: Nobody reads standard output any more.
        """
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except BrokenPipeError as error:
            raise OutputClosedError from error


app = typer.Typer(
    name="moescope",
    cls=Commands,
    help="Watch how Mixture-of-Experts models route tokens to experts, window by window.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Watch how Mixture-of-Experts models route tokens to experts, window by window."""


app.command("demo")(demo.demo)
app.command("doctor")(doctor.doctor)
app.command("sql")(sql.sql)
app.command("import")(importing.import_)
app.command("simulate")(simulate.simulate)
app.add_typer(run.app, name="run")
app.add_typer(baseline.app, name="baseline")
app.add_typer(threshold.app, name="threshold")
app.add_typer(alert.app, name="alert")
app.add_typer(pattern.app, name="pattern")
app.add_typer(report.app, name="report")
app.add_typer(job.app, name="job")
app.add_typer(kafka.app, name="kafka")
app.add_typer(store.app, name="store")
app.add_typer(config.app, name="config")
