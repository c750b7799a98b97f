"""What several charts share: axis titles, number formats, and the scale of line names."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import altair as alt

from moescope.core.metrics import BY_NAME
from moescope.jobs.charts.theme import BASELINE, MUTED, RED, WARN

if TYPE_CHECKING:
    from collections.abc import Sequence

VALUE_FORMAT = ".3~g"
LONGEST_TITLE = 90
SIDE_ROOM = 34

COLOURS = {
    "baseline": BASELINE,
    "baseline median": BASELINE,
    "held-out median": MUTED,
    "warn line": WARN,
    "red line": RED,
}
"""Colour by what the legend calls it."""

DASHES = {
    "baseline": [1, 0],
    "baseline median": [1, 0],
    "held-out median": [2, 3],
    "warn line": [6, 3],
    "red line": [1, 0],
}
"""Lines differ without colour as well."""


SHAPES = {
    "baseline median": "circle",
    "held-out median": "stroke",
    "warn line": "diamond",
    "red line": "triangle-up",
}
"""And so do points."""


def value_title(metric: str) -> str:
    """Axis title of a metric: what it is, and its unit."""
    known = BY_NAME[metric]
    return f"{known.title} ({known.unit})"


def side_title(metric: str) -> str:
    """The same for the side of a chart, where there is room for few words."""
    full = value_title(metric)
    return full if len(full) <= SIDE_ROOM else BY_NAME[metric].unit.capitalize()


def line_colour(names: Sequence[str], field: str = "line") -> alt.Color:
    """Colour by line name, with a legend in the given order."""
    return alt.Color(
        f"{field}:N",
        title=None,
        sort=None,
        scale=alt.Scale(domain=list(names), range=[COLOURS[name] for name in names]),
    )


def line_dash(names: Sequence[str], field: str = "line") -> alt.StrokeDash:
    """Dash pattern by line name."""
    return alt.StrokeDash(
        f"{field}:N",
        title=None,
        sort=None,
        scale=alt.Scale(domain=list(names), range=[DASHES[name] for name in names]),
    )


def line_shape(names: Sequence[str], field: str = "line") -> alt.Shape:
    """Shape of points by line name."""
    return alt.Shape(
        f"{field}:N",
        title=None,
        sort=None,
        scale=alt.Scale(domain=list(names), range=[SHAPES[name] for name in names]),
    )


def layered(*parts: alt.Chart, title: str, height: int) -> alt.LayerChart:
    """Marks over each other, as wide as the place they are put into."""
    chart = alt.layer(*parts, title=short(title), width="container", height=height)
    return cast("alt.LayerChart", chart)


def short(text: str, limit: int = LONGEST_TITLE) -> str:
    """Text that fits a title; names of scenes and models may be of any length."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
