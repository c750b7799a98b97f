"""A report as one HTML file that opens without a network, and stays under 2 MB."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from altair.utils.schemapi import debug_mode
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from moescope.jobs.charts.page import chart_block, chart_figure, chart_scripts
from moescope.jobs.reports.page_view import page_view
from moescope.jobs.reports.words import count, counted, figure, percent, spoken_moment

if TYPE_CHECKING:
    from moescope.jobs.reports.page_view import PageView
    from moescope.jobs.reports.schema import CalibrationReport

LARGEST_BYTES = 2_000_000
MOST_CHARTS = 60
"""Each takes a tenth of a second to make."""

TEMPLATES = Path(__file__).parent / "templates"


def calibration_html(report: CalibrationReport) -> str:
    """The page.

    Charts go in by importance for as long as the page stays small; those that do not fit are
    left out, and the page says so.
    """
    view = page_view(report)
    library = chart_scripts()
    room = LARGEST_BYTES - len(library.html.encode()) - len(_page(report, view, {}, "").encode())
    figures: dict[str, Markup] = {}
    blocks: list[str] = []
    for name, make in view.pictures.items():
        picture = None
        if len(figures) < MOST_CHARTS:
            # Charts are checked against the schema by tests, not again at each report.
            with debug_mode(arg=False):
                picture = make()
        if picture is None:
            continue
        place, block = chart_figure(name, picture.words), chart_block(name, picture.chart)
        room -= len(place.encode()) + len(block.encode()) + 2
        if room < 0:
            break
        # Both are made of escaped text.
        figures[name] = Markup(place)  # noqa: S704 - made of escaped text
        blocks.append(block)
    return _page(report, view, figures, "\n".join((*blocks, library.html)), library.hashes)


def _page(
    report: CalibrationReport,
    view: PageView,
    figures: dict[str, Markup],
    scripts: str,
    hashes: tuple[str, ...] = (),
) -> str:
    return (
        page_environment()
        .get_template("calibration.html.j2")
        .render(
            report=report,
            view=view,
            figures=figures,
            left_out_charts=len(view.pictures) - len(figures),
            scripts=Markup(scripts),  # noqa: S704 (made of escaped text)
            script_hashes=Markup(" ".join(hashes)),  # noqa: S704 (base64)
            style=Markup((TEMPLATES / "report.css").read_text("utf-8")),  # noqa: S704 (our file)
        )
    )


@cache
def page_environment() -> Environment:
    """Everything that a template writes is escaped: names come from producers."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "figure": figure,
        "count": count,
        "counted": counted,
        "percent": percent,
        "moment": spoken_moment,
    }
    return environment
