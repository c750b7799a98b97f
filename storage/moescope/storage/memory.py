"""What the owner keeps in memory between commits; all of it can be read again from the file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moescope.core.clock import NO_TIME
from moescope.core.emission import TrailingReference
from moescope.core.vocabulary import WindowKind
from moescope.storage.delta_rows import read_plan_panes, read_trailing_panes
from moescope.storage.lanes import Lanes, lane_id
from moescope.storage.pane_cache import PaneCache
from moescope.storage.placements import Placements, read_placements
from moescope.storage.progress import (
    read_clocks,
    read_counters,
    read_delta_offsets,
    read_progress,
)
from moescope.storage.shared import Series, SharedWindows, TrailingReferences
from moescope.storage.shared.tasks import TaskMinute
from moescope.storage.shared.trailing import HISTORY

if TYPE_CHECKING:
    from collections.abc import Iterator

    import duckdb

    from moescope.core.accounts import PartitionProgress
    from moescope.core.emission import SharedDelta
    from moescope.storage.shared import DomainClock, WindowShapes


@dataclass(slots=True)
class Memory:
    """State as of the last commit.

    Attributes:
        read_to: Partition of the deltas topic → next offset.
        counters: Domain → (late rows, duplicate windows).
        purged_at: Domain → watermark at which panes were last deleted.
    """

    lanes: Lanes
    plan: SharedWindows
    panes: PaneCache
    trailing: TrailingReferences
    placements: Placements
    progress: dict[str, PartitionProgress]
    read_to: dict[str, int]
    clocks: dict[str, DomainClock]
    counters: dict[str, tuple[int, int]]
    purged_at: dict[str, int]
    commit_id: int


def load_memory(connection: duckdb.DuckDBPyConnection, shapes: WindowShapes) -> Memory:
    """Rebuild everything from the file."""
    lanes = Lanes(connection)
    clocks = read_clocks(connection)
    plan = SharedWindows(shapes)
    opened: list[SharedDelta] = []
    settled: dict[Series, list[TaskMinute]] = {}
    stored: list[SharedDelta] = []
    for delta, is_settled in read_plan_panes(connection, lanes):
        stored.append(delta)
        if is_settled and delta.kind is WindowKind.TASK:
            settled.setdefault(Series.of(delta), []).append(
                TaskMinute(delta.pane, delta.first_time_us, delta.last_time_us, delta.last_of_task)
            )
        else:
            opened.append(delta)
    plan.restore(opened, settled, clocks)
    trailing = TrailingReferences(lane_id)
    trailing.restore(_newest_references(connection, lanes), read_trailing_panes(connection, lanes))
    row = connection.execute("SELECT last_commit_id FROM owner").fetchone()
    return Memory(
        lanes=lanes,
        plan=plan,
        panes=PaneCache(shapes, stored),
        trailing=trailing,
        placements=read_placements(connection),
        progress=read_progress(connection),
        read_to=read_delta_offsets(connection),
        clocks=clocks,
        counters=read_counters(connection),
        purged_at=dict.fromkeys(clocks, NO_TIME),
        commit_id=int(row[0]) if row else 0,
    )


def _newest_references(
    connection: duckdb.DuckDBPyConnection, lanes: Lanes
) -> Iterator[TrailingReference]:
    rows = connection.execute(
        """
        SELECT reference_id, lane, phase, epoch_us(effective_from), counts
        FROM reference_distributions WHERE partition = ''
        QUALIFY row_number() OVER (PARTITION BY lane, phase ORDER BY effective_from DESC) <= ?
        """,
        [HISTORY + 1],
    ).fetchall()
    for reference_id, name, phase, effective_from_us, counts in rows:
        lane = lanes[name]
        yield TrailingReference(
            reference_id=reference_id,
            lane=lane,
            phase=phase,
            partition="",
            effective_from_us=effective_from_us,
            counts=np.frombuffer(counts, "<i8").reshape(len(lane.layers), lane.experts),
        )
