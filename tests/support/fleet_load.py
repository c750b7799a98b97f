"""A paced load: streams of several machines, written into live batch logs as time goes by.

By default event time runs slower than the clock, so that what takes a few seconds to recover never
comes near the ten seconds of event time after which a node or partition counts as silent: which
windows close without whom is then settled by the records alone.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from support.streams import Cut, Item, Plan, cut_stream, encode, make_stream

from moescope.core.batchlog import BatchLogWriter, WriterSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from oracles.windows_plain import Record

    from moescope.core.clock import Clock

SECOND_US = 1_000_000
USUAL_PACE = 0.4
STREAM_SECONDS_PER_SECOND = 3.0
"""How quickly a stream goes by; its pauses shrink to fit."""
SILENCE_US = 700 * SECOND_US
ENDING_US = (9 * SECOND_US, 61 * SECOND_US, SILENCE_US)
"""How far ahead the heartbeats after a load are, each kind once the one before is processed: the
first close every time window while no node is behind another; with the second, processors hand
out what they hold of a task's minute; the last close tasks, after their 10 min."""
REQUESTS_PER_TASK = 15
WRITE_SECONDS = 0.05
PASSES_PER_SECOND = 4.5
"""More than a stream has, so that it lasts longer than the load."""


class Due(NamedTuple):
    """A record, and how many seconds after the start of the load it is written."""

    seconds: float
    record: Record


@dataclass(frozen=True)
class Machine:
    """What one inference node's processes log.

    Attributes:
        name: Prefix of its nodes.
        seed: Of its stream.
        nodes: How many.
        training: Whether the last of them trains.
        seconds: Longest load.
        repeat: Every so many records, one is delivered twice; 0: never.
        byte_cap: Of each node's batch log.
        clock_error_us: How wrong its clock is; then its tasks are its own, too.
        rate: How much more it logs than others.
        layers, experts, top_k: Of what it serves.
        pace: Seconds of event time that go by in a second.
    """

    name: str
    seed: int
    nodes: int = 2
    training: bool = False
    seconds: float = 60.0
    repeat: int = 0
    byte_cap: int = 256 << 20
    clock_error_us: int = 0
    rate: float = 1.0
    layers: int = 2
    experts: int = 8
    top_k: int = 2
    pace: float = USUAL_PACE


def events_begin(start_us: int) -> int:
    """When event time begins: a promise ahead of the clock would not be believed."""
    return start_us - SILENCE_US


def due_records(machine: Machine, start_us: int) -> list[Due]:
    """The machine's records in the order of their times."""
    speed = STREAM_SECONDS_PER_SECOND * machine.rate
    plan = Plan(
        seed=machine.seed,
        nodes=machine.nodes,
        layers=machine.layers,
        experts=machine.experts,
        top_k=machine.top_k,
        passes=round(machine.seconds * PASSES_PER_SECOND * machine.rate) + 20,
        training=machine.training,
        long_gaps=False,
        site=f"{machine.name}-",
    )
    items = make_stream(plan)
    first = items[0].time
    shrink = machine.pace / speed

    def moved(time: int) -> int:
        return start_us + round((time - first) * shrink)

    own = f"{machine.name}/" if machine.clock_error_us else ""
    records = cut_stream(
        [_moved(item, moved(item.time), own) for item in items],
        Cut(7, 100_000, repeat=machine.repeat),
    )
    return [Due((one.appended - start_us) / SECOND_US / machine.pace, one) for one in records]


def _moved(item: Item, time: int, own: str) -> Item:
    """The item at another time; its task ends with the requests that were made around it."""
    row = item.row
    if row is not None:
        group = int(row.request.rpartition("-")[2]) // REQUESTS_PER_TASK
        row = row._replace(time=time, task=f"{own}{row.task}/{group}")
    return item._replace(time=time, row=row)


class LoadWriter:
    """Writes one machine's records into its batch logs when they are due.

    Args:
        machine: What is written.
        root: Log root of the machine.
        clock: The machine's own, wrong or right.
        start_us: When the load begins, by a right clock.
    """

    def __init__(self, machine: Machine, root: Path, clock: Clock, start_us: int) -> None:
        self._clock, self._error = clock, machine.clock_error_us
        self._due = due_records(machine, events_begin(start_us) + machine.clock_error_us)
        self._root = root
        self._settings = WriterSettings(
            byte_cap=machine.byte_cap, segment_bytes=1 << 20, durability="none"
        )
        self._writers: dict[str, BatchLogWriter] = {}
        self._records: dict[str, Record] = {}
        self._sequence: dict[str, int] = {}
        self._last: int | None = None
        self._closing = ExitStack()
        self._written = 0
        self.payload_bytes = 0

    def run(self, stages: Callable[[], int], told: Callable[[int], None]) -> int:
        """Write until told to stop, then tell of the silence to come; gives the records written.

        Args:
            stages: How many kinds of heartbeats may be written now; 0: the load goes on.
            told: Called with the number of kinds that are written.
        """
        begin = self._clock.monotonic()
        with self._closing:
            while not stages():
                self.write_until(self._clock.monotonic() - begin)
                self._clock.sleep(WRITE_SECONDS)
            for stage, ahead_us in enumerate(ENDING_US):
                while stages() <= stage:
                    self._clock.sleep(WRITE_SECONDS)
                self.write_heartbeats(ahead_us)
                told(stage + 1)
        return self._written

    def write_until(self, seconds: float) -> None:
        """Write what is due that many seconds after the start."""
        if self._written == len(self._due) or self._due[-1].seconds < seconds:
            raise RuntimeError("The load was planned too short.")
        while self._due[self._written].seconds <= seconds:
            self._write(self._due[self._written].record)
            self._written += 1

    def write_heartbeats(self, ahead_us: int) -> None:
        """One per node: nothing earlier follows."""
        if self._last is None:
            self._last = max(record.watermark for record in self._records.values())
        for node, record in list(self._records.items()):
            self._write(
                record._replace(
                    sequence=self._sequence[node] + 1, rows=(), watermark=self._last + ahead_us
                )
            )

    def _write(self, record: Record) -> None:
        if record.readable:
            self._sequence[record.node] = record.sequence
            self._records[record.node] = record
        payload = encode(record._replace(appended=self._clock.now_us(), clock_error=0))
        self.payload_bytes += len(payload)
        self._writer(record.node).append(payload)

    def _writer(self, node: str) -> BatchLogWriter:
        if node not in self._writers:
            self._writers[node] = self._closing.enter_context(
                BatchLogWriter(
                    self._root,
                    node,
                    domain="live",
                    settings=self._settings,
                    clock=self._clock,
                )
            )
        return self._writers[node]


def longer(machines: Sequence[Machine], seconds: float) -> tuple[Machine, ...]:
    """The same machines for a load of that many seconds."""
    return tuple(replace(machine, seconds=seconds) for machine in machines)
