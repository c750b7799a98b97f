"""Reports that people read, and their JSON twins that programs read."""

from moescope.jobs.reports.build import build_report
from moescope.jobs.reports.files import ReportFiles, calibration_report
from moescope.jobs.reports.render import calibration_html
from moescope.jobs.reports.schema import SCHEMA, SCHEMA_VERSION, CalibrationReport
from moescope.jobs.reports.terminal import summary_lines

__all__ = [
    "SCHEMA",
    "SCHEMA_VERSION",
    "CalibrationReport",
    "ReportFiles",
    "build_report",
    "calibration_html",
    "calibration_report",
    "summary_lines",
]
