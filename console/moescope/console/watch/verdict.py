"""What `moescope doctor --component` makes of health files."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from moescope.console.findings import Finding, Outcome
from moescope.console.watch.health import HealthReport, HealthStatus
from moescope.console.watch.health_files import read_reports
from moescope.console.watch.processes import is_alive
from moescope.core.clock import SystemClock

if TYPE_CHECKING:
    from pathlib import Path

    from moescope.console.watch.health import Component
    from moescope.core.settings import Settings


def local_findings(
    settings: Settings, component: Component, max_age_seconds: float
) -> list[Finding]:
    """Findings of this machine, now."""
    return component_findings(
        settings.data_directory,
        component,
        host=socket.gethostname(),
        now_us=SystemClock().now_us(),
        max_age_seconds=max_age_seconds,
    )


def component_findings(
    directory: Path, component: Component, *, host: str, now_us: int, max_age_seconds: float
) -> list[Finding]:
    """One finding per process of the component that runs on a machine, or one that none does.

    Args:
        directory: The data directory.
        component: Which one.
        host: The machine; what others report is not judged.
        now_us: Wall clock in microseconds.
        max_age_seconds: A report older than that says that its process hangs.
    """
    reports = read_reports(directory, component)
    here = [
        report
        for report in reports.values()
        if isinstance(report, HealthReport) and report.host == host
    ]
    living = [report for report in here if is_alive(report.pid, report.birth)]
    findings = [_living(report, now_us, max_age_seconds) for report in living]
    findings += [
        _finding(Outcome.FAILURE, component, path.name, report.why, "Remove the file.")
        for path, report in reports.items()
        if not isinstance(report, HealthReport)
    ]
    if living:
        return findings
    for report in here:
        gone = f"it ended without taking its leave, {_age(report, now_us)} after its last report"
        findings.append(_finding(Outcome.FAILURE, component, _who(report), gone, _START))
    if not here:
        others = sum(isinstance(report, HealthReport) for report in reports.values())
        elsewhere = f"; {others} on other machines" if others else ""
        why = f"none reports in {directory}{elsewhere}"
        findings.append(_finding(Outcome.FAILURE, component, host, why, _START))
    return findings


_START = "Start it, and read what it printed last."
_RESTART = "Read what it printed; restart it if that does not say what to do."


def _living(report: HealthReport, now_us: int, max_age_seconds: float) -> Finding:
    health, component = report.health, report.component
    if now_us - report.written_at_us > max_age_seconds * 1e6:
        why = f"its last report is {_age(report, now_us)} old: it hangs, or its disk is full"
        return _finding(Outcome.FAILURE, component, _who(report), why, _RESTART)
    words = [health.status.value, health.why, *(f"{k}={v}" for k, v in health.facts.items())]
    outcome = Outcome.FAILURE if health.status is HealthStatus.FAILING else Outcome.OK
    next_step = _RESTART if outcome is Outcome.FAILURE else ""
    return _finding(
        outcome, component, _who(report), "; ".join(word for word in words if word), next_step
    )


def _finding(outcome: Outcome, component: str, who: str, why: str, next_step: str) -> Finding:
    return Finding(component, outcome, f"{who}: {why}", next_step)


def _who(report: HealthReport) -> str:
    return f"process {report.pid} (version {report.version})"


def _age(report: HealthReport, now_us: int) -> str:
    return f"{max(0, now_us - report.written_at_us) / 1e6:.0f} s"
