"""A full disk on the machine that infers, then one on the machine of the store."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from support.fleet import Fleet, is_shipped, log_ends
from support.fleet_disk import SmallDisk
from support.fleet_engine import EnginePlan, EngineReport, run_engine
from support.fleet_judge import table_differences
from support.fleet_processes import wait_for
from support.fleet_rows import batches_and_rows, windows_of_engines
from support.fleet_topic import end_offsets

if TYPE_CHECKING:
    from support.fleet_scenarios import Stage

NODE_DISK_BYTES = 48 << 20
STORE_DISK_BYTES = 384 << 20
"""With room for the log of changes that a store keeps before it writes them into its file."""
ENGINE = EnginePlan(steps_per_second=20, ring_bytes=16 << 20)
WINDOWS = {"windows.token": "64", "windows.time": "1,5", "export.interval": "60"}
WITH_ROOM_S = 2.0
RECOVERY_S = 30.0
LAST_S = 5.0


@dataclass(frozen=True, kw_only=True)
class FullDisks:
    """What was left of an engine's rows.

    Attributes:
        is_mounted: Whether real small disks were full, or files could not grow.
        node_s, store_s: Seconds from room to everything shipped, and stored.
        rows: Recorded. delivered_rows: In the topic.
        restarts: Times that the owner ended by itself and was started again.
        lost, twice: Assignments of windows against those of the rows.
        differences: Rows of tables that differ from those of one process alone.
    """

    is_mounted: bool
    node_s: float
    store_s: float
    rows: int
    rejected_rows: int
    delivered_rows: int
    dropped: int
    restarts: int
    lost: int
    twice: int
    unmarked: int
    differences: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """Whether nothing was lost, counted twice or different."""
        return (self.rows, 0, 0, 0, 0, 0, ()) == (
            self.delivered_rows, self.rejected_rows, self.dropped, self.lost, self.twice,
            self.unmarked, self.differences,
        )  # fmt: skip


def fill_disks(stage: Stage, seconds: float) -> FullDisks:
    """Record while first the node's disk is full for some seconds, then the store's.

    Raises:
        FleetError: Something did not recover or end as it should.
    """
    fleet = Fleet(
        stage.nursery, stage.folder, stage.bootstrap, stage.prefix, processors=0, settings=WINDOWS
    )
    machine = stage.folder / "machine"
    disks = [
        SmallDisk(stage.nursery, f"{stage.prefix}-{folder.name}-disk", folder, size)
        for folder, size in ((machine, NODE_DISK_BYTES), (fleet.store_folder, STORE_DISK_BYTES))
    ]
    node_disk, store_disk = disks
    agent = fleet.member("agent", ("run", "agent"), machine)
    agent.disk_holder, fleet.owner.disk_holder = node_disk.holder, store_disk.holder
    fleet.make_topics()
    fleet.start(fleet.owner)
    fleet.start(agent)
    fleet.wait_for_owner()
    report, log = stage.folder / "engine.json", node_disk.seen_folder / "log"
    engine = stage.nursery.start(
        f"{stage.prefix}-engine", run_engine, ENGINE, machine / "ring", report, node_disk.holder
    )
    wait_for("the engine's first batch", lambda: bool(log_ends(log)), 30)
    time.sleep(WITH_ROOM_S)
    node_disk.keep_full([agent.now], seconds)
    begin = time.monotonic()
    kept = log_ends(log)
    wait_for("new batches are logged", lambda: log_ends(log) != kept, RECOVERY_S)
    kept = log_ends(log)
    node_s = wait_for("they are shipped", lambda: is_shipped(kept), RECOVERY_S, start=begin)
    time.sleep(WITH_ROOM_S)
    store_disk.keep_full([fleet.owner.now], seconds)
    restarts = 0
    if not fleet.owner.now.is_running:
        fleet.start(fleet.owner)
        restarts += 1
    begin = time.monotonic()
    ends = end_offsets(stage.bootstrap, fleet.routing)
    store_s = fleet.wait_until_stored(ends, start=begin)
    time.sleep(WITH_ROOM_S)
    engine.stop()
    time.sleep(LAST_S)
    agent.now.stop()
    fleet.wait_until_stored(end_offsets(stage.bootstrap, fleet.routing))
    fleet.check()
    fleet.owner.now.stop()
    store_file = stage.folder / "store.duckdb"
    for suffix in ("", ".wal"):
        source = store_disk.seen_folder / f"{fleet.store_file.name}{suffix}"
        if source.exists():
            shutil.copy(source, f"{store_file}{suffix}")
    topic, told = fleet.read_routing(), EngineReport.read(report)
    rows = batches_and_rows(log, topic)
    windows = windows_of_engines(store_file, topic, {ENGINE.node: told})
    return FullDisks(
        is_mounted=bool(node_disk.holder),
        node_s=node_s,
        store_s=store_s,
        rows=told.rows,
        rejected_rows=told.rejected_rows,
        delivered_rows=rows["delivered_rows"],
        dropped=rows["dropped"],
        restarts=restarts,
        lost=windows.lost,
        twice=windows.twice,
        unmarked=windows.unmarked,
        differences=tuple(table_differences(store_file, fleet.store_alone())[:20]),
    )
