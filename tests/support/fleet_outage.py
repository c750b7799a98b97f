"""The broker goes away for long: what that costs an engine, and what is left of its rows."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import psutil
from support.fleet import RECOVERY_S, Fleet, is_shipped, log_ends
from support.fleet_engine import EnginePlan, EngineReport, run_engine
from support.fleet_processes import wait_for
from support.fleet_rows import EngineWindows, batches_and_rows, windows_of_engines
from support.fleet_topic import end_offsets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.broker_choice import Broker
    from support.fleet import Member
    from support.fleet_engine import Step
    from support.fleet_processes import Nursery

WATCH_S = 0.25
LAST_S = 5.0
LONGEST_RECORD_US = 100.0
"""What `record()` may take, 999 times of 1,000."""
LARGEST_RATIO = 1.25
"""How much longer than with a broker it may take where it takes longer than that anyway."""
QUIET = EnginePlan(node="quiet", steps_per_second=2.0, ring_bytes=8 << 20)
"""An engine on the same machine that records so little that its log drops nothing: so the seconds
in which the other's rows are missing have rows, and windows that have to say what they lack."""
WINDOWS = {"windows.token": "16,64", "windows.time": "1,5,60"}


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
    """Percentiles of calls, µs."""

    p50: float
    p99: float
    p999: float
    worst: float

    @classmethod
    def of(cls, found_us: Sequence[float]) -> Latencies:
        """Of some calls; zeros where there are none."""
        return cls(*np.percentile(found_us or [0.0], (50, 99, 99.9, 100)).tolist())


class Calls(NamedTuple):
    """`record()` over a while.

    Attributes:
        number: Of calls.
        wall: How long they took. cpu: CPU time of their thread.
    """

    number: int
    wall: Latencies
    cpu: Latencies

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Calls:
        """Of some steps."""
        return cls(
            len(steps),
            Latencies.of([one.us for one in steps]),
            Latencies.of([one.cpu_us for one in steps]),
        )


class Clause(StrEnum):
    """What a run says about a promise."""

    HOLDS = "met"
    BROKEN = "not met: longer without a broker than with one"
    OVER_ANYWAY = "**not met**: over the limit with and without a broker"


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
        log_bytes: Most that one node's batch log took. byte_cap: Its cap.
        ring_bytes: Most that the ring took. ring_cap: Its size before the outage.
        agent_cpu: Share of a core that the agent took while the broker was frozen.
        agent_bytes: Most memory of the agent's own. agent_resident_bytes: Most that was resident,
            mapped files among it.
        delivered_s: Seconds from the broker's start until all that was kept was delivered.
        table: The store's windows against the rows.
    """

    up: Calls
    frozen: Calls
    gone: Calls
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
    agent_resident_bytes: int
    delivered_s: float
    table: EngineWindows

    @property
    def both(self) -> int:
        """Batches that were counted as dropped and delivered all the same.

        Their acknowledgement had not reached the agent yet when the byte cap removed them.
        """
        return self.delivered + self.dropped - self.written

    @property
    def record_clause(self) -> Clause:
        """Whether `record()` is as quick without a broker as it has to be."""
        with_broker, without = self.up.wall.p999, max(self.frozen.wall.p999, self.gone.wall.p999)
        if without <= LONGEST_RECORD_US:
            return Clause.HOLDS
        if with_broker <= LONGEST_RECORD_US or without > LARGEST_RATIO * with_broker:
            return Clause.BROKEN
        return Clause.OVER_ANYWAY

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
            "windows lack assignments": self.table.lost == 0,
            "windows count assignments twice": self.table.twice == 0,
            "windows with missing rows claim to be whole": self.table.unmarked == 0,
            "windows are marked where nobody tells of a loss": self.table.blamed == 0,
            "a node has a window of a second of which it has no row": (
                self.table.empty_with_row == 0
            ),
            "producers tell of other losses than headers": (
                self.table.producer_losses == self.told_rows
            ),
            "batches tell of other losses than headers": (
                self.table.batch_losses == self.told_rows
            ),
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
        settings={"log.byte_cap": str(plan.byte_cap), **WINDOWS},
    )  # fmt: skip
    machine = folder / "machine"
    agent = fleet.member("agent", ("run", "agent"), machine)
    fleet.make_topics()
    fleet.start(fleet.owner)
    # As a program: one that is forked shows memory that is not its own.
    fleet.start(agent, as_program=True)
    fleet.wait_for_owner()
    plans, log = (plan.engine, QUIET), machine / "log"
    report_files = {one.node: folder / f"{one.node}.json" for one in plans}
    engines = [
        nursery.start(
            f"{prefix}-{one.node}", run_engine, one, machine / "ring", report_files[one.node]
        )
        for one in plans
    ]
    watch = _Watch(agent, machine)
    wait_for("each engine's first batch", lambda: len(log_ends(log)) == len(plans), 30)
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
    for engine in engines:
        engine.stop()
    # The last rows wait for company, and windows for heartbeats behind their ends.
    watch.pass_seconds(LAST_S)
    agent.now.stop()
    ends = end_offsets(broker.bootstrap, fleet.routing)
    fleet.wait_until_stored(ends)
    fleet.owner.now.stop()
    reports = {node: EngineReport.read(file) for node, file in report_files.items()}
    topic = fleet.read_routing()
    frozen, gone, back, settled = moments
    steps = reports[plan.engine.node].steps
    return Outage(
        up=Calls.of([one for one in steps if one.at < frozen or one.at > settled]),
        frozen=Calls.of([one for one in steps if frozen <= one.at < gone]),
        gone=Calls.of([one for one in steps if gone <= one.at < back]),
        rows=sum(report.rows for report in reports.values()),
        rejected_rows=sum(report.rejected_rows for report in reports.values()),
        log_bytes=watch.log_bytes,
        byte_cap=plan.byte_cap,
        ring_bytes=watch.ring_bytes,
        ring_cap=ring_cap,
        agent_cpu=agent_cpu,
        agent_bytes=watch.agent_bytes,
        agent_resident_bytes=watch.agent_resident_bytes,
        delivered_s=delivered_s,
        table=windows_of_engines(fleet.store_file, topic, reports),
        **batches_and_rows(log, topic),
    )


class _Watch:
    """Looks at an agent and its files now and then."""

    def __init__(self, agent: Member, machine: Path) -> None:
        self._process = psutil.Process(agent.now.pid)
        self._machine = machine
        self.log_bytes = self.ring_bytes = self.agent_bytes = self.agent_resident_bytes = 0

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
        for log in (self._machine / "log").glob("*"):
            self.log_bytes = max(self.log_bytes, _bytes_of(log, "*.seg"))
        self.ring_bytes = max(self.ring_bytes, _bytes_of(self._machine / "ring", "*.ring"))
        own, resident = _memory_of(self._process.pid)
        self.agent_bytes = max(self.agent_bytes, own)
        self.agent_resident_bytes = max(self.agent_resident_bytes, resident)


def _memory_of(pid: int) -> tuple[int, int]:
    """Bytes of a process that nothing else backs, and all that are resident."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines)
    own, resident = (int(found[name].split()[0]) << 10 for name in ("RssAnon", "VmRSS"))
    return own, resident


def _bytes_of(folder: Path, pattern: str) -> int:
    found = 0
    for path in folder.glob(pattern):
        with suppress(FileNotFoundError):
            found += path.stat().st_size
    return found
