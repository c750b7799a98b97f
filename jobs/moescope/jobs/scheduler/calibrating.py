"""Calibration of every served model: the job `calibrate`, and what the command shares with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moescope.core.errors import InsufficientDataError
from moescope.jobs.baselines import read_baseline, scopes_of
from moescope.jobs.calibration import (
    CalibrationOptions,
    activate,
    calibrate,
    store_calibration,
)
from moescope.jobs.scheduler.job import JobContext, JobResult

if TYPE_CHECKING:
    import duckdb

    from moescope.core.settings import Settings
    from moescope.core.thresholds import ThresholdScope
    from moescope.jobs.baselines import Baseline
    from moescope.storage.store import Store

AUTHOR = "job:calibrate"


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationOrder:
    """Who wants which scopes calibrated, and what is to become of the result.

    Attributes:
        baseline: What is known to be healthy.
        model, revision: Only these; empty: all.
        activate: Let the new versions judge.
        guarded: Let those judge whose lines differ little from those in force.
    """

    baseline: Baseline
    author: str
    reason: str
    model: str = ""
    revision: str = ""
    activate: bool = False
    guarded: bool = False


def calibrate_daily(context: JobContext) -> JobResult:
    """Calibrate what the baseline of the settings has anything new to say of."""
    name = context.settings["calibration.baseline"]
    with context.store.cursor() as cursor:
        if not cursor.execute("SELECT 1 FROM baselines WHERE baseline = ?", [name]).fetchall():
            return JobResult.nothing(
                f"there is no baseline {name!r}; `moescope baseline create {name}` makes it"
            )
        baseline = read_baseline(cursor, name)
    order = CalibrationOrder(
        baseline=baseline, author=AUTHOR, reason="daily calibration", guarded=True
    )
    made = calibrate_scopes(context.store, context.settings, order, only_new=True)
    if not any("version" in each for each in made):
        return JobResult.nothing("; ".join(f"{each['scope']}: {each['why']}" for each in made))
    return JobResult(detail={"baseline": f"{name} {baseline.version}", "made": made})


def calibrate_scopes(
    store: Store, settings: Settings, order: CalibrationOrder, *, only_new: bool = False
) -> list[dict[str, Any]]:
    """Make a version per scope of the baseline.

    Args:
        store: Of the owner.
        settings: Options of the calibration.
        order: What is wanted.
        only_new: Leave out scopes whose newest version already rests on the whole baseline.

    Returns:
        Per scope what was made (`version`; `judges_from_us`, null: a draft), or `why` nothing was.

    Raises:
        InsufficientDataError: The baseline selects nothing.
    """
    with store.cursor() as cursor:
        scopes = [
            scope
            for scope in scopes_of(cursor, order.baseline)
            if order.model in {"", scope.model} and order.revision in {"", scope.revision}
        ]
    if not scopes:
        raise InsufficientDataError(
            f"Baseline {order.baseline.name!r} selects no windows.",
            next_step="Check its models, revisions, domains and times: `moescope baseline show`.",
        )
    return [_calibrate_one(store, settings, order, scope, only_new=only_new) for scope in scopes]


def scope_words(scope: ThresholdScope) -> str:
    """A scope in words."""
    ratio = "" if scope.sampling_ratio == 1 else f" {scope.sampling_ratio:g}"
    return f"{scope.model} {scope.revision} ({scope.origin}, {scope.fidelity}{ratio})"


def _calibrate_one(
    store: Store,
    settings: Settings,
    order: CalibrationOrder,
    scope: ThresholdScope,
    *,
    only_new: bool,
) -> dict[str, Any]:
    told: dict[str, Any] = {"scope": scope_words(scope)}
    with store.cursor() as cursor:
        known = _version_of_whole(cursor, order.baseline, scope) if only_new else ""
        if known:
            return {**told, "why": f"{known} was made from the whole baseline already"}
        try:
            made = calibrate(cursor, order.baseline, scope, options=CalibrationOptions.of(settings))
        except InsufficientDataError as error:
            return {**told, "why": f"{error.what} {error.why}".strip()}
    version = store_calibration(store, made, author=order.author, reason=order.reason)
    told |= {"version": version, "against": made.against, "held": made.held}
    if order.activate or (order.guarded and not made.held):
        activation = activate(store, version, author=order.author, reason=order.reason)
        return {**told, "judges_from_us": activation.effective_from_us}
    return {**told, "judges_from_us": None}


def _version_of_whole(
    cursor: duckdb.DuckDBPyConnection, baseline: Baseline, scope: ThresholdScope
) -> str:
    """The newest version from this baseline, if it was made after the baseline's end.

    A draft that nobody has to approve is what a killed run left behind: it does not count.
    """
    if not baseline.spans:
        return ""
    own = " AND ".join(f"{name} = ${name}" for name in scope._fields)
    rows = cursor.execute(
        f"SELECT version FROM threshold_versions WHERE {own}"
        " AND baseline = $baseline AND baseline_version = $number"
        " AND epoch_us(created_at) >= $end_us"
        " AND (status <> 'draft'"
        " OR coalesce((summary_json::JSON -> 'change_guard' -> 'held')::BOOLEAN, false))"
        " ORDER BY created_at DESC, commit_id DESC LIMIT 1",
        scope._asdict()
        | {
            "baseline": baseline.name,
            "number": baseline.version,
            "end_us": max(span.to_us for span in baseline.spans),
        },
    ).fetchall()
    return rows[0][0] if rows else ""
