"""What a recorder does where engine, probe or operator do what they should not."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.rings import EXPERTS, START_US, ids_of, logged, small_recorder

from moescope.core.batchlog import WriterSettings
from moescope.core.clock import ManualClock
from moescope.core.errors import SettingsError
from moescope.core.vocabulary import Phase
from moescope.producers.agent import Agent, AgentSettings
from moescope.producers.terms import UNSEEN_REASON

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from moescope.producers import Recorder

ROUND_ROBIN = np.arange(EXPERTS) % 4
HALVES = np.arange(EXPERTS) // 4
QUICK = AgentSettings(log=WriterSettings(durability="none"))


@pytest.fixture
def clock() -> ManualClock:
    """Time that the test moves."""
    return ManualClock(START_US)


@pytest.fixture
def recorder(tmp_path: Path, clock: ManualClock) -> Iterator[Recorder]:
    """A recorder whose folder is the test's."""
    opened = small_recorder(tmp_path, clock=clock)
    yield opened
    opened.close()


def record(recorder: Recorder, first: int, rows: int, **more: Any) -> None:
    """Rows of one request."""
    positions = np.arange(first, first + rows)
    recorder.record("a", positions, ids_of(positions), "decode", **more)


def test_a_version_of_the_placement_is_one_table_and_rises(
    recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    """Windows are told apart by version: rows of two placements must not meet in one."""
    assert recorder.set_placement(ROUND_ROBIN, 3)
    assert recorder.set_placement(ROUND_ROBIN.tolist(), 3)  # said again
    with caplog.at_level(logging.WARNING, logger="moescope.producers"):
        for _ in range(2):
            assert not recorder.set_placement(HALVES, 3)
            assert not recorder.set_placement(ROUND_ROBIN, 2)
            assert not recorder.set_placement(ROUND_ROBIN, 3, ranks=8)
    assert len(caplog.records) == 2
    assert recorder.profile.expert_map_version == 3
    assert recorder.set_placement(HALVES, 4)
    assert recorder.profile.expert_map_version == 4


def test_the_first_placement_may_have_the_version_that_was_given_at_the_start(
    tmp_path: Path,
) -> None:
    """An engine names its map's version when it starts, and shows the table afterwards."""
    with small_recorder(tmp_path, expert_map_version=5) as recorder:
        assert not recorder.set_placement(HALVES, 4)
        assert recorder.set_placement(HALVES, 5)
        assert not recorder.set_placement(ROUND_ROBIN, 5)


def test_rows_without_a_turn_at_the_ring_are_unseen(
    recorder: Recorder, clock: ManualClock, tmp_path: Path
) -> None:
    """Nothing was wrong with them: they are missing, and the batches say why; padding is not."""
    padding = np.array([False] * 5 + [True] * 2)
    with Agent(tmp_path, tmp_path / "log", clock=clock, settings=QUICK) as agent:
        record(recorder, 0, 1)
        with recorder._lock:  # noqa: SLF001 - another thread, stopped in the middle of a call
            record(recorder, 1, 7, padding=padding)
        counters = recorder.counters()
        assert (counters.rejected_rows, counters.unseen_rows) == (0, 5)
        clock.sleep(2.0)
        record(recorder, 8, 1)
        clock.sleep(2.0)
        agent.drain()
    headers = [entry.batch.header for entry in logged(tmp_path / "log")]
    told = [(header.drops.unseen_rows, header.labels.get(UNSEEN_REASON)) for header in headers]
    assert [each for each in told if each != (0, None)] == [(5, "the ring was busy")]


@pytest.mark.parametrize("wrong", [-1, 2**64, 1.0, "7"])
def test_an_impossible_incarnation_is_refused_by_name(
    tmp_path: Path,
    wrong: Any,
) -> None:
    """A wrong argument is told as such, not as an error of packing a header."""
    with pytest.raises(SettingsError, match="incarnation"):
        small_recorder(tmp_path, incarnation=wrong)
    assert not [*tmp_path.glob("*.ring*")]


def test_a_miss_of_no_number_of_rows_is_not_lost(
    recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody wanted to say that rows are missing: that much stays, and is said once."""
    bad: Any
    with caplog.at_level(logging.WARNING, logger="moescope.producers"):
        for bad in (2**40 + 1, 2**70, -1, float("nan"), "x", None, 10**5_000):
            recorder.miss(bad, "why")
    counters = recorder.counters()
    assert (counters.unseen_rows, counters.rejected_rows, counters.internal_errors) == (0, 7, 0)
    assert any("no number of rows" in line.getMessage() for line in caplog.records)
    recorder.miss(2**40, "why")
    assert recorder.counters().unseen_rows == 2**40


def test_reasons_are_one_printable_line(
    recorder: Recorder, clock: ManualClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A reason from outside forges no line of the log, and does nothing to a terminal."""
    with caplog.at_level(logging.WARNING, logger="moescope.producers"):
        recorder.miss(1, "a\nERROR b\x1b[31m\u202e")
    recorder.close()
    with Agent(tmp_path, tmp_path / "log", clock=clock, settings=QUICK) as agent:
        agent.drain()
    (entry,) = logged(tmp_path / "log")
    assert entry.batch.header.labels[UNSEEN_REASON] == "a\\nERROR b\\x1b[31m\\u202e"
    assert caplog.records[0].getMessage().isprintable()


def test_rows_after_the_ring_was_deleted_are_unseen(
    recorder: Recorder, clock: ManualClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody can read them: within a second the recorder says so, instead of counting them."""
    record(recorder, 0, 2)
    next(tmp_path.glob("*.ring")).unlink()
    clock.sleep(1.0)
    with caplog.at_level(logging.ERROR, logger="moescope.producers"):
        for first in range(2, 12, 5):
            record(recorder, first, 5)
            clock.sleep(1.0)
    counters = recorder.counters()
    assert (counters.recorded_rows, counters.unseen_rows) == (2, 10)
    assert counters.disabled == "the ring's file was deleted"
    assert not recorder.is_recording
    assert len(caplog.records) == 1
    assert not [*tmp_path.glob("*.ring")]


@pytest.mark.parametrize("bad", ["x" * 600, "\udcff", 3, None])
def test_what_else_is_known_of_a_request_outlasts_a_bad_scene_or_task(
    recorder: Recorder,
    tmp_path: Path,
    bad: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without its prompt's length a request would have no decode windows."""
    with caplog.at_level(logging.WARNING, logger="moescope.producers"):
        for _ in range(2):
            recorder.begin_request("a", 7, 2, task="t", scene=bad)
            recorder.begin_request("b", 5, 0, task=bad, scene="chat")
    recorder.record(["a", "b"], np.array([7, 5]), ids_of([7, 5]), "decode")
    recorder.close()
    with Agent(tmp_path, tmp_path / "log", settings=QUICK) as agent:
        agent.drain()
    (entry,) = logged(tmp_path / "log")
    requests = entry.batch.requests
    assert requests.tasks == ("t", "b")
    assert requests.scenes == ("unknown", "chat")
    assert requests.phase_starts[:, Phase.DECODE].tolist() == [7, 5]
    assert requests.cached_tokens.tolist() == [2, 0]
    assert len(caplog.records) == (2 if bad is not None else 1)


def test_an_agent_that_has_a_deleted_ring_open_sees_what_is_missing(
    recorder: Recorder, clock: ManualClock, tmp_path: Path
) -> None:
    """Coverage falls from then on, and the batches say why."""
    with Agent(tmp_path, tmp_path / "log", clock=clock, settings=QUICK) as agent:
        record(recorder, 0, 3)
        agent.run_once()
        next(tmp_path.glob("*.ring")).unlink()
        clock.sleep(1.0)
        record(recorder, 3, 4)
        clock.sleep(2.0)
        record(recorder, 7, 2)
        clock.sleep(10.0)
        agent.drain()
        agent.drain()
    headers = [entry.batch.header for entry in logged(tmp_path / "log")]
    assert sum(header.drops.unseen_rows for header in headers) == 6
    assert headers[-1].labels[UNSEEN_REASON] == "the ring's file was deleted"
