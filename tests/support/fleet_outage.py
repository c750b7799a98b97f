"""The broker goes away for long: what that costs an engine, and what is left of its rows."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import psutil  # type: ignore[import-untyped]
from support.fleet import RECOVERY_S, Fleet, is_shipped, log_ends
from support.fleet_engine import EnginePlan, EngineReport, percentile_us, run_engine
from support.fleet_processes import wait_for
from support.fleet_rows import batches_and_rows, windows_of_engine
from support.fleet_topic import end_offsets

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from support.broker_choice import Broker
    from support.fleet import Member
    from support.fleet_engine import Step
    from support.fleet_processes import Nursery

WATCH_S = 0.25
LAST_S = 5.0
LONGEST_RECORD_US = 100.0
"""What `record()` may take, 999 times of 1,000."""


@dataclass(frozen=True)
class OutagePlan:
    """How long what lasts.

    Attributes:
        seconds: Of the outage: half of it the broker is frozen, half of it gone.
        before, after: Seconds with a broker, for comparison.
        byte_cap: Of the batch log: small, so that it has to drop.
        engine: What is recorded.
    """

    seconds: float
    before: float
    after: float
    byte_cap: int
    engine: EnginePlan


class Latencies(NamedTuple):
    """How long `record()` took, µs."""

    calls: int
    p50: float
    p99: float
    p999: float
    worst: float

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Latencies:
        """Of some steps."""
        shares = (0.5, 0.99, 0.999, 1.0)
        return cls(len(steps), *(percentile_us(steps, share) for share in shares))


class Clause(StrEnum):
    """What a run says about a promise."""

    HOLDS = "holds"
    BROKEN = "does not hold"
    NOT_DECIDED = "not decided: the machine itself is slower"


@dataclass(frozen=True, kw_only=True)
class Outage:
    """What an outage came to.

    Attributes:
        up: `record()` while the broker was there. frozen, gone: While it was not.
        written: Batches that the agent logged. delivered: Distinct ones in the topic.
        dropped: Counted by the log. told: Told as dropped by the headers of delivered batches.
        both: Counted as dropped, and in the topic all the same.
        burst: Most batches of which the broker may have had more than the agent knew.
        strange: Delivered, and never written. stranded: In the log, and not delivered.
        rows: Recorded. delivered_rows: In the topic. told_rows: Told as dropped.
        log_bytes: Most that the batch log took. byte_cap: Its cap.
        ring_bytes: Most that the ring took. ring_cap: Its size before the outage.
        agent_cpu: Share of a core that the agent took while the broker was frozen.
        agent_bytes: Most resident memory of the agent.
        delivered_s: Seconds from the broker's start until all that was kept was delivered.
        windows: Rows of the `windows` table that were compared. lost, twice: Assignments of
            them short of, and beyond, those of the rows that were delivered.
        holes: Seconds of which rows are missing. unmarked: Those whose window claims to be whole.
        beside: Windows that are marked although nothing is missing of their seconds, but a loss
            is spread over these. blamed: Those elsewhere.
    """

    up: Latencies
    frozen: Latencies
    gone: Latencies
    written: int
    delivered: int
    dropped: int
    told: int
    strange: int
    stranded: int
    burst: int
    rows: int
    delivered_rows: int
    told_rows: int
    rejected_rows: int
    log_bytes: int
    byte_cap: int
    ring_bytes: int
    ring_cap: int
    agent_cpu: float
    agent_bytes: int
    delivered_s: float
    windows: int
    lost: int
    twice: int
    holes: int
    unmarked: int
    beside: int
    blamed: int

    @property
    def both(self) -> int:
        """Batches that were counted as dropped and delivered all the same.

        Their acknowledgement had not reached the agent yet when the byte cap removed them.
        """
        return self.delivered + self.dropped - self.written

    @property
    def record_clause(self) -> Clause:
        """Whether `record()` is as quick without a broker as it has to be."""
        if max(self.frozen.p999, self.gone.p999) <= LONGEST_RECORD_US:
            return Clause.HOLDS
        # A machine that is too slow with a broker says nothing about how it is without one.
        return Clause.BROKEN if self.up.p999 <= LONGEST_RECORD_US else Clause.NOT_DECIDED

    @property
    def faults(self) -> list[str]:
        """What is not as promised; `record_clause` judges latencies, if a run is long enough."""
        missing, missing_rows = self.written - self.delivered, self.rows - self.delivered_rows
        checks = {
            "batches arrived that were never written": self.strange == 0,
            "batches are in the log and not in the topic": self.stranded == 0,
            "more batches are dropped and delivered than may be on their way": (
                self.both <= self.burst
            ),
            "batches are missing that nobody counted": missing <= self.dropped,
            "batches are missing that no header tells of": missing <= self.told,
            "rows are missing that no header tells of": missing_rows <= self.told_rows,
            "rows were rejected": self.rejected_rows == 0,
            "the batch log outgrew its cap": self.log_bytes <= self.byte_cap,
            "the ring outgrew its size": self.ring_bytes <= self.ring_cap,
            "windows lack assignments": self.lost == 0,
            "windows count assignments twice": self.twice == 0,
            "windows with missing rows claim to be whole": self.unmarked == 0,
            "windows are marked where nobody tells of a loss": self.blamed == 0,
        }
        return [what for what, is_so in checks.items() if not is_so]


def run_outage(
    nursery: Nursery, folder: Path, broker: Broker, prefix: str, plan: OutagePlan
) -> Outage:
    """Record without a pause while the broker is frozen, then gone, then back.

    Raises:
        FleetError: Something did not start, end or arrive in time.
    """
    fleet = Fleet(
        nursery, folder, broker.bootstrap, prefix, processors=0,
        settings={"log.byte_cap": str(plan.byte_cap)},
    )  # fmt: skip
    machine = folder / "machine"
    agent = fleet.member("agent", ("run", "agent"), machine)
    fleet.make_topics()
    fleet.start(fleet.owner)
    fleet.start(agent)
    fleet.wait_for_owner()
    report, log = folder / "engine.json", machine / "log"
    engine = nursery.start(f"{prefix}-engine", run_engine, plan.engine, machine / "ring", report)
    watch = _Watch(agent, machine)
    wait_for("the engine's first batch", lambda: bool(log_ends(log)), 30)
    watch.pass_seconds(plan.before)
    ring_cap = watch.ring_bytes
    moments = [time.time()]
    broker.pause()
    cpu = watch.agent_cpu_s()
    watch.pass_seconds(plan.seconds / 2)
    agent_cpu = (watch.agent_cpu_s() - cpu) / (plan.seconds / 2)
    moments.append(time.time())
    broker.kill()
    watch.pass_seconds(plan.seconds / 2)
    moments.append(time.time())
    returned = time.monotonic()
    broker.start()
    kept = log_ends(log)
    delivered_s = wait_for(
        "what was kept is shipped", lambda: is_shipped(kept), RECOVERY_S, start=returned
    )
    moments.append(time.time())
    watch.pass_seconds(plan.after)
    engine.stop()
    # The last rows wait for company, and windows for heartbeats behind their ends.
    watch.pass_seconds(LAST_S)
    agent.now.stop()
    ends = end_offsets(broker.bootstrap, fleet.routing)
    fleet.wait_until_stored(ends)
    fleet.owner.now.stop()
    engine_report = EngineReport.read(report)
    topic = fleet.read_routing()
    frozen, gone, back, settled = moments
    steps = engine_report.steps
    return Outage(
        up=Latencies.of([one for one in steps if one.at < frozen or one.at > settled]),
        frozen=Latencies.of([one for one in steps if frozen <= one.at < gone]),
        gone=Latencies.of([one for one in steps if gone <= one.at < back]),
        rows=engine_report.rows,
        rejected_rows=engine_report.rejected_rows,
        log_bytes=watch.log_bytes,
        byte_cap=plan.byte_cap,
        ring_bytes=watch.ring_bytes,
        ring_cap=ring_cap,
        agent_cpu=agent_cpu,
        agent_bytes=watch.agent_bytes,
        delivered_s=delivered_s,
        **batches_and_rows(log, plan.engine.node, topic),
        **windows_of_engine(fleet.store_file, topic, engine_report),
    )


class _Watch:
    """Looks at an agent and its files now and then."""

    def __init__(self, agent: Member, machine: Path) -> None:
        self._process = psutil.Process(agent.now.pid)
        self._machine = machine
        self.log_bytes = self.ring_bytes = self.agent_bytes = 0

    def pass_seconds(self, seconds: float) -> None:
        """Let that much time pass."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._look()
            time.sleep(min(left, WATCH_S))

    def agent_cpu_s(self) -> float:
        """CPU seconds that the agent has taken."""
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def _look(self) -> None:
        self.log_bytes = max(self.log_bytes, _bytes_of(self._machine / "log", "*/*.seg"))
        self.ring_bytes = max(self.ring_bytes, _bytes_of(self._machine / "ring", "*.ring"))
        self.agent_bytes = max(self.agent_bytes, self._process.memory_info().rss)


def _bytes_of(folder: Path, pattern: str) -> int:
    found = 0
    for path in folder.glob(pattern):
        with suppress(FileNotFoundError):
            found += path.stat().st_size
    return found
