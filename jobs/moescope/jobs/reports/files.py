"""Reports as files: the page, and its JSON twin."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moescope.jobs.reports.build import build_report
from moescope.jobs.reports.names import report_name
from moescope.jobs.reports.render import calibration_html

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import duckdb

    from moescope.jobs.reports.schema import CalibrationReport


@dataclass(frozen=True, slots=True)
class ReportFiles:
    """Where a report was written.

    Attributes:
        html, json: The files.
        report: What the JSON file holds.
    """

    html: Path
    json: Path
    report: CalibrationReport


def calibration_report(
    cursor: duckdb.DuckDBPyConnection,
    version: str,
    folder: Path,
    held_out: Mapping[str, Any] | None = None,
) -> ReportFiles:
    """Write the report of a threshold version, from the tables alone.

    A reader of the folder sees each file whole, as it was before or as it is now.

    Args:
        cursor: To the store, for reading.
        version: Threshold version.
        folder: Made when it is not there.
        held_out: A later check on held-out health, as `build_report`.

    Raises:
        InputError: There is no such version.
    """
    report = build_report(cursor, version, held_out)
    page = calibration_html(report)
    folder.mkdir(parents=True, exist_ok=True)
    files = ReportFiles(
        html=folder / report_name(version, "html"),
        json=folder / report_name(version, "json"),
        report=report,
    )
    text = json.dumps(report, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    write_whole(files.json, text + "\n")
    write_whole(files.html, page)
    return files


def write_whole(path: Path, text: str) -> None:
    """Write a file that readers see whole, as it was before or as it is now.

    Raises:
        OSError: The folder cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
