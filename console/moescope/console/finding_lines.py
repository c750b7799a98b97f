"""Findings on standard output, for people and as JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from moescope.console.findings import Outcome
from moescope.console.output import print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moescope.console.findings import Finding

_MARKS: Final = {Outcome.OK: "ok  ", Outcome.WARNING: "warn", Outcome.FAILURE: "FAIL"}


def show_findings(findings: Sequence[Finding], *, as_json: bool) -> int:
    """Print findings; returns the exit code, 1 if something is broken."""
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
            print(f"{_MARKS[finding.outcome]}  {finding.check}: {finding.detail}")
            if finding.next_step:
                print(f"      next: {finding.next_step}")
    sys.stdout.flush()
    return int(any(finding.outcome is Outcome.FAILURE for finding in findings))
