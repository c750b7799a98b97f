"""Running jobs one after the other, whatever becomes of each."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from moescope.core.errors import InputError, InsufficientDataError, MoescopeError
from moescope.jobs.scheduler.job import JobResult, RunState
from moescope.jobs.scheduler.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from moescope.jobs.scheduler.job import Job, JobContext
    from moescope.jobs.scheduler.ledger import Run


class JobRunner:
    """Runs jobs of one owner; one run at a time, for they share the machine with the commits.

    A job that fails is logged and visible in `job_runs`; it never stops the owner.

    Args:
        jobs: By name, what can run.
        context: Given to each run.
        log: Told of what people should know.
    """

    def __init__(
        self, jobs: Iterable[Job], context: JobContext, log: Callable[[str], None]
    ) -> None:
        self.jobs = {job.name: job for job in jobs}
        self.ledger = Ledger(context.store, context.clock)
        self._context = context
        self._log = log
        self._running = threading.Lock()

    def run_due(self, name: str) -> RunState | None:
        """Run a job for its newest planned time; None when that was done, or it is paused."""
        job = self.jobs[name]
        if job.schedule is None:
            raise InputError(f"The job {name} has no schedule.")
        with self._running:
            due_us = job.schedule.latest(self._context.clock.now_us())
            run = self.ledger.begin_scheduled(name, due_us)
            return None if run is None else self._run(job, run)[0]

    def run_now(self, name: str, *, author: str, reason: str) -> dict[str, Any]:
        """Run a job because a person wants it now.

        Returns:
            `job`, `state` and what the run says of itself.

        Raises:
            InputError: There is no such job, it cannot be run, or one is running.
        """
        job = self.known(name)
        if job.run is None:
            raise InputError(
                f"The job {name} cannot be started by hand.",
                why=f"It runs {job.when}.",
                next_step="`moescope job list` says what it last did.",
            )
        if not self._running.acquire(blocking=False):
            raise InputError(
                f"The job {name} was not started: another run is going on.",
                next_step="Try again when `moescope job list` shows that it has ended.",
            )
        try:
            state, detail = self._run(job, self.ledger.begin_now(name, author, reason))
        finally:
            self._running.release()
        return {"job": name, "state": state.value, **detail}

    def pause(self, name: str, *, paused: bool, author: str, reason: str) -> bool:
        """Pause or resume the schedule of a job; returns whether that changed anything.

        Raises:
            InputError: There is no such job, or it has no schedule.
        """
        if self.known(name).schedule is None:
            raise InputError(
                f"The job {name} has no schedule to pause.",
                why=f"It runs {self.jobs[name].when}.",
                next_step="`moescope job list` shows the jobs with a schedule.",
            )
        return self.ledger.pause(name, paused=paused, author=author, reason=reason)

    def known(self, name: str) -> Job:
        """The job of that name.

        Raises:
            InputError: There is none.
        """
        job = self.jobs.get(name)
        if job is None:
            raise InputError(
                f"There is no job {name!r}.", next_step=f"Jobs: {', '.join(sorted(self.jobs))}."
            )
        return job

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait for the run that is going on, at most so long; whether it has ended."""
        idle = self._running.acquire(timeout=seconds)
        if idle:
            self._running.release()
        return idle

    def _run(self, job: Job, run: Run) -> tuple[RunState, dict[str, Any]]:
        try:
            result = job.run(self._context) if job.run is not None else JobResult()
            state, detail = result.state, dict(result.detail)
        except InsufficientDataError as error:
            state, detail = RunState.NOTHING, _words(error)
        except Exception as error:  # noqa: BLE001 (kept in the row; the owner goes on)
            state, detail = RunState.FAILED, _words(error)
            self._log(f"job {job.name} failed: {error}")
        self.ledger.end(run, state, detail)
        return state, detail


def _words(error: Exception) -> dict[str, Any]:
    if isinstance(error, MoescopeError):
        parts = {"error": error.what, "why": error.why, "next_step": error.next_step}
        return {name: text for name, text in parts.items() if text}
    return {"error": f"{type(error).__name__}: {error}"}
