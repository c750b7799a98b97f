"""`moescope doctor`: is everything in place?"""

from __future__ import annotations

import sys

import typer

from moescope.console.options import AsJson, ConfigFile, DataDirectory, settings_from
from moescope.console.output import print_json

_MARKS = {"ok": "ok  ", "warning": "warn", "failure": "FAIL"}


def doctor(config: ConfigFile = None, data: DataDirectory = None, as_json: AsJson = False) -> None:
    """Check the installation and the data directory; exit code 1 when something is broken.

    Example: moescope doctor --data moescope-data
    """
    from moescope.console.checks import run_checks
    from moescope.console.findings import Outcome

    findings = run_checks(settings_from(config, data))
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
