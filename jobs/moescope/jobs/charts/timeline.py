"""The paging statistic over time, against the line that pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt
import polars as pl

from moescope.jobs.charts.marks import VALUE_FORMAT, layered
from moescope.jobs.charts.theme import BASELINE, RED

if TYPE_CHECKING:
    from datetime import timedelta

HEIGHT = 200
MOST_POINTS = 1_000


def exceedance_timeline(
    slots: pl.DataFrame, *, line: float, needed: int, of_slots: int, title: str
) -> alt.LayerChart:
    """The worst exceedance per slot; points are slots over the paging line.

    Beyond `MOST_POINTS` slots each point is the maximum of a longer span, and the axis says so.

    Args:
        slots: `slot` (datetime, UTC) and `value` (spreads past the red line; null: no data).
        line: The paging line, in the same unit.
        needed: An alert fires when so many slots are over the line …
        of_slots: … of the last so many.
        title: Which statistic.
    """
    pooled, span = _pooled(slots)
    when = "Time (UTC)" if span is None else f"Time (UTC); each point is the worst of {span}"
    pooled = pooled.with_columns(over=pl.col("value") > line)
    x = alt.X("slot:T", title=when, scale=alt.Scale(type="utc"))
    y = alt.Y("value:Q", title="Spreads past the red line")
    tooltip = [
        alt.Tooltip("slot:T", title="Time (UTC)", format="%Y-%m-%d %H:%M:%S"),
        alt.Tooltip("value:Q", title="Spreads past the red line", format=VALUE_FORMAT),
    ]
    curve = (
        alt.Chart(pooled)
        .mark_line(strokeWidth=1.2, color=BASELINE, interpolate="step-after")
        .encode(x=x, y=y, tooltip=tooltip)
    )
    beyond = pooled.filter("over")
    # A layer without rows has no extent, which Vega warns of.
    over = [
        alt.Chart(beyond)
        .mark_point(filled=True, size=30, color=RED, shape="triangle-up")
        .encode(x=x, y=y, tooltip=tooltip)
    ] * bool(beyond.height)
    words = f"pages when {needed} of {of_slots} are over"
    at_line = alt.Chart(pl.DataFrame({"line": [line]}))
    rule = at_line.mark_rule(color=RED, strokeWidth=1.5, strokeDash=[6, 3]).encode(
        y=alt.Y("line:Q")
    )
    label = at_line.mark_text(align="right", baseline="bottom", dx=-4, dy=-3).encode(
        y=alt.Y("line:Q"),
        x=alt.value("width"),
        text=alt.value(words),
    )
    return layered(curve, *over, rule, label, title=title, height=HEIGHT)


def _pooled(slots: pl.DataFrame) -> tuple[pl.DataFrame, timedelta | None]:
    ordered = slots.sort("slot")
    if ordered.height <= MOST_POINTS:
        return ordered, None
    first, last = ordered["slot"][0], ordered["slot"][-1]
    seconds = int((last - first).total_seconds()) // MOST_POINTS + 1
    pooled = ordered.group_by_dynamic("slot", every=f"{seconds}s", start_by="datapoint").agg(
        pl.col("value").max()
    )
    return pooled, pl.select(pl.duration(seconds=seconds)).item()
