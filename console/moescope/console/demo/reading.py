"""Figures of the demo that do not belong to one incident."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from moescope.console.demo.incidents import TINY_MOE
from moescope.console.demo.rows import rows_of
from moescope.core.errors import InsufficientDataError
from moescope.core.metrics import BY_NAME
from moescope.jobs.baselines import Baseline, Span
from moescope.jobs.calibration import CalibrationOptions, held_out_check
from moescope.jobs.patterns import paired_pull

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

    from moescope.console.demo.incidents import Stretch
    from moescope.core.settings import Settings
    from moescope.jobs.calibration import HeldOut

QUESTION_WINDOW: Final = 128
WITH_EXAMPLES: Final = "few_shot_with"
WITHOUT_EXAMPLES: Final = "few_shot_without"

_THRESHOLDS = """
    SELECT v.version, v.model,
        list_sum(json_extract(v.summary_json, '$.kinds[*].windows')::BIGINT[])::BIGINT AS windows,
        max(t.units) AS units, count(*) AS lines,
        count(*) FILTER (t.standing = 'firm') AS firm,
        count(*) FILTER (t.standing = 'provisional') AS provisional
    FROM threshold_versions v JOIN thresholds t USING (version)
    GROUP BY ALL ORDER BY v.version
"""

_EVENT_TIME = """
    SELECT count(*) AS rows, count(DISTINCT date_trunc('minute', close_time)) AS minutes
    FROM windows
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Further figures.

    Attributes:
        event_minutes: Minutes of event time with a window.
        window_rows: Rows of `windows`.
        lines: Threshold lines.
        thresholds: Per version: model, windows, units, lines by standing.
        held_out: Per kind of window and alerting metric: pointwise rate and its band.
        held_out_inside, held_out_all: Of all rates of red lines, how many are inside.
        few_shot: The paired comparison; None without those recordings.
        checked: The whole check on held-out health; None without recordings.
    """

    event_minutes: int
    window_rows: int
    lines: int
    thresholds: list[dict[str, Any]]
    held_out: list[dict[str, Any]]
    held_out_inside: int
    held_out_all: int
    few_shot: dict[str, Any] | None
    checked: HeldOut | None


def read_facts(
    cursor: duckdb.DuckDBPyConnection, stretches: Sequence[Stretch], settings: Settings
) -> Facts:
    """Read them from the store."""
    rows, minutes = rows_of(cursor, _EVENT_TIME)[0].values()
    thresholds = rows_of(cursor, _THRESHOLDS)
    checked = _held_out(cursor, stretches, settings)
    rates = _rates(checked)
    return Facts(
        event_minutes=minutes,
        window_rows=rows,
        lines=sum(row["lines"] for row in thresholds),
        thresholds=thresholds,
        held_out=rates,
        held_out_inside=sum(rate["inside"] for rate in rates),
        held_out_all=len(rates),
        few_shot=_few_shot(cursor),
        checked=checked,
    )


def _held_out(
    cursor: duckdb.DuckDBPyConnection, stretches: Sequence[Stretch], settings: Settings
) -> HeldOut | None:
    """The lines of the small model on held-out health."""
    spans = tuple(Span(each.start_us, each.end_us) for each in stretches if each.held_out)
    found = cursor.execute(
        "SELECT max(version) FROM threshold_versions WHERE model = ?", [TINY_MOE]
    ).fetchall()
    if not spans or found[0][0] is None:
        return None
    selection = Baseline(name="held-out", spans=spans, models=(TINY_MOE,))
    return held_out_check(cursor, found[0][0], selection, options=CalibrationOptions.of(settings))


def _rates(checked: HeldOut | None) -> list[dict[str, Any]]:
    """Of the red lines of alerting metrics, what the screen shows."""
    return [
        {
            "windows": f"{rate.phase} {rate.window_kind} {_size(rate.window_kind, rate.size)}"
            + ("" if rate.scope_kind == "all" else f" by {rate.scope_kind}"),
            "metric": rate.metric,
            "layer_windows": rate.windows,
            "units": rate.units,
            "rate": rate.rate,
            "low": rate.low,
            "high": rate.high,
            "inside": rate.inside,
        }
        for rate in (checked.rates if checked else ())
        if rate.line == "red" and BY_NAME[rate.metric].alerts
    ]


def _size(kind: str, size: int) -> str:
    return f"{size // 1_000_000} s" if kind == "time" else str(size)


def _few_shot(cursor: duckdb.DuckDBPyConnection) -> dict[str, Any] | None:
    try:
        pull = paired_pull(
            cursor,
            with_prefix=f"{WITH_EXAMPLES}/",
            without_prefix=f"{WITHOUT_EXAMPLES}/",
            size=QUESTION_WINDOW,
        )
    except InsufficientDataError:
        return None
    return {
        "questions": pull.questions,
        "with": float(pull.similarity_with.mean()),
        "without": float(pull.similarity_without.mean()),
        "layers": int((pull.p_value <= 0.01).sum()),  # noqa: PLR2004 (one percent)
        "of_layers": len(pull.p_value),
        "pulled": pull.pulled,
    }
