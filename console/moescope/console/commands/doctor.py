"""`moescope doctor`: is everything in place?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from moescope.console.options import AsJson, ConfigFile, DataDirectory, settings_from
from moescope.console.output import print_json

if TYPE_CHECKING:
    from moescope.console.findings import Finding
    from moescope.core.settings import Settings

_MARKS = {"ok": "ok  ", "warning": "warn", "failure": "FAIL"}


def doctor(
    config: ConfigFile = None,
    data: DataDirectory = None,
    component: Annotated[
        Literal["agent", "processor", "store"] | None,
        typer.Option(
            "--component", help="Only whether this component runs here and is well; quick."
        ),
    ] = None,
    max_age: Annotated[
        float,
        typer.Option("--max-age", metavar="SECONDS", help="Oldest report of a running component."),
    ] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Check the installation and the data directory; exit code 1 when something is broken.

    With --component: is the agent, processor or store that runs here well? For a container's
    health command.

    Example: moescope doctor --data moescope-data
    """
    from moescope.console.findings import Outcome

    settings = settings_from(config, data)
    if component is None:
        from moescope.console.checks import run_checks

        findings = run_checks(settings)
    else:
        findings = _component_findings(settings, component, max_age)
    if as_json:
        print_json(
            [
                {
                    "check": finding.check,
                    "outcome": finding.outcome.value,
                    "detail": finding.detail,
                    "next_step": finding.next_step,
                }
                for finding in findings
            ]
        )
    else:
        for finding in findings:
            print(f"{_MARKS[finding.outcome.value]}  {finding.check}: {finding.detail}")
            if finding.next_step:
                print(f"      next: {finding.next_step}")
    sys.stdout.flush()
    if any(finding.outcome is Outcome.FAILURE for finding in findings):
        raise typer.Exit(1)


def _component_findings(
    settings: Settings, component: Literal["agent", "processor", "store"], max_age: float
) -> list[Finding]:
    """Findings from health files alone, without the imports of the other checks."""
    import socket

    from moescope.console.watch.verdict import component_findings
    from moescope.core.clock import SystemClock

    return component_findings(
        settings.data_directory,
        component,
        host=socket.gethostname(),
        now_us=SystemClock().now_us(),
        max_age_seconds=max_age,
    )
