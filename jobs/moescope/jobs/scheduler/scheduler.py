"""The clock that starts jobs: APScheduler inside of the owner."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from moescope.jobs.scheduler.schedule import DAY_US, Daily

if TYPE_CHECKING:
    from collections.abc import Callable

    from apscheduler.triggers.base import BaseTrigger

    from moescope.core.clock import Clock
    from moescope.jobs.scheduler.job import Job
    from moescope.jobs.scheduler.runner import JobRunner
    from moescope.jobs.scheduler.schedule import Schedule

MISFIRE_GRACE_SECONDS: Final = DAY_US // 2_000_000
"""Half of an interval: a machine that slept through the planned time still runs the job."""
DRAIN_SECONDS: Final = 30.0


class Scheduler:
    """Starts the jobs with a schedule, at their times, on one thread beside the commits.

    The schedule itself lives in memory and comes from the settings; what has run is in
    `job_runs`, so a restarted owner neither repeats a run nor loses one: a planned time that
    passed while no owner ran is caught up within half a day, once the job has run before.

    Args:
        runner: Runs them.
        clock: For looking at what was missed.
        log: Told of what people should know.
    """

    def __init__(self, runner: JobRunner, clock: Clock, log: Callable[[str], None]) -> None:
        self._runner = runner
        self._clock = clock
        self._log = log
        # What it has to say is said in job_runs; its own warnings would reach standard error.
        logging.getLogger("apscheduler").setLevel(logging.CRITICAL)
        self._scheduler = BackgroundScheduler(
            jobstores={"default": MemoryJobStore()},
            executors={"default": ThreadPoolExecutor(1)},
            job_defaults={
                "coalesce": True,
                "max_instances": 1,
                "misfire_grace_time": MISFIRE_GRACE_SECONDS,
            },
            timezone=UTC,
        )

    def start(self) -> None:
        """Close what a dead owner left open, and begin."""
        for name in self._runner.ledger.abandon_runs_of_dead_owners():
            self._log(f"job {name}: its last run was abandoned, since its owner ended")
        for job in self._runner.jobs.values():
            if job.schedule is not None:
                at_once: dict[str, Any] = (
                    {"next_run_time": datetime.now(UTC)} if self.is_missed(job) else {}
                )
                self._scheduler.add_job(
                    self._fire,
                    _trigger(job.schedule),
                    args=[job.name],
                    id=job.name,
                    **at_once,
                )
        self._scheduler.start()

    def is_missed(self, job: Job) -> bool:
        """Whether the newest planned time passed without an owner, not too long ago."""
        last_us = self._runner.ledger.last_scheduled_us(job.name)
        if job.schedule is None or last_us is None:
            return False
        now_us = self._clock.now_us()
        due_us = job.schedule.latest(now_us)
        return last_us < due_us and now_us - due_us <= MISFIRE_GRACE_SECONDS * 1_000_000

    def close(self) -> None:
        """Start nothing any more, and wait for the run that is going on, up to 30 s."""
        self._scheduler.pause()
        drained = self._runner.wait_until_idle(DRAIN_SECONDS)
        self._scheduler.shutdown(wait=drained)
        if not drained:
            self._log("a job is still running; the next owner will call its run abandoned")

    def _fire(self, name: str) -> None:
        try:
            self._runner.run_due(name)
        except Exception as error:  # noqa: BLE001 (a fenced or full store: the next time tries again)
            self._log(f"job {name} could not be run: {error}")


def _trigger(schedule: Schedule) -> BaseTrigger:
    if isinstance(schedule, Daily):
        return CronTrigger(hour=schedule.hour, minute=schedule.minute, timezone=UTC)
    return IntervalTrigger(seconds=schedule.seconds, timezone=UTC)
