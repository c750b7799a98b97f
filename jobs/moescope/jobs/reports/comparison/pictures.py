"""Charts of a comparison, made from its data alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import altair as alt
import polars as pl

from moescope.jobs.charts.marks import VALUE_FORMAT, layered
from moescope.jobs.charts.theme import BASELINE, MUTED, RED, WARN
from moescope.jobs.reports.comparison.sentences import fine_percent
from moescope.jobs.reports.comparison.words import margin_words, position_words
from moescope.jobs.reports.pictures import Picture

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moescope.jobs.reports.comparison.schema import ComparisonReport, Estimate

HEIGHT: Final = 240
_PERCENT: Final = ".3~p"
_SERIES: Final = {
    "experts in common": ("overlap", BASELINE, "circle"),
    "same set": ("same_set", WARN, "diamond"),
    "same top-1": ("top1", MUTED, "square"),
}
_COUNTS: Final = {
    "divergence of counts": ("js_divergence", BASELINE, "circle"),
    "by chance alone": ("noise_floor", MUTED, "square"),
}
_SPAN: Final = {"value": pl.Float64, "low": pl.Float64, "high": pl.Float64}


def layers_picture(report: ComparisonReport) -> Picture:
    """Agreement by layer, with intervals."""
    rows = [
        (layer["layer"], name, *_ends(estimate))
        for name, (field, _, _) in _SERIES.items()
        for layer in report["layers"]
        if (estimate := layer[field]) is not None  # type: ignore[literal-required]  # `_SERIES` names fields
    ]
    frame = pl.DataFrame(rows, schema={"place": pl.Int64, "line": pl.String, **_SPAN}, orient="row")
    present = [name for name in _SERIES if name in set(frame["line"].to_list())]
    worst = report["overall"]["worst_layer"]
    return Picture(
        _points(frame, "Layer", present, "Agreement by layer, with 95 % intervals"),
        f"Agreement by layer with 95 % intervals: {', '.join(present)}. Least at layer {worst}.",
    )


def counts_picture(report: ComparisonReport) -> Picture:
    """What count metrics see of the same tokens."""
    rows = [
        (layer["layer"], name, layer[field])  # type: ignore[literal-required]  # `_COUNTS` names fields
        for name, (field, _, _) in _COUNTS.items()
        for layer in report["layers"]
    ]
    frame = pl.DataFrame(
        rows, schema={"layer": pl.Int64, "line": pl.String, "value": pl.Float64}, orient="row"
    )
    title = "Jensen–Shannon divergence (bits)"
    chart = (
        alt.Chart(frame)
        .mark_point(filled=True, size=46, opacity=1)
        .encode(
            x=alt.X("layer:O", title="Layer", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("value:Q", title=title, axis=alt.Axis(format=".1~e")),
            color=_colour(_COUNTS),
            shape=_shape(_COUNTS),
            tooltip=[
                alt.Tooltip("layer:O", title="Layer"),
                alt.Tooltip("line:N", title="What"),
                alt.Tooltip("value:Q", title=title, format=VALUE_FORMAT),
            ],
        )
    )
    return Picture(
        layered(chart, title="What counts show of the same tokens", height=HEIGHT),
        "Jensen–Shannon divergence of the counts by layer, beside what chance alone gives; at most"
        f" {report['overall']['largest_js_divergence']:.3g}.",
    )


def positions_picture(report: ComparisonReport) -> Picture:
    """Tokens that agree in all layers, by position."""
    rows = [
        (position_words(each), "in all layers", *_ends(each["all_layers"]))
        for each in report["by_position"]
    ]
    frame = pl.DataFrame(
        rows, schema={"place": pl.String, "line": pl.String, **_SPAN}, orient="row"
    )
    last = report["by_position"][-1]
    return Picture(
        _points(frame, "Position in the request", [], "Tokens that agree in all layers"),
        "Share of tokens that agree in all layers by position in the request; at positions"
        f" {position_words(last)} it is {fine_percent(last['all_layers']['value'])}.",
    )


def margins_picture(report: ComparisonReport) -> Picture | None:
    """Sets that differ, by the margin of side A."""
    buckets = report["by_margin"]
    if buckets is None:
        return None
    rows = [
        (margin_words(each), 1.0 - each["same_set"]["value"], each["token_layers"])
        for each in buckets
    ]
    frame = pl.DataFrame(
        rows, schema={"margin": pl.String, "share": pl.Float64, "seen": pl.Int64}, orient="row"
    )
    chart = (
        alt.Chart(frame)
        .mark_bar(color=RED)
        .encode(
            x=alt.X("margin:O", sort=None, title="Margin of side A"),
            y=alt.Y("share:Q", title="Sets that differ", axis=alt.Axis(format="%")),
            tooltip=[
                alt.Tooltip("margin:N", title="Margin"),
                alt.Tooltip("share:Q", title="Sets that differ", format=_PERCENT),
                alt.Tooltip("seen:Q", title="Tokens × layers", format=","),
            ],
        )
    )
    return Picture(
        layered(chart, title="Sets that differ, by how close the choice was", height=HEIGHT),
        "Share of sets that differ by the margin at which side A chose; at the smallest margins"
        f" it is {fine_percent(rows[0][1])}.",
    )


def _points(frame: pl.DataFrame, title: str, series: Sequence[str], heading: str) -> alt.LayerChart:
    scale = alt.Scale(zero=False)
    base = alt.Chart(frame).encode(
        x=alt.X("place:O", sort=None, title=title, axis=alt.Axis(labelAngle=0))
    )
    colour = _colour({name: _SERIES[name] for name in series}) if series else alt.value(BASELINE)
    y = alt.Y("value:Q", title="Agreement", axis=alt.Axis(format="~%"), scale=scale)
    intervals = base.mark_rule(strokeWidth=1.5, opacity=0.75).encode(
        y=alt.Y("low:Q", title="Agreement", axis=alt.Axis(format="~%"), scale=scale),
        y2=alt.Y2("high:Q"),
        color=colour,
    )
    points = base.mark_point(filled=True, size=46, opacity=1).encode(
        y=y,
        color=colour,
        tooltip=[
            alt.Tooltip("place:O", title=title),
            alt.Tooltip("line:N", title="What"),
            alt.Tooltip("value:Q", title="Agreement", format=_PERCENT),
            alt.Tooltip("low:Q", title="95 % interval from", format=_PERCENT),
            alt.Tooltip("high:Q", title="to", format=_PERCENT),
        ],
        **({"shape": _shape({name: _SERIES[name] for name in series})} if series else {}),
    )
    return layered(intervals, points, title=heading, height=HEIGHT)


def _colour(series: dict[str, tuple[str, str, str]]) -> alt.Color:
    colours = [colour for _, colour, _ in series.values()]
    scale = alt.Scale(domain=list(series), range=colours)
    return alt.Color("line:N", title=None, sort=None, scale=scale)


def _shape(series: dict[str, tuple[str, str, str]]) -> alt.Shape:
    scale = alt.Scale(domain=list(series), range=[shape for _, _, shape in series.values()])
    return alt.Shape("line:N", title=None, sort=None, scale=scale)


def _ends(estimate: Estimate) -> tuple[float, float | None, float | None]:
    return estimate["value"], estimate["low"], estimate["high"]
