"""A comparison as files: one HTML page that opens without a network, and its JSON twin."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from altair.utils.schemapi import debug_mode
from markupsafe import Markup

from moescope.core.errors import InputError
from moescope.jobs.charts.page import chart_html_parts
from moescope.jobs.reports.comparison.pictures import (
    counts_picture,
    layers_picture,
    margins_picture,
    positions_picture,
)
from moescope.jobs.reports.comparison.sentences import fine_percent, side_titles, with_interval
from moescope.jobs.reports.comparison.words import (
    cut,
    layer_words,
    margin_words,
    position_words,
    some_of,
)
from moescope.jobs.reports.comparison.writing import beside, write_together
from moescope.jobs.reports.render import TEMPLATES, page_environment

if TYPE_CHECKING:
    from pathlib import Path

    from moescope.jobs.reports.comparison.schema import ComparisonReport


def check_writable(page: Path) -> None:
    """Find out whether the page and its JSON twin can be written, and leave no trace of it.

    Raises:
        InputError: They cannot.
    """
    try:
        for file in _files(page):
            if file.is_dir():
                raise _unwritable(page, f"{file} is a folder.")
            folder = file.parent
            while not folder.exists():
                folder = folder.parent
            trial = beside(folder / file.name)  # as it will be written: a name may be too long
            trial.touch()
            trial.unlink()
    except OSError as error:
        raise _unwritable(page, error.strerror or str(error)) from error
    except RuntimeError as error:  # the home of a user who does not exist
        raise _unwritable(page, str(error)) from error


def _unwritable(page: Path, why: str) -> InputError:
    return InputError(
        f"The page {cut(repr(str(page)))} cannot be written.",
        why=why,
        next_step="Name a file in a folder that you may write to: --out comparison.html",
    )


def _files(page: Path) -> tuple[Path, Path]:
    """The page, and the JSON file beside it.

    Raises:
        InputError: The name is that of a folder, or of something else than a page.
    """
    whole = page.expanduser().absolute()
    if whole.is_dir():
        raise _unwritable(page, f"{whole} is a folder.")
    # No name is made of another one: what is written is what was asked for.
    if whole.suffix.lower() != ".html":
        raise _unwritable(page, "The name of a page ends with .html; its JSON file lies beside it.")
    return whole, whole.with_suffix(".json")


def write_comparison(report: ComparisonReport, page: Path) -> tuple[Path, Path]:
    """Write the page, and beside it a JSON file of the same name.

    Returns:
        The page and the JSON file.

    Raises:
        InputError: The name is none of a page.
        DependencyUnreachableError: One cannot be written; then neither is.
    """
    page, numbers = _files(page)
    text = json.dumps(report, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    write_together({numbers: text + "\n", page: comparison_html(report, numbers.name)})
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
            titles=side_titles(report),
            json_name=json_name,
            fine_percent=fine_percent,
            with_interval=with_interval,
            position_words=position_words,
            margin_words=margin_words,
            layer_words=layer_words,
            some_of=some_of,
            figures={name: Markup(text) for name, text in parts.figures.items()},  # noqa: S704 - made of escaped text
            scripts=Markup(parts.scripts),  # noqa: S704 - escaped as well
            script_hashes=Markup(" ".join(parts.script_hashes)),  # noqa: S704 (base64)
            style=Markup((TEMPLATES / "report.css").read_text("utf-8")),  # noqa: S704 (our file)
        )
    )
