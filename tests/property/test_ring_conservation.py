from __future__ import annotations

import tempfile
from collections import Counter
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rings import (
    EXPERTS,
    START_US,
    assert_dense,
    ids_of,
    logged,
    lost_rows,
    rows_of,
    small_recorder,
)

from moescope.core.batchlog import WriterSettings
from moescope.core.clock import ManualClock
from moescope.producers.agent import Agent, AgentSettings

if TYPE_CHECKING:
    from collections.abc import Callable

REQUESTS = ("a", "b", "c")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("record"), st.sampled_from(REQUESTS), st.integers(1, 400)),
        st.tuples(st.just("mixed"), st.integers(1, 5), st.integers(1, 40)),
        st.tuples(st.just("end"), st.sampled_from(REQUESTS), st.booleans()),
        st.tuples(st.just("ship"), st.booleans()),
        st.tuples(st.just("restart agent")),
        st.tuples(st.just("restart engine"), st.booleans()),
        st.tuples(st.just("wait"), st.integers(0, 1_500)),
        st.tuples(st.just("flood"), st.integers(20, 40)),
        st.tuples(st.just("place"), st.integers(1, 4)),
        st.tuples(st.just("miss"), st.integers(1, 9), st.sampled_from(["kernel", "layout"])),
    ),
    min_size=1,
    max_size=15,
)


class Fleet:
    """One node: its recorder, its agent, and what was recorded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "log"
        self.clock = ManualClock(START_US)
        self.recorder = small_recorder(folder, clock=self.clock)
        self.agent = self.new_agent()
        self.recorded: dict[int, tuple[str, int, int]] = {}
        self.version = 0
        self.missed: Counter[str] = Counter()
        self.positions = dict.fromkeys(REQUESTS, 0)

    def new_agent(self) -> Agent:
        """A fresh agent with small batches."""
        settings = AgentSettings(batch_bytes=20_000, log=WriterSettings(durability="none"))
        return Agent(self.folder, self.root, clock=self.clock, settings=settings)

    def record(self, names: list[str]) -> None:
        """One row for each name, in order."""
        start = len(self.recorded)
        positions = []
        for offset, name in enumerate(names):
            positions.append(self.positions[name])
            self.recorded[start + offset] = (name, self.positions[name], self.version)
            self.positions[name] += 1
        serials = range(start, start + len(names))
        self.recorder.record(
            names, positions, ids_of(serials), "decode", token_ids=np.array(serials)
        )

    def end(self, name: str, last_of_task: bool) -> None:
        """A request is over."""
        self.recorder.end_request(name, last_of_task=last_of_task)
        self.positions[name] = 0

    def restart_agent(self) -> None:
        """The agent loses its memory."""
        self.agent.close()
        self.agent = self.new_agent()

    def restart_engine(self, is_closed: bool) -> None:
        """The engine stops, or is killed, and starts again."""
        if not is_closed:
            ring = self.recorder._ring  # noqa: SLF001 - as when the process is killed
            assert ring is not None
            ring.abandon()
        self.recorder.close()
        self.clock.sleep(0.01)
        self.recorder = small_recorder(self.folder, clock=self.clock)
        self.positions = dict.fromkeys(REQUESTS, 0)
        self.version = 0

    def place(self, ranks: int) -> None:
        """Experts move: rows from now on come under another version."""
        self.version += 1
        assert self.recorder.set_placement(np.arange(EXPERTS) % ranks, self.version)

    def miss(self, rows: int, reason: str) -> None:
        """Nobody saw some rows."""
        self.missed[reason] += rows
        self.recorder.miss(rows, reason)

    def flood(self, calls: int) -> None:
        """More than the ring holds."""
        for _ in range(calls):
            self.record(["a"] * 500)

    def step(self, kind: str, *arguments: Any) -> None:
        """One thing that happens."""
        happen: dict[str, Callable[..., object]] = {
            "record": lambda name, rows: self.record([name] * rows),
            "mixed": lambda names, passes: self.record([*REQUESTS[:names]] * passes),
            "end": self.end,
            "ship": lambda flush: self.agent.run_once(flush=flush),
            "restart agent": self.restart_agent,
            "restart engine": self.restart_engine,
            "wait": lambda milliseconds: self.clock.sleep(milliseconds / 1_000),
            "flood": self.flood,
            "place": self.place,
            "miss": self.miss,
        }
        happen[kind](*arguments)


@given(STEPS)
@settings(max_examples=20)
def test_every_row_is_shipped_once_or_counted_as_lost(
    steps: list[tuple[Any, ...]],
) -> None:
    """Recorded = shipped + reported lost, each under its terms, whatever happens in which order."""
    with tempfile.TemporaryDirectory() as name:
        fleet = Fleet(Path(name))
        for step in steps:
            fleet.step(*step)
        fleet.recorder.close()  # so that counts without rows are told now
        fleet.agent.drain()
        batches = logged(fleet.root)
        rows = [row for row in rows_of(batches) if not row.is_context]
        serials = [row.serial for row in rows]
        assert len(set(serials)) == len(serials)
        assert len(serials) + lost_rows(batches) == len(fleet.recorded)
        for row in rows:
            version = batches[row.batch].batch.header.expert_map_version
            assert (row.request, row.position, version) == fleet.recorded[row.serial]
        told: Counter[str] = Counter()
        for header in [
            entry.batch.header for entry in batches if entry.batch.header.drops.unseen_rows
        ]:
            told[header.labels["unseen_reason"]] += header.drops.unseen_rows
        assert told == fleet.missed
        assert_dense(batches)
        for _, of_batch in groupby(rows, key=attrgetter("batch")):
            times = [row.event_time_us for row in of_batch]
            assert max(times) - min(times) <= 1_000_000
        fleet.agent.close()
