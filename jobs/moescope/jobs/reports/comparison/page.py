"""A comparison as files: one HTML page that opens without a network, and its JSON twin."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from altair.utils.schemapi import debug_mode
from markupsafe import Markup

from moescope.jobs.charts.page import chart_html_parts
from moescope.jobs.reports.comparison.pictures import (
    counts_picture,
    layers_picture,
    margins_picture,
    positions_picture,
)
from moescope.jobs.reports.comparison.sentences import fine_percent, side_title, with_interval
from moescope.jobs.reports.comparison.words import layer_words, margin_words, position_words
from moescope.jobs.reports.files import write_whole
from moescope.jobs.reports.render import TEMPLATES, page_environment

if TYPE_CHECKING:
    from pathlib import Path

    from moescope.jobs.reports.comparison.schema import ComparisonReport


def write_comparison(report: ComparisonReport, page: Path) -> tuple[Path, Path]:
    """Write the page, and beside it a JSON file of the same name.

    Returns:
        The page and the JSON file.

    Raises:
        OSError: The folder cannot be written.
    """
    page = page.expanduser().absolute().with_suffix(".html")
    numbers = page.with_suffix(".json")
    page.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    write_whole(numbers, text + "\n")
    write_whole(page, comparison_html(report, numbers.name))
    return page, numbers


def comparison_html(report: ComparisonReport, json_name: str) -> str:
    """The page."""
    with debug_mode(arg=False):  # charts are checked against the schema by tests
        pictures = {
            "layers": layers_picture(report),
            "counts": counts_picture(report),
            "positions": positions_picture(report),
            "margins": margins_picture(report),
        }
        parts = chart_html_parts(
            {
                name: (picture.chart, picture.words)
                for name, picture in pictures.items()
                if picture is not None
            }
        )
    sides = [report["a"]] if report["b"] is None else [report["a"], report["b"]]
    # Figures and scripts are made of escaped text.
    return (
        page_environment()
        .get_template("comparison.html.j2")
        .render(
            report=report,
            sides=dict(zip("AB", sides, strict=False)),
            titles=[side_title(side) for side in sides],
            json_name=json_name,
            fine_percent=fine_percent,
            with_interval=with_interval,
            position_words=position_words,
            margin_words=margin_words,
            layer_words=layer_words,
            figures={name: Markup(text) for name, text in parts.figures.items()},  # noqa: S704 - made of escaped text
            scripts=Markup(parts.scripts),  # noqa: S704 - escaped as well
            script_hashes=Markup(" ".join(parts.script_hashes)),  # noqa: S704 (base64)
            style=Markup((TEMPLATES / "report.css").read_text("utf-8")),  # noqa: S704 (our file)
        )
    )
