"""The scenarios of a full run, with their counts and their tables."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from support.fleet_engine import EnginePlan
from support.fleet_faults import Fault
from support.fleet_full_disks import fill_disks
from support.fleet_hostile import read_hostile
from support.fleet_outage import LONGEST_RECORD_US, Calls, Clause, OutagePlan, run_outage
from support.fleet_results import Result, Table, kill_table
from support.fleet_scenarios import Sabotaged, Stage, sabotage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from support.fleet_holes import Holes

PROGRAMS: Final = 0.05
"""Share of kills after which the real command is started, and not a warm process."""
OUTAGE_S: Final = 600.0
COMPARISON_S: Final = 160.0
ENGINE: Final = EnginePlan(steps_per_second=50.0)
"""Enough calls for 15 beyond the 99.9th percentile in each phase."""
OUTAGE_LOG_BYTES: Final = 8 << 20
FULL_DISK_S: Final = 20.0
HOSTILE_S: Final = 300.0


def kills(stage: Stage, scale: float, faults: Mapping[Fault, int]) -> Result:
    """Faults of some kinds, one after the other, under load."""
    scaled = {fault: max(1, round(times * scale)) for fault, times in faults.items()}
    found = sabotage(stage, scaled, programs=PROGRAMS)
    return Result(
        kill_table(found.recoveries, found.verdict, found.ring_rows),
        found.is_good,
        "\n".join([str(found.verdict), str(found.ring_rows), *found.differences]),
        _load_text(stage, found),
    )


def _load_text(stage: Stage, found: Sabotaged) -> str:
    load, verdict = found.load, found.verdict
    return (
        f"Event time at {stage.pace:g} of real time, {load.nodes} nodes on {load.partitions} "
        f"partitions, {verdict.batches / load.seconds:.0f} batches/s, "
        f"{verdict.assignments / load.seconds:,.0f} assignments/s, {load.idle:.0%} of cores idle"
    )


def outage(stage: Stage, scale: float) -> Result:
    """A broker that is frozen, then gone, for ten minutes."""
    assert stage.broker is not None
    plan = OutagePlan(
        seconds=OUTAGE_S * scale,
        before=COMPARISON_S * scale,
        after=COMPARISON_S * scale,
        byte_cap=max(1 << 20, round(OUTAGE_LOG_BYTES * scale)),
        engine=ENGINE,
    )
    found = run_outage(stage.nursery, stage.folder, stage.broker, stage.prefix, plan)
    table = Table(
        ("", "value"),
        [
            *_latency_rows(
                {
                    "broker there": found.up,
                    "broker frozen": found.frozen,
                    "broker gone": found.gone,
                }
            ),
            (f"p99.9 within {LONGEST_RECORD_US:g} µs without a broker", found.record_clause),
            ("batches written, delivered, dropped by the ledger",
             f"{found.written}, {found.delivered}, {found.dropped}"),
            ("of them dropped and delivered, at most", f"{found.both}, {found.burst}"),
            ("of them never written, or still in the log alone",
             f"{found.strange}, {found.stranded}"),
            ("batches that headers tell as dropped", found.told),
            ("rows recorded, delivered, told as dropped",
             f"{found.rows}, {found.delivered_rows}, {found.told_rows}"),
            ("batch log of a node, most bytes of its cap",
             f"{found.log_bytes} of {found.byte_cap}"),
            ("rings, bytes of their size", f"{found.ring_bytes} of {found.ring_cap}"),
            ("agent while the broker is frozen, share of a core", f"{found.agent_cpu:.3f}"),
            ("agent, most memory of its own, and with mapped files, MiB",
             f"{found.agent_bytes >> 20}, {found.agent_resident_bytes >> 20}"),
            ("seconds from the broker's start to everything delivered",
             f"{found.delivered_s:.1f}"),
            ("window rows compared", found.table.windows),
            ("assignments of them lost, counted twice",
             f"{found.table.lost}, {found.table.twice}"),
            *_hole_rows(found.table.holes),
            ("seconds of a node of which no row arrived; of them with a 1 s window of the node",
             f"{found.table.empty}; {found.table.empty_with_row}"),
            ("lost rows that `producers` and `batches` tell of",
             f"{found.table.producer_losses}, {found.table.batch_losses}"),
        ],
    )  # fmt: skip
    is_good = not found.faults and found.record_clause is not Clause.BROKEN
    details = [str(found), *found.faults, f"record() without a broker: {found.record_clause}"]
    return Result(table, is_good, "\n".join(details))


def _latency_rows(found: Mapping[str, Calls]) -> list[tuple[str, str]]:
    rows = []
    for name, one in found.items():
        for what, each in (("time", one.wall), ("CPU time", one.cpu)):
            values = ", ".join(f"{value:.0f}" for value in each)
            rows.append(
                (
                    f"`record()`, {name}, {what}: p50, p99, p99.9, worst, µs",
                    f"{values} ({one.number} calls)",
                )
            )
    return rows


def _hole_rows(found: Sequence[Holes]) -> list[tuple[str, str]]:
    rows = []
    for one in found:
        rows += [
            (
                f"windows of {one.size_s} s, and those of them of which rows are missing",
                f"{one.windows}, {one.short}",
            ),
            (
                "of those that miss rows: claim to be whole (`complete`, coverage 1)",
                f"{one.unmarked}",
            ),
            (
                "of those that miss none: marked beside a loss, marked elsewhere",
                f"{one.beside}, {one.blamed}",
            ),
        ]
    return rows


def disks(stage: Stage, scale: float) -> Result:
    """Full disks of a node and of the store."""
    found = fill_disks(stage, max(3.0, FULL_DISK_S * scale))
    table = Table(
        (
            "disks", "node recovers, s", "store recovers, s", "owner started again", "rows",
            "delivered", "lost", "counted twice", "tables equal",
        ),
        [
            (
                "tmpfs" if found.is_mounted else "limit on files", f"{found.node_s:.1f}",
                f"{found.store_s:.1f}", found.restarts, found.rows, found.delivered_rows,
                found.lost, found.twice, "NO" if found.differences else "yes",
            )
        ],
    )  # fmt: skip
    return Result(table, found.is_good, str(found))


def hostile(stage: Stage, scale: float) -> Result:
    """Records repeated, reordered, spoilt, and by wrong clocks."""
    found = read_hostile(stage, max(20.0, HOSTILE_S * scale))
    table = Table(
        (
            "records", "repeated", "marked so", "reordered", "spoilt", "dead letters",
            "kept whole", "nodes with wrong clocks", "marked so", "window rows", "formed twice",
            "lost", "counted twice", "records accounted otherwise",
        ),
        [
            (
                found.records, found.expected_duplicates, found.duplicates, found.reordered,
                found.unreadable, found.dead, found.kept, found.expected_wrong_clocks,
                found.wrong_clocks, found.windows, found.formed_twice, found.lost, found.twice,
                found.accounted_otherwise,
            )
        ],
    )  # fmt: skip
    return Result(table, found.is_good, str(found))


SCENARIOS: Final[dict[str, Callable[[Stage, float], Result]]] = {
    "processors": partial(kills, faults={Fault.PROCESSOR_KILLED: 200}),
    "agents": partial(kills, faults={Fault.AGENT_KILLED: 50}),
    "owners": partial(kills, faults={Fault.OWNER_KILLED: 50}),
    "brokers": partial(kills, faults={Fault.BROKER_KILLED: 30}),
    "rebalances": partial(kills, faults={Fault.REBALANCE: 100, Fault.PROCESSOR_PAUSED: 10}),
    "outage": outage,
    "disks": disks,
    "hostile": hostile,
}
"""In the order in which they run."""
