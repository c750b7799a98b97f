from __future__ import annotations

import json
import random
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from support.shared_rows import SHAPES, share_finisher

from moescope.core.clock import ManualClock, SystemClock
from moescope.core.errors import InputError, InsufficientDataError
from moescope.core.settings import load_settings
from moescope.jobs.scheduler.job import Job, JobContext, JobResult, RunState
from moescope.jobs.scheduler.runner import JobRunner
from moescope.jobs.scheduler.schedule import DAY_US, HOUR_US, Daily
from moescope.jobs.scheduler.scheduler import Scheduler
from moescope.storage.errors import FencedError
from moescope.storage.export import Exporter
from moescope.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from moescope.core.clock import Clock

NIGHT = 20_000 * DAY_US
"""A midnight."""
AT_THREE = Daily.at("03:00")


@dataclass
class Work:
    """Jobs that note when they ran."""

    clock: Clock
    ran: list[tuple[str, int]] = field(default_factory=list)
    raises: dict[str, Exception] = field(default_factory=dict)

    def job(self, name: str, daily: Daily | None = AT_THREE) -> Job:
        """A job of that name."""

        def run(context: JobContext) -> JobResult:
            self.ran.append((name, context.clock.now_us()))
            if name in self.raises:
                raise self.raises[name]
            return JobResult(detail={"windows": 7})

        return Job(name=name, what="Notes.", when=str(daily), schedule=daily, run=run)


@pytest.fixture
def clock() -> ManualClock:
    """Midnight."""
    return ManualClock(NIGHT)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    """An empty store."""
    with Store(tmp_path / "s.duckdb", share_finisher, SHAPES, clock=clock) as opened:
        yield opened


def runner_of(
    store: Store, clock: Clock, folder: Path, *jobs: Job, log: Callable[[str], None] = pytest.fail
) -> JobRunner:
    """A runner on a store."""
    settings = load_settings(environment={}, options={"data.directory": str(folder)})
    exporter = Exporter(store, folder / "export", clock)
    context = JobContext(store=store, settings=settings, clock=clock, exporter=exporter)
    return JobRunner(jobs, context, log)


def runs(store: Store) -> list[dict[str, Any]]:
    """Rows of `job_runs`."""
    with store.cursor() as cursor:
        found = cursor.execute("SELECT * FROM job_runs ORDER BY scheduled_for, job")
        names = [column[0] for column in found.description or []]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def test_each_planned_time_runs_once(store: Store, clock: ManualClock, tmp_path: Path) -> None:
    """Two schedulers on one store, ticking often and at odd times, never run a time twice."""
    work = Work(clock)
    jobs = [work.job("a"), work.job("b", Daily(23, 59))]
    runners = [runner_of(store, clock, tmp_path, *jobs) for _ in range(2)]
    draw = random.Random(11)
    days = 4
    ticks = sorted(draw.randrange(NIGHT, NIGHT + days * DAY_US) for _ in range(150))
    for now_us in ticks:
        clock.set_us(now_us)
        draw.choice(runners).run_due(draw.choice(["a", "b"]))
    # Planned times from the one before the first tick to the last.
    assert len(work.ran) == len(runs(store)) <= 2 * (days + 1)
    assert len({(row["job"], row["scheduled_for"]) for row in runs(store)}) == len(work.ran)
    for name, at_us in work.ran:
        others = [t for n, t in work.ran if n == name and t < at_us]
        plan = 3 * HOUR_US if name == "a" else 24 * HOUR_US - 60_000_000
        assert all((t - plan) // DAY_US < (at_us - plan) // DAY_US for t in others)
    assert {row["state"] for row in runs(store)} == {"done"}
    assert json.loads(runs(store)[0]["result_json"]) == {"windows": 7}


def test_two_threads_at_the_same_time_run_once(
    store: Store, clock: ManualClock, tmp_path: Path
) -> None:
    """The row of a run is what decides, not who looks first."""
    work = Work(clock)
    runners = [runner_of(store, clock, tmp_path, work.job("a")) for _ in range(4)]
    threads = [threading.Thread(target=runner.run_due, args=["a"]) for runner in runners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert work.ran == [("a", NIGHT)]


def test_a_job_that_fails_is_visible_and_stops_nothing(
    store: Store, clock: ManualClock, tmp_path: Path
) -> None:
    """Its row says why, somebody is told, and the others run; too little data is no failure."""
    work, told = Work(clock), list[str]()
    work.raises = {
        "broken": ZeroDivisionError("oops"),
        "early": InsufficientDataError("Too little.", next_step="Wait."),
    }
    jobs = [work.job(name) for name in ("broken", "early", "fine")]
    runner = runner_of(store, clock, tmp_path, *jobs, log=told.append)
    assert [runner.run_due(name) for name in runner.jobs] == [
        RunState.FAILED,
        RunState.NOTHING,
        RunState.DONE,
    ]
    broken, early, _ = runs(store)
    assert json.loads(broken["result_json"]) == {"error": "ZeroDivisionError: oops"}
    assert json.loads(early["result_json"]) == {"error": "Too little.", "next_step": "Wait."}
    assert told == ["job broken failed: oops"]


def test_a_paused_job_waits_for_a_person(store: Store, clock: ManualClock, tmp_path: Path) -> None:
    """Its schedule is skipped, a person can still run it, and resuming is as easy; all audited."""
    work = Work(clock)
    runner = runner_of(store, clock, tmp_path, work.job("a"), work.job("always", None))
    assert runner.pause("a", paused=True, author="ann", reason="noisy")
    assert not runner.pause("a", paused=True, author="ann", reason="again")
    assert runner.run_due("a") is None
    told = runner.run_now("a", author="ann", reason="look")
    assert told == {"job": "a", "state": "done", "windows": 7}
    assert runner.run_now("a", author="ann", reason="look again")["state"] == "done"
    assert runner.pause("a", paused=False, author="bob", reason="fixed")
    assert runner.run_due("a") is RunState.DONE
    assert [row["trigger"] for row in runs(store)] == ["schedule", "person", "person"]
    with store.cursor() as cursor:
        audit = cursor.execute("SELECT author, action FROM audit ORDER BY number").fetchall()
    assert ("ann", "job pause") in audit
    assert ("bob", "job resume") in audit
    with pytest.raises(InputError, match="no schedule"):
        runner.pause("always", paused=True, author="ann", reason="")
    with pytest.raises(InputError, match="no job 'b'"):
        runner.run_now("b", author="ann", reason="")


def test_runs_of_a_dead_owner_are_abandoned(
    store: Store, clock: ManualClock, tmp_path: Path
) -> None:
    """The next owner closes what was left open, and a fenced owner begins nothing."""
    work = Work(clock)
    old = runner_of(store, clock, tmp_path, work.job("a"))
    assert old.ledger.begin_scheduled("a", NIGHT - DAY_US)
    with Store(tmp_path / "s.duckdb", share_finisher, SHAPES, clock=clock) as second:
        new = runner_of(second, clock, tmp_path, work.job("a"))
        assert new.ledger.abandon_runs_of_dead_owners() == ["a"]
        assert new.ledger.abandon_runs_of_dead_owners() == []
        assert new.run_due("a") is RunState.DONE
        assert [row["state"] for row in runs(second)] == ["abandoned", "done"]
        clock.sleep(86_400)
        with pytest.raises(FencedError):
            old.run_due("a")
    assert len(work.ran) == 1


def test_a_missed_time_is_caught_up_when_the_owner_starts(tmp_path: Path) -> None:
    """An owner that was down at the planned time runs the job; a new store waits for its time."""
    clock = SystemClock()
    work = Work(clock)
    begun = threading.Event()
    an_hour_ago = (clock.now_us() - HOUR_US) // 60_000_000
    daily = Daily(an_hour_ago // 60 % 24, an_hour_ago % 60)

    def run(context: JobContext) -> JobResult:
        work.ran.append(("a", context.clock.now_us()))
        begun.set()
        return JobResult()

    job = Job(name="a", what="Notes.", when=str(daily), schedule=daily, run=run)
    with Store(tmp_path / "s.duckdb", share_finisher, SHAPES, clock=clock) as store:
        runner = runner_of(store, clock, tmp_path, job)
        fresh = Scheduler(runner, clock, pytest.fail)
        fresh.start()
        assert not fresh.is_missed(job)
        fresh.close()
        assert work.ran == []
        runner.ledger.begin_scheduled("a", daily.latest(clock.now_us()) - DAY_US)
        scheduler = Scheduler(runner, clock, pytest.fail)
        scheduler.start()
        assert begun.wait(30)
        scheduler.close()
        assert [row["state"] for row in runs(store)] == ["running", "done"]
    assert len(work.ran) == 1
