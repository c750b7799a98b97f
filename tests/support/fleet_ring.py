"""A machine whose rows go from a recorder through ring and batch log to Kafka, agent by agent."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from support.fleet import RECOVERY_S, Fleet, is_shipped, log_ends
from support.fleet_engine import EnginePlan, EngineReport, run_engine
from support.fleet_processes import FleetError, wait_for
from support.fleet_topic import identity_of

from moescope.core.vocabulary import RowFlag
from moescope.core.wire import decode_batch

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from support.fleet_processes import Nursery
    from support.fleet_topic import Identity

    from moescope.core.batch import RoutingBatch

PLAN = EnginePlan(node="ringed", steps_per_second=10.0, ring_bytes=16 << 20)


@dataclass(frozen=True)
class RingRows:
    """What became of the rows that were recorded.

    Attributes:
        rows: Recorded. rejected: Those that were not taken.
        missing: Recorded and in no batch of the topic. told: Said to be lost by batches' headers.
        twice: Times that a row is in one more batch.
        strange: In the topic and never recorded.
        changed: Batches that came again with other bytes.
    """

    rows: int
    rejected: int
    missing: int
    told: int
    twice: int
    strange: int
    changed: int

    @property
    def is_good(self) -> bool:
        """Whether each row was delivered once, or is told to be lost."""
        return (self.rejected, self.missing, self.twice, self.strange, self.changed) == (
            0, self.told, 0, 0, 0,
        )  # fmt: skip


class RingMachine:
    """An engine that records by the clock, and an agent that may be killed.

    It ships to topics of its own: a load that is ahead of others in event time would decide which
    windows close without whom.

    Args:
        nursery: Makes its processes.
        folder: Everything it writes.
        bootstrap: The broker.
        prefix: Of its topics and names.
    """

    def __init__(self, nursery: Nursery, folder: Path, bootstrap: str, prefix: str) -> None:
        self._nursery, self._folder, self._prefix = nursery, folder, prefix
        self._fleet = Fleet(nursery, folder, bootstrap, prefix, processors=0)
        self._agent = self._fleet.member("agent", ("run", "agent"), folder)
        self._report = folder / "engine.json"

    def start(self) -> None:
        """Make the topics, and start to record."""
        self._fleet.make_topics()
        self._fleet.start(self._agent)
        ring = self._folder / "ring"
        self._engine = self._nursery.start(
            f"{self._prefix}-engine", run_engine, PLAN, ring, self._report
        )
        wait_for("rows of a ring", lambda: bool(log_ends(self._folder / "log")), RECOVERY_S)

    def kill_agent(self) -> None:
        """Kill the agent, whatever it is at, and start it again."""
        self._agent.now.kill()
        self._fleet.start(self._agent)

    def wait_until_shipped(self, start: float) -> None:
        """Wait until a batch is logged by the agent as it is now, and everything is shipped."""
        root = self._folder / "log"
        before = log_ends(root)
        wait_for(
            "the ring is drained again", lambda: log_ends(root) != before, RECOVERY_S, start=start
        )
        ends = log_ends(root)
        wait_for("its batches are shipped", lambda: is_shipped(ends), RECOVERY_S, start=start)

    def check(self) -> None:
        """See that its processes live.

        Raises:
            FleetError: One ended by itself.
        """
        for process in (self._agent.now, self._engine):
            if not process.is_running:
                raise FleetError(f"{process.name} ended by itself:\n{process.last_words()}")

    def end(self) -> RingRows:
        """Stop recording, let the agent drain, and look at what arrived."""
        self._engine.stop()
        self._agent.now.stop()
        report = EngineReport.read(self._report)
        topic = self._fleet.read_routing()
        return judge_rows(
            (place.value for places in topic.values() for place in places),
            report.rows,
            report.rejected_rows,
        )


def judge_rows(payloads: Iterable[bytes], rows: int, rejected: int) -> RingRows:
    """Compare the batches of a topic with rows that are numbered from 0 on."""
    batches: dict[Identity, bytes] = {}
    changed = 0
    for payload in payloads:
        identity = identity_of(payload)
        assert identity is not None
        changed += batches.setdefault(identity, payload) != payload
    decoded = [decode_batch(payload) for payload in batches.values()]
    found = Counter(serial for batch in decoded for serial in _serials(batch))
    strange = [serial for serial in found if not 0 <= serial < rows]
    return RingRows(
        rows=rows,
        rejected=rejected,
        missing=rows - (len(found) - len(strange)),
        told=sum(batch.header.drops.lost_rows for batch in decoded),
        twice=sum(found.values()) - len(found),
        strange=len(strange),
        changed=changed,
    )


def _serials(batch: RoutingBatch) -> list[int]:
    """Serial numbers of a batch's rows, without those that it repeats as context."""
    tokens = batch.tokens
    if tokens is None or tokens.token_id is None:
        return []
    return [int(each) for each in tokens.token_id[(tokens.flags & RowFlag.CONTEXT) == 0]]
