"""A calibration report as plain data, from the store's tables alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moescope.core.metrics import BY_NAME
from moescope.jobs.reports.baseline_selection import baseline_of, baseline_windows
from moescope.jobs.reports.calibration_record import held_out_rates, nominal, what_was_left_out
from moescope.jobs.reports.change_facts import change_facts
from moescope.jobs.reports.judged_windows import Judged
from moescope.jobs.reports.left_out import left_out
from moescope.jobs.reports.line_facts import line_facts
from moescope.jobs.reports.next_steps import next_steps
from moescope.jobs.reports.paging_facts import paging_facts, timeline_facts
from moescope.jobs.reports.rows import rounded, windows_key
from moescope.jobs.reports.schema import (
    SCHEMA,
    SCHEMA_VERSION,
    CalibrationReport,
    Fired,
    Rate,
)
from moescope.jobs.reports.sections import main_keys
from moescope.jobs.reports.sentences import opening
from moescope.jobs.reports.value_facts import window_facts
from moescope.jobs.reports.version_facts import (
    baseline_facts,
    read_head,
    rolls_back_to,
    version_before,
    version_facts,
)
from moescope.jobs.reports.words import moment
from moescope.storage.store import DEFAULT_MINIMUM_COVERAGE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import duckdb

    from moescope.jobs.reports.judged_windows import LayerRate

MOST_HEATMAPS = 8


def build_report(
    cursor: duckdb.DuckDBPyConnection,
    version: str,
    held_out: Mapping[str, Any] | None = None,
) -> CalibrationReport:
    """Everything that a report says; the same rows give the same report.

    Args:
        cursor: To a store, or to an export's tables.
        version: Threshold version.
        held_out: A check that was made after the calibration (`HeldOut.to_json`); by default the
            one that was stored with it, if any.

    Raises:
        InputError: There is no such version.
    """
    head = read_head(cursor, version)
    facts = version_facts(cursor, head)
    if held_out is not None:
        facts["summary"] = {**facts["summary"], "held_out": held_out}
    baseline = baseline_facts(cursor, head)
    lines = line_facts(cursor, head)
    covered = float(facts["summary"].get("minimum_coverage", DEFAULT_MINIMUM_COVERAGE))
    chosen = baseline_windows(cursor, head, baseline_of(baseline), covered)
    judged = Judged(cursor, head, chosen)
    baseline["first_time"], baseline["last_time"] = map(moment, judged.time_range())
    changes = change_facts(cursor, head, version_before(cursor, head))
    seen = window_facts(judged, lines, main_keys(lines), MOST_HEATMAPS)
    fired = Fired(
        baseline=_baseline_rates(seen.rates),
        held_out=held_out_rates(facts["summary"]),
        paging=paging_facts(cursor, head),
        timelines=timeline_facts(cursor, head),
    )
    return CalibrationReport(
        schema=SCHEMA,
        schema_version=SCHEMA_VERSION,
        version=facts,
        baseline=baseline,
        summary=opening(
            version=facts,
            baseline=baseline,
            judged=lines,
            fired=fired,
            changes=changes,
        ),
        judged=lines,
        distributions=seen.distributions,
        heat=seen.heats,
        fired=fired,
        changes=changes,
        left_out=[*what_was_left_out(facts["summary"]), *left_out(lines, head.layers)],
        next_steps=next_steps(facts, changes, rolls_back_to(cursor, head)),
    )


def _baseline_rates(rates: Mapping[str, Sequence[LayerRate]]) -> list[Rate]:
    return [
        Rate(
            key=windows_key(rate.key),
            metric=metric,
            windows=rate.windows,
            warn=rounded(rate.warn) or 0.0,
            red=rounded(rate.red) or 0.0,
            warn_nominal=nominal(BY_NAME[metric], "warn"),
            red_nominal=nominal(BY_NAME[metric], "red"),
            warn_band=None,
            red_band=None,
        )
        for metric, each in rates.items()
        for rate in each
    ]
