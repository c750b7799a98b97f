from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.rings import START_US, ids_of, logged, rows_of, small_recorder

from moescope.core.batchlog import WriterSettings
from moescope.core.clock import ManualClock, SystemClock
from moescope.core.errors import SettingsError
from moescope.core.vocabulary import Fidelity
from moescope.producers.agent import Agent, AgentSettings
from moescope.producers.recording.budget import PERIOD_SECONDS, Budget, Rung, ladder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FULL = ladder(Fidelity.FULL, 1.0)


class Load:
    """An engine whose recording costs a share of its time that depends on the rung."""

    def __init__(self, allowed: float, cost_of_all: float) -> None:
        self.now = 1_000.0
        self.budget = Budget(allowed, FULL, self.now)
        self.cost_of_all = cost_of_all
        self.seen: list[tuple[float, Rung]] = [(self.now, self.budget.rung)]

    def run(self, seconds: float) -> None:
        """Let it run, looking once a second."""
        for _ in range(int(seconds)):
            rung = self.budget.rung
            share = 0.0 if rung.is_paused else self.cost_of_all * rung.sampling_ratio
            self.budget.spend(share)
            self.now += 1.0
            if self.budget.judge(self.now):
                self.seen.append((self.now, self.budget.rung))

    def time_at(self, rung: Rung) -> float:
        """Seconds that it spent on a rung so far."""
        ends = [began for began, _ in self.seen[1:]] + [self.now]
        return sum(
            end - began for (began, each), end in zip(self.seen, ends, strict=True) if each == rung
        )


def test_the_ladder_goes_from_all_to_nothing() -> None:
    """Fewer requests, then counts of all, then nothing: in this order from where one begins."""
    assert [(rung.fidelity.name, rung.sampling_ratio, rung.is_paused) for rung in FULL] == [
        ("FULL", 1.0, False),
        ("SAMPLED", 0.5, False),
        ("SAMPLED", 0.25, False),
        ("SAMPLED", 0.125, False),
        ("COUNTS", 1.0, False),
        ("COUNTS", 1.0, True),
    ]
    assert [rung.sampling_ratio for rung in ladder(Fidelity.SAMPLED, 0.5)][:3] == [0.5, 0.25, 0.125]
    assert [rung.is_paused for rung in ladder(Fidelity.COUNTS, 1.0)] == [False, True]


def test_within_the_budget_nothing_changes() -> None:
    """Recording that is cheap enough is left alone."""
    load = Load(allowed=0.01, cost_of_all=0.009)
    load.run(10_000)
    assert len(load.seen) == 1


def test_over_the_budget_less_is_recorded_and_stays_so() -> None:
    """It settles on the first rung that fits, and does not swing: a trial waits ever longer."""
    load = Load(allowed=0.01, cost_of_all=0.03)
    load.run(4 * 3_600)
    assert load.time_at(FULL[2]) > 0.95 * 4 * 3_600
    assert load.budget.rung in {FULL[1], FULL[2]}
    assert len(load.seen) < 20


def test_more_is_recorded_again_when_there_is_time_again() -> None:
    """A peak that has passed leaves no trace."""
    load = Load(allowed=0.01, cost_of_all=0.2)
    load.run(60)
    assert load.budget.rung.is_paused or load.budget.rung.fidelity is Fidelity.COUNTS
    load.cost_of_all = 0.001
    load.run(3_600)
    assert load.budget.rung == FULL[0]
    assert not load.budget.is_reduced


def test_each_trial_that_fails_doubles_the_wait_up_to_an_hour() -> None:
    """Fidelity swings ever more rarely, and is tried again each hour at least."""
    load = Load(allowed=0.01, cost_of_all=0.0199)  # half of the requests: just below the budget
    load.budget = Budget(0.01, (FULL[0], FULL[-1]), load.now)  # all, or nothing at no cost
    load.seen = [(load.now, load.budget.rung)]
    load.run(20 * 3_600)
    began = [at for at, rung in load.seen if rung.is_paused]
    tried = [at for at, rung in load.seen[1:] if not rung.is_paused]
    waits = [trial - down for down, trial in zip(began, tried, strict=False)]
    expected = [60, 120, 240, 480, 960, 1_920, *[3_600] * 20]
    assert len(waits) > 15
    for wait, least in zip(waits, expected, strict=False):
        assert least <= wait < least + PERIOD_SECONDS


@pytest.mark.parametrize(("share", "goes_up"), [(0.45, True), (0.55, False), (0.99, False)])
def test_more_is_tried_below_half_of_the_budget_only(share: float, goes_up: bool) -> None:
    """The rung above costs about twice as much: from half of the budget on it would fail."""
    budget = Budget(0.01, FULL, 0.0)
    budget.spend(1.0)
    assert budget.judge(PERIOD_SECONDS)
    now = PERIOD_SECONDS
    steps = 0
    while now < 600:
        now += PERIOD_SECONDS
        budget.spend(share * 0.01 * PERIOD_SECONDS)
        steps += budget.judge(now)
    assert budget.is_reduced is not goes_up
    assert steps == int(goes_up)


def test_a_single_call_does_not_change_anything() -> None:
    """Shares are of periods, smoothed: a short peak between cheap periods is no reason."""
    load = Load(allowed=0.01, cost_of_all=0.001)
    load.run(50)
    load.budget.spend(0.018 * PERIOD_SECONDS)
    load.run(50)
    assert len(load.seen) == 1


def test_a_recorder_over_its_budget_says_so(tmp_path: Path) -> None:
    """Each step is in the header of the batches behind it, with the reason; rows stay right."""
    clock = ManualClock(START_US)
    with (
        small_recorder(tmp_path, clock=clock, cpu_budget=0.01) as recorder,
        Agent(
            tmp_path, tmp_path / "log", clock=clock,
            settings=AgentSettings(log=WriterSettings(durability="none")),
        ) as agent,
    ):  # fmt: skip
        names = [f"request-{number}" for number in range(64)]
        offered = 0
        for second in range(40):
            recorder.record(names, np.full(64, second), ids_of(range(64)), "decode")
            offered += 64
            recorder.spend(0.5)
            agent.run_once(flush=True)
            clock.sleep(1.0)
        agent.drain()
        counters = recorder.counters()
    headers = [entry.batch.header for entry in logged(tmp_path / "log")]
    steps = list(dict.fromkeys((header.fidelity.name, header.sampling_ratio) for header in headers))
    assert steps == [
        ("FULL", 1.0), ("SAMPLED", 0.5), ("SAMPLED", 0.25), ("SAMPLED", 0.125), ("COUNTS", 1.0),
    ]  # fmt: skip
    for header in headers:
        reduced = header.fidelity is not Fidelity.FULL
        assert header.labels.get("fidelity_reason") == ("budget" if reduced else None)
        assert header.labels.get("unseen_reason") == (
            "budget" if header.drops.unseen_rows else None
        )
    assert sum(header.drops.unseen_rows for header in headers) == counters.unseen_rows > 0
    assert counters.disabled == "budget"
    assert counters.recorded_rows + counters.unsampled_rows + counters.unseen_rows == offered


def test_what_is_known_of_requests_outlasts_a_spent_budget(tmp_path: Path) -> None:
    """A request that begins while the budget leaves no time for rows has its facts afterwards."""
    clock = ManualClock(START_US)
    with (
        small_recorder(tmp_path, clock=clock, cpu_budget=0.01) as recorder,
        Agent(
            tmp_path, tmp_path / "log", clock=clock,
            settings=AgentSettings(log=WriterSettings(durability="none")),
        ) as agent,
    ):  # fmt: skip
        while recorder.is_recording:
            recorder.spend(0.5)
            clock.sleep(1.0)
        assert recorder.counters().disabled == "budget"
        recorder.begin_request("gone")
        recorder.end_request("gone")
        recorder.begin_request("a", 7, task="the task", scene="the scene")
        recorder.record("a", np.array([7]), ids_of([7]), "decode")
        assert recorder.counters().unseen_rows == 1
        assert recorder.set_fidelity("full")
        assert recorder.counters().running_requests == 1
        recorder.record("a", np.array([8]), ids_of([8]), "decode")
        agent.drain()
    (row,) = rows_of(logged(tmp_path / "log"))
    assert (row.request, row.position, row.task, row.scene) == ("a", 8, "the task", "the scene")


class FastClock(SystemClock):
    """The machine's clock, two hundred times as fast: shares of time are what they are."""

    def monotonic(self) -> float:
        """Seconds."""
        return super().monotonic() * 200


def test_a_recorder_measures_its_own_time(tmp_path: Path) -> None:
    """An engine that does nothing but record is over any budget, and can ask for all again."""
    with small_recorder(tmp_path, clock=FastClock(), cpu_budget=0.01) as recorder:
        position = 0
        while recorder.fidelity is Fidelity.FULL:
            recorder.record("a", np.array([position]), ids_of([position]), "decode")
            position += 1
        reduced = recorder.profile
        assert recorder.set_fidelity("full")
        restored = recorder.profile
    assert (reduced.fidelity, reduced.labels) == (Fidelity.SAMPLED, {"fidelity_reason": "budget"})
    assert (restored.fidelity, restored.labels) == (Fidelity.FULL, {})


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, "much", True, float("nan")])
def test_a_wrong_budget_is_refused(tmp_path: Path, share: float) -> None:
    """A budget that is no share is an error at the start."""
    with pytest.raises(SettingsError, match="cpu_budget"):
        small_recorder(tmp_path, cpu_budget=share)


def test_time_that_another_thread_spends_meanwhile_is_counted(tmp_path: Path) -> None:
    """A probe of another thread tells of its time while a call is measured: both count."""

    class Probed(ManualClock):
        meanwhile: Callable[[], object] | None = None

        def monotonic(self) -> float:
            if self.meanwhile is not None:
                self.meanwhile()
            return super().monotonic()

    clock = Probed(START_US)
    with small_recorder(tmp_path, clock=clock, cpu_budget=0.5) as recorder:
        budget = recorder._pausing.budget  # noqa: SLF001 - what it has added up
        assert budget is not None
        clock.meanwhile = lambda: recorder.spend(0.25)
        recorder.record("a", [0], ids_of([0]), "decode")
        clock.meanwhile = None
        assert budget.spent == pytest.approx(0.5)
