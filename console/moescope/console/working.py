"""What each change does, in the process that owns the store."""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING, Any

from moescope.console.changes import (
    Change,
    PauseJob,
    ResumeJob,
    RunJob,
)
from moescope.core.errors import InternalError

if TYPE_CHECKING:
    from moescope.console.changes import Order
    from moescope.console.opened_store import OpenedStore


def carry_out(order: Order, parts: OpenedStore) -> dict[str, Any]:
    """Carry out a change; returns what it says of itself, as JSON values.

    Raises:
        MoescopeError: What the change raised; nothing of it was kept.
    """
    return _carry_out(order.change, order, parts)


@singledispatch
def _carry_out(change: Change, order: Order, parts: OpenedStore) -> dict[str, Any]:  # noqa: ARG001
    raise InternalError(f"Nobody knows how to carry out {change.action!r}.")


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
