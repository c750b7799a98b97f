"""A report in a few lines of text, for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.jobs.reports.sections import main_keys
from moescope.jobs.reports.sentences import main_line
from moescope.jobs.reports.table_view import kind_title, metric_row
from moescope.jobs.reports.words import printable

if TYPE_CHECKING:
    from moescope.jobs.reports.schema import CalibrationReport


def summary_lines(report: CalibrationReport) -> list[str]:
    """The opening, the leading metric of each kind of windows, and what to do next.

    Names from producers cannot move the cursor or change colours: control characters are shown
    as escapes.
    """
    version = report["version"]
    lines = [f"Calibration {version['version']} ({version['status']})", ""]
    lines += report["summary"]
    shown = main_keys(report["judged"])
    if shown:
        lines.append("")
    for each in shown:
        row = metric_row(each["key"], main_line(each["lines"]), version["layers"])
        red = ", ".join(
            f"{at.side} {at.value}" + (f" ({at.interval})" if at.interval else "") for at in row.red
        )
        lines.append(
            f"{each['key']['phase']}, {kind_title(each['key'])}: {row.title} is red"
            f" {red or 'never'} at layer {row.layer}; {row.standing}, {row.units}"
        )
    if report["left_out"]:
        lines += ["", f"Left out: {len(report['left_out'])}; the report says what, and why."]
    lines += ["", *(f"{step['command']}  {step['what']}" for step in report["next_steps"])]
    return [printable(line) for line in lines]
