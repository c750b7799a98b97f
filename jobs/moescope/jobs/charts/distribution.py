"""How the values of a baseline are distributed, with its lines and their intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt

from moescope.jobs.charts.marks import VALUE_FORMAT, layered, line_colour, line_dash, value_title
from moescope.jobs.charts.theme import BASELINE

if TYPE_CHECKING:
    import polars as pl

HEIGHT = 220


def distribution_chart(
    values: pl.DataFrame, lines: pl.DataFrame, *, metric: str, title: str
) -> alt.LayerChart:
    """The empirical distribution function of healthy values, and where the lines cut it.

    Args:
        values: `value` in the metric's unit, ascending, and `share` (0 … 1): the share of
            windows at or below it.
        lines: `line` (`warn line` or `red line`), `quantile` (for example `P99`), `value`, and
            its 95 % interval `low`, `high`, which may be null.
        metric: Name in the registry.
        title: What the values are from.
    """
    names = ["warn line", "red line"]
    x = alt.X("value:Q", title=value_title(metric), scale=alt.Scale(zero=False, nice=True))
    curve = (
        alt.Chart(values)
        .mark_line(interpolate="step-after", strokeWidth=2, color=BASELINE)
        .encode(
            x=x,
            y=alt.Y(
                "share:Q",
                title="Share of windows at or below",
                axis=alt.Axis(format="%"),
                scale=alt.Scale(domain=[0, 1]),
            ),
            tooltip=[
                alt.Tooltip("value:Q", title=value_title(metric), format=VALUE_FORMAT),
                alt.Tooltip("share:Q", title="Windows at or below", format=".1%"),
            ],
        )
    )
    base = alt.Chart(lines)
    intervals = base.mark_rect(opacity=0.16).encode(
        x=alt.X("low:Q"), x2=alt.X2("high:Q"), color=line_colour(names)
    )
    rules = base.mark_rule(strokeWidth=2).encode(
        x=alt.X("value:Q"),
        color=line_colour(names),
        strokeDash=line_dash(names),
        tooltip=[
            alt.Tooltip("line:N", title="Line"),
            alt.Tooltip("quantile:N", title="Quantile"),
            alt.Tooltip("value:Q", title="At", format=VALUE_FORMAT),
            alt.Tooltip("low:Q", title="95 % interval from", format=VALUE_FORMAT),
            alt.Tooltip("high:Q", title="to", format=VALUE_FORMAT),
        ],
    )
    labels = base.mark_text(align="right", dx=-4, baseline="bottom", fontWeight=600).encode(
        x=alt.X("value:Q"),
        y=alt.value(HEIGHT),
        text=alt.Text("quantile:N"),
        color=line_colour(names),
    )
    # Layers without rows have no extent, which Vega warns of.
    parts = (intervals, rules, curve, labels) if lines.height else (curve,)
    return layered(*parts, title=title, height=HEIGHT)
