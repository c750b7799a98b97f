"""How often healthy windows that calibration did not see are past a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt
import polars as pl

from moescope.core.metrics import BY_NAME
from moescope.jobs.charts.marks import layered
from moescope.jobs.charts.theme import BASELINE, MUTED, RED

if TYPE_CHECKING:
    from collections.abc import Sequence

ROW_HEIGHT = 22


def false_alarm_chart(rates: pl.DataFrame, *, title: str) -> alt.LayerChart:
    """Rates per metric, each with the band that chance allows around the nominal rate.

    Args:
        rates: `metric`, `rate` (0 … 1), `nominal` (what the line is meant to give), and the band
            `low`, `high` that a correct line stays in; the band may be null.
        title: Which windows.
    """
    names = [BY_NAME[name].title for name in rates["metric"]]
    inside = (pl.col("rate") >= pl.col("low")) & (pl.col("rate") <= pl.col("high"))
    table = rates.with_columns(
        title=pl.Series(names, dtype=pl.String),
        verdict=pl.when(inside.fill_null(value=True)).then(pl.lit("inside")).otherwise(
            pl.lit("outside")
        ),
    )  # fmt: skip
    y = _by_title(names)
    x_title = "Share of windows past the line, per layer"
    percent = alt.Axis(format=".1~%")
    base = alt.Chart(table)
    band = base.mark_bar(height=10, color=MUTED, opacity=0.35, cornerRadius=2).encode(
        x=alt.X("low:Q", title=x_title, axis=percent), x2=alt.X2("high:Q"), y=y
    )
    points = base.mark_point(filled=True, size=60, opacity=1).encode(
        x=alt.X("rate:Q", title=x_title, axis=percent),
        y=y,
        color=alt.Color(
            "verdict:N",
            title="Within what chance allows",
            scale=alt.Scale(domain=["inside", "outside"], range=[BASELINE, RED]),
        ),
        shape=alt.Shape(
            "verdict:N",
            title="Within what chance allows",
            scale=alt.Scale(domain=["inside", "outside"], range=["circle", "triangle-up"]),
        ),
        tooltip=[
            alt.Tooltip("title:N", title="Metric"),
            alt.Tooltip("rate:Q", title="Past the line", format=".2%"),
            alt.Tooltip("nominal:Q", title="Made for", format=".1~%"),
            alt.Tooltip("low:Q", title="Chance allows from", format=".2%"),
            alt.Tooltip("high:Q", title="to", format=".2%"),
        ],
    )
    marks = base.mark_tick(thickness=2, size=16, color=MUTED).encode(
        x=alt.X("nominal:Q", title=x_title, axis=percent), y=y
    )
    return layered(band, marks, points, title=title, height=max(2, len(names)) * ROW_HEIGHT)


def _by_title(names: Sequence[str]) -> alt.Y:
    return alt.Y(
        "title:N", title=None, sort=list(names), axis=alt.Axis(labelLimit=190, labelFontSize=12)
    )
