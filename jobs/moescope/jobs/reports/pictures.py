"""Charts of a report, made from its data alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import polars as pl

from moescope.jobs.charts import (
    distribution_chart,
    exceedance_timeline,
    false_alarm_chart,
    heatmap_chart,
    layer_lines_chart,
)
from moescope.jobs.reports.rows import plain_key
from moescope.jobs.reports.value_facts import field_of
from moescope.jobs.reports.words import figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    import altair as alt

    from moescope.jobs.reports.schema import (
        CalibrationReport,
        Distribution,
        Ends,
        Heat,
        KeyLines,
        Line,
        Paging,
        Rate,
        Timeline,
    )

_LINES = (
    ("warn line", ("warn_high", "P90"), ("warn_low", "P10")),
    ("red line", ("red_high", "P99"), ("red_low", "P1")),
)


@dataclass(frozen=True, slots=True)
class Picture:
    """A chart, and what it shows for those who do not see it."""

    chart: alt.TopLevelMixin
    words: str


def layers_picture(each: KeyLines, line: Line, layers: Sequence[int]) -> Picture:
    """Lines of a metric over the layers."""
    rows: list[tuple[int, str, float, float | None, float | None]] = [
        (layer, "baseline median", value, None, None)
        for layer, value in zip(layers, line["centre"], strict=True)
        if value is not None
    ]
    for name, *sides in _LINES:
        for side, _ in sides:
            rows += [(layer, name, *ends) for layer, ends in _per_layer(line[side], layers)]  # type: ignore[literal-required]  # `_LINES` names fields
    schema = {
        "layer": pl.Int64, "line": pl.String, "value": pl.Float64, "low": pl.Float64,
        "high": pl.Float64,
    }  # fmt: skip
    return Picture(
        layer_lines_chart(
            pl.DataFrame(rows, schema=schema, orient="row"),
            metric=line["metric"],
            title="Lines by layer, with 95 % intervals",
        ),
        f"{line['title']} by layer, {each['words']}: baseline median, warn and red line with"
        f" their 95 % intervals. Farthest at layer {line['worst_layer']}.",
    )


def distribution_picture(values: Distribution, line: Line, layers: Sequence[int]) -> Picture:
    """The baseline's values at the worst layer, cut by the lines."""
    at = list(layers).index(values["layer"])
    rows: list[tuple[str, str, float, float | None, float | None]] = []
    for name, *sides in _LINES:
        for side, quantile in sides:
            ends: Ends | None = line[side]  # type: ignore[literal-required]  # `_LINES` names fields
            where = None if ends is None else ends["at"][at]
            if ends is not None and where is not None:
                rows.append(
                    (name, quantile, where, *_drawn(where, ends["low"][at], ends["high"][at]))
                )
    schema = {
        "line": pl.String, "quantile": pl.String, "value": pl.Float64, "low": pl.Float64,
        "high": pl.Float64,
    }  # fmt: skip
    return Picture(
        distribution_chart(
            pl.DataFrame({"value": values["values"], "share": values["shares"]}),
            pl.DataFrame(rows, schema=schema, orient="row"),
            metric=line["metric"],
            title=f"Healthy values at layer {values['layer']}",
        ),
        f"Distribution of {line['title']} at layer {values['layer']} over"
        f" {values['windows']} healthy windows, with the lines: "
        + "; ".join(f"{name} at {figure(value)}" for name, _, value, _, _ in rows),
    )


def heat_picture(heat: Heat, metric_title: str, layers: Sequence[int]) -> Picture:
    """How near each window came to its red line."""
    return Picture(
        heatmap_chart(
            field_of(heat, layers),
            title=f"{metric_title}: pale at the median, dark near the red line",
        ),
        f"{metric_title} of {len(heat['closed'])} columns of healthy windows by layer: pale at"
        " the median, dark near the red line, windows past a line in colour.",
    )


def rates_picture(rates: Sequence[Rate], level: str) -> Picture:
    """False-alarm rates per metric, with the band that chance allows.

    Args:
        rates: Of one kind of windows.
        level: `warn` or `red`.
    """
    title = f"Past the {level} line"
    red = level == "red"
    rows = [
        (
            rate["metric"],
            rate["red"] if red else rate["warn"],
            rate["red_nominal"] if red else rate["warn_nominal"],
            *((rate["red_band"] if red else rate["warn_band"]) or (None, None)),
        )
        for rate in rates
    ]
    schema = {
        "metric": pl.String, "rate": pl.Float64, "nominal": pl.Float64, "low": pl.Float64,
        "high": pl.Float64,
    }  # fmt: skip
    return Picture(
        false_alarm_chart(pl.DataFrame(rows, schema=schema, orient="row"), title=title),
        f"{title}: share of healthy held-out windows past the {level} line, by metric.",
    )


def timeline_picture(timeline: Timeline, rules: Sequence[Paging]) -> Picture | None:
    """The paging statistic against its rule; None where the rule is gone."""
    same = ("phase", "window_kind", "size", "stride", "scope_kind", "family")
    for rule in rules:
        if all(rule[name] == timeline[name] for name in same):  # type: ignore[literal-required]  # `same` names fields of both
            title = f"Family {timeline['family']}, {timeline['phase']}"
            if timeline["scope_value"]:
                title += f", {timeline['scope_value']}"
            slots = [datetime.fromisoformat(slot.removesuffix("Z")) for slot in timeline["slots"]]
            return Picture(
                exceedance_timeline(
                    pl.DataFrame(
                        {"slot": slots, "value": timeline["values"]},
                        schema={"slot": pl.Datetime("us"), "value": pl.Float64},
                    ),
                    line=rule["line"],
                    needed=rule["needed"],
                    of_slots=rule["of_slots"],
                    title=title,
                ),
                f"{title}: worst exceedance over time against the paging line.",
            )
    return None


def distribution_of(report: CalibrationReport, each: KeyLines, line: Line) -> Distribution | None:
    """The distribution of a metric's values, where the report has one."""
    for values in report["distributions"]:
        same = plain_key(values["key"]) == plain_key(each["key"])
        if same and values["metric"] == line["metric"]:
            return values
    return None


def _drawn(at: float, low: float | None, high: float | None) -> tuple[float | None, float | None]:
    """The part of an interval that can be drawn: an open end stops at the line."""
    if low is None and high is None:
        return None, None
    return at if low is None else low, at if high is None else high


def _per_layer(
    ends: Ends | None, layers: Sequence[int]
) -> list[tuple[int, tuple[float, float | None, float | None]]]:
    if ends is None:
        return []
    return [
        (layer, (at, *_drawn(at, low, high)))
        for layer, at, low, high in zip(layers, ends["at"], ends["low"], ends["high"], strict=True)
        if at is not None
    ]
