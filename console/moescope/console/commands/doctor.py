"""`moescope doctor`: is everything in place?"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from moescope.console.options import AsJson, ConfigFile, DataDirectory, settings_from


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
    from moescope.console.finding_lines import show_findings

    settings = settings_from(config, data)
    if component is None:
        from moescope.console.checks import run_checks

        findings = run_checks(settings)
    else:
        from moescope.console.watch.verdict import local_findings

        findings = local_findings(settings, component, max_age)
    if exit_code := show_findings(findings, as_json=as_json):
        raise typer.Exit(exit_code)
