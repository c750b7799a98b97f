"""Noise in words of a ring's header: that ring is lost, no other, and nothing is made up."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.rings import START_US, ids_of, logged, lost_rows, rows_of, small_recorder

from moescope.core.batchlog import WriterSettings
from moescope.core.clock import ManualClock
from moescope.producers.agent import Agent, AgentSettings
from moescope.producers.recording.folder import UNREAD_RINGS_KEPT
from moescope.producers.ring.layout import HEADER_BYTES, State
from moescope.producers.ring.reader import RingReader
from moescope.producers.ring.unseen import count_word
from moescope.producers.ring.writer import RingWriter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from moescope.producers import Recorder

ALL_ONES = 2**64 - 1


class Pair:
    """Two nodes of one folder, of which one gets noise, and their agent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "log"
        self.clock = ManualClock(START_US)
        self.good = self.new_recorder("good")
        self.bad = self.new_recorder("bad")
        self.agent = self.new_agent()

    def new_recorder(self, node: str) -> Recorder:
        """A recorder on the pair's clock."""
        return small_recorder(self.folder, node=node, clock=self.clock)

    def new_agent(self) -> Agent:
        """An agent as it is after a start."""
        settings = AgentSettings(log=WriterSettings(durability="none"))
        return Agent(self.folder, self.root, clock=self.clock, settings=settings)

    def record(self, recorder: Recorder, *serials: int) -> None:
        """Rows with these serial numbers."""
        recorder.record(
            "a", serials, ids_of(serials), "decode", token_ids=np.array(serials, np.uint64)
        )

    def ship(self) -> None:
        """All that the agent would do within five seconds."""
        for _ in range(5):
            self.clock.sleep(1)
            self.agent.run_once(flush=True)

    def told(self, node: str) -> tuple[int, int, int]:
        """Lost, rejected and unseen rows in a node's headers."""
        batches = logged(self.root, node)
        drops = [batch.header.drops for batch, *_ in batches]
        return (
            lost_rows(batches),
            sum(each.rejected_rows for each in drops),
            sum(each.unseen_rows for each in drops),
        )

    def serials(self, node: str) -> list[int]:
        """Serial numbers of a node's rows in the log, without repetitions."""
        return [row.serial for row in rows_of(logged(self.root, node)) if not row.is_context]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Both nodes have rows in the log, and the bad one two refused and three unseen ones."""
    made = Pair(tmp_path)
    made.record(made.good, 0, 1)
    made.record(made.bad, 0, 1)
    made.bad.record("a", [-1, -2], ids_of([0, 1]), "decode")
    made.bad.miss(3, "why")
    made.ship()
    assert made.told("bad") == (0, 2, 3)
    yield made
    made.agent.close()
    made.good.close()
    made.bad.close()


def ring_of(recorder: Recorder) -> RingWriter:
    """The ring that a recorder writes."""
    ring = recorder._ring  # noqa: SLF001 - what is damaged is its file
    assert ring is not None
    return ring


def disturb(recorder: Recorder, word: int, value: int) -> None:
    """Another value in a word of a ring's file."""
    with ring_of(recorder).path.open("r+b") as file:
        file.seek(word * 8)
        file.write(value.to_bytes(8, "little"))


NOISE = [
    pytest.param(word, ALL_ONES, id=f"{word.name}: all ones")
    for word in State
    if word is not State.BUSY  # which the next call sets right
] + [
    pytest.param(State.REJECTED, 2**40 + 1, id="more rejected rows than there are"),
    pytest.param(State.REJECTED, 1, id="fewer rejected rows than before"),
    pytest.param(State.UNSEEN, 2**40 + 1, id="more unseen rows than there are"),
    pytest.param(State.UNSEEN, 5, id="unseen rows that no reason has"),
    pytest.param(State.UNSEEN, 1, id="fewer unseen rows than before"),
    pytest.param(count_word(0), 2, id="fewer unseen rows of a reason"),
    pytest.param(count_word(3), ALL_ONES, id="unseen rows of no reason"),
    pytest.param(State.ROWS, 100, id="more rows than the bytes before the head hold"),
    pytest.param(State.ROWS, 1, id="fewer rows than before"),
    pytest.param(State.HEAD, 8, id="a head behind the reader"),
    pytest.param(State.HEAD, 1_001, id="a head between two frames"),
    pytest.param(State.TAIL, 8, id="a tail amid a segment"),
    pytest.param(State.CLOSED, 3, id="no way of closing"),
]


@pytest.mark.parametrize(("word", "value"), NOISE)
def test_noise_costs_its_ring_and_no_other(
    pair: Pair, word: int, value: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A word that no writer stores sets the ring aside, by name and with a next step.

    Nothing of it is told, and the other node's rows go on.
    """
    path = ring_of(pair.bad).path
    disturb(pair.bad, word, value)
    pair.record(pair.good, 2, 3)
    with caplog.at_level(logging.ERROR):
        pair.ship()
    assert pair.serials("good") == [0, 1, 2, 3]
    assert (pair.serials("bad"), pair.told("bad")) == ([0, 1], (0, 2, 3))
    assert pair.agent.counters().unreadable_rings == 1
    assert path.with_name(path.name + ".damaged").exists()
    (line,) = [record.getMessage() for record in caplog.records]
    assert path.name in line
    assert "Why: In its header, " in line
    assert "Next: Restart the engine" in line


@pytest.mark.parametrize("word", [State.REJECTED, count_word(0)])
def test_noise_shows_to_an_agent_that_was_restarted(pair: Pair, word: int) -> None:
    """What batches told before the restart cannot have become less."""
    pair.agent.close()
    disturb(pair.bad, word, 1)
    if word != State.REJECTED:
        disturb(pair.bad, State.UNSEEN, 1)
    with closing(pair.new_agent()) as pair.agent:
        pair.ship()
        assert pair.agent.counters().unreadable_rings == 1
    assert pair.told("bad") == (0, 2, 3)


def test_rows_of_a_ring_that_has_ended_are_not_made_up(pair: Pair) -> None:
    """More rows than were read are no loss where no byte is left that could hold them."""
    ring = ring_of(pair.bad)
    path, room = ring.path, ring.head // 2
    ring.abandon()
    with path.open("r+b") as file:
        file.seek(State.ROWS * 8)
        file.write((2 + room // 20).to_bytes(8, "little"))
    pair.ship()
    assert pair.agent.counters().unreadable_rings == 1
    assert pair.told("bad") == (0, 2, 3)


def test_rows_behind_the_last_valid_frame_are_still_a_loss(pair: Pair) -> None:
    """What is lost to damaged frames at a ring's end is counted, as the bytes there can hold it."""
    ring = ring_of(pair.bad)
    place = HEADER_BYTES + ring.head
    pair.record(pair.bad, 2, 3, 4)
    with ring.path.open("r+b") as file:
        file.seek(place)
        file.write(bytes(64))
    ring.abandon()
    pair.ship()
    assert pair.agent.counters().unreadable_rings == 0
    assert (pair.serials("bad"), pair.told("bad")) == ([0, 1], (3, 2, 3))


def test_a_reason_that_is_no_text_is_left_out(pair: Pair) -> None:
    """The rows count without the noise that was their reason."""
    pair.bad.miss(4, "reason")
    with ring_of(pair.bad).path.open("r+b") as file:
        file.seek(count_word(1) * 8 + 8)
        file.write((174).to_bytes(2, "little") + b"\xff" * 174)
    pair.ship()
    assert pair.agent.counters().unreadable_rings == 0
    assert pair.told("bad") == (0, 2, 7)
    labels = [batch.header.labels for batch, *_ in logged(pair.root, "bad")]
    assert [each["unseen_reason"] for each in labels if "unseen_reason" in each] == ["why"]


def test_a_ring_that_makes_no_batch_costs_no_other(pair: Pair) -> None:
    """Whatever else a header says that no batch can, the agent goes on with other rings."""
    labels = {str(number): "x" for number in range(256)}
    profile = replace(pair.bad.profile, node="odd", labels=labels).to_bytes()
    geometry = ring_of(pair.bad).geometry
    odd = RingWriter(pair.folder, 9, profile, geometry, created_at_us=START_US)
    odd.miss(4, "one label too many")
    pair.record(pair.good, 2)
    pair.ship()
    odd.close()
    assert pair.agent.counters().unreadable_rings == 1
    assert pair.serials("good") == [0, 1, 2]


@pytest.mark.parametrize("noise", [ALL_ONES, 2**62, 0])
def test_a_recorder_starts_beside_dead_rings_with_noise(tmp_path: Path, noise: int) -> None:
    """It neither fails nor claims rows of older rings that nobody recorded."""
    clock = ManualClock(START_US)
    for _ in range(UNREAD_RINGS_KEPT + 2):
        recorder = small_recorder(tmp_path, clock=clock)
        recorder.record("a", [0], ids_of([0]), "decode")
        disturb(recorder, State.ROWS, noise)
        recorder.close()
        clock.sleep(1)
    with (
        small_recorder(tmp_path, clock=clock) as recorder,
        closing(RingReader(ring_of(recorder).path)) as reader,
    ):
        assert reader.inherited_rows == 0


def test_counts_end_where_noise_begins(pair: Pair) -> None:
    """An engine that misses more rows than there are does not lose its ring."""
    for _ in range(3):
        pair.bad.miss(2**40, "why")
    pair.ship()
    assert pair.agent.counters().unreadable_rings == 0
    assert pair.told("bad") == (0, 2, 2**40)
