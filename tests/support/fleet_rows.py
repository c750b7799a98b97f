"""The rows of an engine, one by one: what became of them, and which windows say so."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import duckdb
from support.fleet_engine import REQUESTS
from support.fleet_judge import assignments_of, closed_windows, topic_records
from support.stored import stored_windows

from moescope.core.batchlog import BatchLogWriter, list_partitions
from moescope.core.wire import decode_batch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from support.fleet_engine import EngineReport
    from support.fleet_topic import Place

    from moescope.processors.config import WindowConfig

SECOND_US = 1_000_000
CONTEXT_FLAG = 1


def batches_and_rows(log: Path, node: str, topic: Mapping[int, Sequence[Place]]) -> dict[str, int]:
    """How many batches and rows were logged, delivered, dropped and told as dropped."""
    (info,) = list_partitions(log)
    assert info.name == node
    with BatchLogWriter(log, node) as writer:
        dropped = writer.dropped_records
    delivered = {}
    for place in (one for places in topic.values() for one in places):
        batch = decode_batch(place.value)
        delivered[batch.header.sequence] = batch
    serials = {
        int(serial)
        for batch in delivered.values()
        if batch.tokens is not None and batch.tokens.token_id is not None
        for serial, flags in zip(batch.tokens.token_id, batch.tokens.flags, strict=True)
        if not flags & CONTEXT_FLAG
    }
    drops = [batch.header.drops for batch in delivered.values()]
    return {
        "written": info.end_offset,
        "delivered": len(delivered),
        "dropped": dropped,
        "told": sum(one.log_batches for one in drops),
        "delivered_rows": len(serials),
        "told_rows": sum(one.log_rows + one.ring_rows for one in drops),
    }


def windows_of_engine(
    store_file: Path,
    config: WindowConfig,
    topic: Mapping[int, Sequence[Place]],
    report: EngineReport,
) -> dict[str, int]:
    """Windows against the plain roll-up, and against the seconds of which rows are missing."""
    stored = stored_windows(store_file)
    records = topic_records(topic)
    expected = {
        key: value
        for key, value in closed_windows(records, config).items()
        # Tasks go on until ten minutes of silence.
        if key[0] != "task" and key in stored
    }
    lost = twice = 0
    for key, window in expected.items():
        off = assignments_of(stored[key]) - assignments_of(window)
        lost, twice = lost + max(-off, 0), twice + max(off, 0)
    twice += sum(assignments_of(stored[key]) for key in stored.keys() - expected.keys())
    recorded: Counter[int] = Counter()
    delivered: Counter[int] = Counter()
    for step in report.steps:
        recorded[round(step.at * SECOND_US) // SECOND_US] += REQUESTS
    rows = [row for each in records.values() for one in each for row in one.rows]
    for row in rows:
        if not row.flags & CONTEXT_FLAG and row.time is not None:
            delivered[row.time // SECOND_US] += 1
    with duckdb.connect(str(store_file), read_only=True) as connection:
        whole = dict(
            connection.execute(
                "SELECT start // 1000000, bool_and(complete AND coverage >= 1) FROM windows "
                "WHERE window_kind = 'time' AND scope_kind = 'all' AND size = 1000000 GROUP BY 1"
            ).fetchall()
        )
    # A step at a border may be counted one second later than it was called.
    holes = {
        second
        for second, count in recorded.items()
        if delivered[second] + REQUESTS < count and second in whole
    }
    return {
        "lost": lost,
        "twice": twice,
        "holes": len(holes),
        "unmarked": sum(whole[second] for second in holes),
        "blamed": sum(
            not is_whole
            for second, is_whole in whole.items()
            if abs(delivered[second] - recorded[second]) <= REQUESTS
        ),
    }
