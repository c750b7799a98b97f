"""The last step windows of a run: they close when its recorder is closed, and only when whole."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.watched_engine import WatchedEngine, routes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from moescope.producers import Recorder

TOKENS = 3


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[WatchedEngine]:
    """A process that trains, with an agent and a store."""
    made = WatchedEngine(tmp_path)
    yield made
    made.close()


def train(
    engine: WatchedEngine,
    steps: Iterable[int],
    recorder: Recorder | None = None,
    phase: str = "train",
) -> None:
    """One sequence per optimizer step."""
    for step in steps:
        (recorder or engine.recorder).record(
            f"{phase}-{step}", np.arange(TOKENS), routes(range(TOKENS)), phase, step=step
        )
        engine.clock.sleep(0.1)


def closed(engine: WatchedEngine, size: int = 4) -> list[tuple[Any, ...]]:
    """First step, rows seen and the reason of the step windows that closed."""
    return engine.rows(
        "SELECT start, seen, close_reason FROM windows WHERE window_kind = 'step'"
        f" AND size = {size} AND layer = 1 AND scope_kind = 'all' AND start >= 0"
        " AND phase = 'train' ORDER BY start"
    )


@pytest.mark.parametrize("beside", [True, False])
def test_the_last_window_closes_with_the_recorder(engine: WatchedEngine, *, beside: bool) -> None:
    """Also when all of the run is read at once: with its last step done, its windows are whole."""
    train(engine, range(8))
    if beside:
        engine.roll_up()
        assert [start for start, _, _ in closed(engine)] == [0, 2]
    engine.recorder.close()
    engine.roll_up()
    assert closed(engine) == [(start, 4 * TOKENS, "step_passed") for start in (0, 2, 4)]


def test_an_agent_that_starts_anew_tells_the_end(engine: WatchedEngine) -> None:
    """All rows were shipped by an agent that is gone, and the next one finds a closed ring."""
    train(engine, range(8))
    engine.roll_up()
    engine.restart_agent()
    engine.recorder.close()
    engine.restart_agent()
    engine.roll_up()
    assert [start for start, _, _ in closed(engine)] == [0, 2, 4]


def test_an_agent_that_is_not_flushed_tells_the_end(engine: WatchedEngine) -> None:
    """An agent beside the run needs no order to say that the run is over."""
    train(engine, range(8))
    engine.recorder.close()
    while engine.agent.run_once():
        pass
    engine.roll_up()
    assert [start for start, _, _ in closed(engine)] == [0, 2, 4]


def test_a_window_that_is_partly_filled_stays_open(engine: WatchedEngine) -> None:
    """A run that ends within a window does not make it pass for whole."""
    train(engine, range(7))
    engine.recorder.close()
    engine.roll_up()
    assert [start for start, _, _ in closed(engine)] == [0, 2]


def test_an_evaluation_after_the_last_step_is_not_one_more(engine: WatchedEngine) -> None:
    """It has the number of the step that would follow: that one was never trained."""
    train(engine, range(7))
    train(engine, [7], phase="eval")
    engine.recorder.close()
    engine.roll_up()
    assert [start for start, _, _ in closed(engine)] == [0, 2]


def test_an_evaluation_does_not_keep_the_last_step_open(engine: WatchedEngine) -> None:
    """What was evaluated before the last step was trained hides nothing of it."""
    train(engine, range(7))
    train(engine, [7], phase="eval")
    train(engine, [7])
    engine.recorder.close()
    engine.roll_up()
    assert [start for start, _, _ in closed(engine)] == [0, 2, 4]


@pytest.mark.parametrize("ending", ["error", "nothing closes it"])
def test_a_run_that_fails_does_not_end_its_last_step(engine: WatchedEngine, ending: str) -> None:
    """What an error interrupted may lack micro-batches: its step is not taken for done."""
    train(engine, range(8))
    if ending == "error":
        with pytest.raises(ZeroDivisionError), engine.recorder:
            raise ZeroDivisionError
    else:
        engine.recorders.clear()
        del engine.recorder
        gc.collect()
    engine.roll_up()
    assert [start for start, _, _ in closed(engine)] == [0, 2]


def test_a_run_that_goes_on_holds_its_windows_again(engine: WatchedEngine) -> None:
    """A resumed run is one more recorder of the node: its steps are as open as before."""
    train(engine, range(5))
    engine.recorder.close()
    engine.roll_up()
    assert [start for start, _, _ in closed(engine)] == [0]
    again = engine.start()
    train(engine, range(5, 8), again)
    engine.roll_up()
    assert [start for start, _, _ in closed(engine)] == [0, 2]
    again.close()
    engine.roll_up()
    assert [start for start, _, _ in closed(engine)] == [0, 2, 4]


def test_a_rank_that_ended_waits_for_the_slowest(engine: WatchedEngine) -> None:
    """Two ranks of one run: the window closes when both are done with its last step."""
    slow = engine.start()
    train(engine, range(8))
    train(engine, range(7), slow)
    engine.recorder.close()
    engine.roll_up()
    assert [start for start, _, _ in closed(engine)] == [0, 2]
    train(engine, [7], slow)
    slow.close()
    engine.roll_up()
    assert closed(engine) == [(start, 8 * TOKENS, "step_passed") for start in (0, 2, 4)]


def test_serving_tells_no_end_of_steps(engine: WatchedEngine) -> None:
    """An engine that never trained ends without a word about steps."""
    engine.recorder.record("a", np.arange(TOKENS), routes(range(TOKENS)), "decode")
    engine.ship()
    before = engine.agent.counters().shipped.batches
    engine.recorder.close()
    while engine.agent.run_once():
        pass
    assert engine.agent.counters().shipped.batches == before
