"""What each change does, in the process that owns the store."""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING, Any

from moescope.console.changes import (
    ActivateThresholds,
    CalibrateThresholds,
    Change,
    CreateBaseline,
    PauseJob,
    ResumeJob,
    RollBackThresholds,
    RunJob,
    SendTestAlert,
    WriteReport,
)
from moescope.core.errors import (
    DependencyUnreachableError,
    InputError,
    InsufficientDataError,
    InternalError,
)

if TYPE_CHECKING:
    import duckdb

    from moescope.console.changes import Order
    from moescope.console.opened_store import OpenedStore


def carry_out(order: Order, parts: OpenedStore) -> dict[str, Any]:
    """Carry out a change; returns what it says of itself, as JSON values.

    Raises:
        MoescopeError: What the change raised; nothing of it was kept.
    """
    return _carry_out(order.change, order, parts)


@singledispatch
def _carry_out(change: Change, order: Order, parts: OpenedStore) -> dict[str, Any]:  # noqa: ARG001 - one signature for all changes
    raise InternalError(f"Nobody knows how to carry out {change.action!r}.")


@_carry_out.register(CreateBaseline)
def _create_baseline(change: CreateBaseline, order: Order, parts: OpenedStore) -> dict[str, Any]:
    from moescope.jobs.baselines import Baseline, Span, store_baseline

    span = (
        (Span(change.from_us, change.to_us),)
        if change.from_us is not None and change.to_us is not None
        else ()
    )
    baseline = store_baseline(
        parts.store,
        Baseline(
            name=change.name,
            spans=span,
            models=change.models,
            revisions=change.revisions,
            scenes=change.scenes,
            nodes=change.nodes,
            domains=change.domains,
            without_nodes=change.without_nodes,
            without_spans=tuple(Span(*each) for each in change.without_spans),
        ),
        author=order.author,
        reason=order.reason,
        clock=parts.clock,
    )
    return {"baseline": baseline.name, "version": baseline.version}


@_carry_out.register(CalibrateThresholds)
def _calibrate(change: CalibrateThresholds, order: Order, parts: OpenedStore) -> dict[str, Any]:
    from moescope.jobs.baselines import read_baseline
    from moescope.jobs.scheduler.calibrating import CalibrationOrder, calibrate_scopes

    with parts.store.cursor() as cursor:
        baseline = read_baseline(cursor, change.baseline)
    made = calibrate_scopes(
        parts.store,
        parts.settings,
        CalibrationOrder(
            baseline=baseline,
            author=order.author,
            reason=order.reason,
            model=change.model,
            revision=change.revision,
            activate=change.activate,
        ),
    )
    if not any("version" in each for each in made):
        raise InsufficientDataError(
            f"Baseline {baseline.name!r} is too small for any thresholds.",
            why=" ".join(each["why"] for each in made),
            next_step="Choose a longer span, or wait: `moescope baseline create`.",
        )
    return {"baseline": f"{baseline.name} {baseline.version}", "made": made}


@_carry_out.register(ActivateThresholds)
def _activate(change: ActivateThresholds, order: Order, parts: OpenedStore) -> dict[str, Any]:
    from moescope.jobs.calibration import activate

    activation = activate(
        parts.store,
        change.version,
        effective_from_us=change.from_us,
        author=order.author,
        reason=order.reason,
        clock=parts.clock,
    )
    return {"version": activation.version, "judges_from_us": activation.effective_from_us}


@_carry_out.register(RollBackThresholds)
def _roll_back(change: RollBackThresholds, order: Order, parts: OpenedStore) -> dict[str, Any]:
    from moescope.core.thresholds import ThresholdScope
    from moescope.jobs.calibration import rollback

    fields = ", ".join(ThresholdScope._fields)
    with parts.store.cursor() as cursor:
        rows = cursor.execute(
            f"SELECT DISTINCT {fields} FROM threshold_activations"  # noqa: S608 (field names)
            " WHERE $model IN ('', model) AND $revision IN ('', revision) ORDER BY ALL",
            {"model": change.model, "revision": change.revision},
        ).fetchall()
    if len(rows) != 1:
        raise InputError(
            f"{'Several models have' if rows else 'No such model has'} thresholds in force.",
            why="; ".join(" ".join(map(str, row[:2])) for row in rows),
            next_step="Name one with --model and --revision.",
        )
    activation = rollback(
        parts.store,
        ThresholdScope(*rows[0]),
        author=order.author,
        reason=order.reason,
        clock=parts.clock,
    )
    if activation.version:
        return {
            "version": activation.version,
            "judges_from_us": activation.effective_from_us,
        }
    return {
        "version": "none",
        "judging_off_from_us": activation.effective_from_us,
        "warning": "No version was in force before. Windows that end from then on are insufficient,"
        " and nothing pages, until `moescope threshold activate` lets a version judge.",
    }


@_carry_out.register(SendTestAlert)
def _send_test(change: SendTestAlert, order: Order, parts: OpenedStore) -> dict[str, Any]:  # noqa: ARG001 (one signature)
    from moescope.jobs.notifications import send_test

    results = send_test(
        parts.store, parts.receivers(), parts.clock, author=order.author, reason=order.reason
    )
    failed = [f"{each.receiver}: {each.error}" for each in results if each.error]
    if failed:
        raise DependencyUnreachableError(
            "The test notification was not delivered.",
            why="; ".join(failed),
            next_step="Check alerts.webhook_url and that the receiver runs.",
        )
    return {"delivered_to": [each.receiver for each in results]}


@_carry_out.register(WriteReport)
def _write_report(change: WriteReport, order: Order, parts: OpenedStore) -> dict[str, Any]:  # noqa: ARG001 (one signature)
    from pathlib import Path

    from moescope.jobs.reports import calibration_report, summary_lines
    from moescope.jobs.scheduler.reporting import reports_folder

    folder = Path(change.folder) if change.folder else reports_folder(parts.settings.data_directory)
    with parts.store.cursor() as cursor:
        version = change.version or _newest_version(cursor)
        files = calibration_report(cursor, version, folder)
    return {
        "version": version,
        "html": str(files.html),
        "json": str(files.json),
        "summary": summary_lines(files.report),
    }


def _newest_version(cursor: duckdb.DuckDBPyConnection) -> str:
    rows = cursor.execute(
        "SELECT version FROM threshold_versions ORDER BY created_at DESC, commit_id DESC LIMIT 1"
    ).fetchall()
    if not rows:
        raise InputError(
            "There are no thresholds to report on.",
            next_step="`moescope threshold calibrate` makes them.",
        )
    return str(rows[0][0])


@_carry_out.register(RunJob)
def _run_job(change: RunJob, order: Order, parts: OpenedStore) -> dict[str, Any]:
    return parts.runner.run_now(change.job, author=order.author, reason=order.reason)


@_carry_out.register(PauseJob)
def _pause_job(change: PauseJob, order: Order, parts: OpenedStore) -> dict[str, Any]:
    return _pause(change.job, order, parts, paused=True)


@_carry_out.register(ResumeJob)
def _resume_job(change: ResumeJob, order: Order, parts: OpenedStore) -> dict[str, Any]:
    return _pause(change.job, order, parts, paused=False)


def _pause(job: str, order: Order, parts: OpenedStore, *, paused: bool) -> dict[str, Any]:
    changed = parts.runner.pause(job, paused=paused, author=order.author, reason=order.reason)
    return {"job": job, "paused": paused, "changed": changed}
