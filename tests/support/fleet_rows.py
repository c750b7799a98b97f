"""The rows of engines, one by one: what became of them, and which windows say so."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
from support.fleet_engine import EXPERTS, LAYERS, REQUESTS, TABLE, ids_of_steps
from support.fleet_holes import Holes, Seconds, holes_of, seconds_of_losses

from moescope.core.batchlog import BatchLogReader, BatchLogWriter, list_partitions
from moescope.core.wire import decode_batch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from support.fleet_engine import EngineReport
    from support.fleet_topic import Place

    from moescope.core.batch import RoutingBatch

SECOND_US = 1_000_000
CONTEXT_FLAG = 1
LATENESS_S = 2
NOTICE_US = 500_000
"""How much later than a broker takes a batch the agent may learn of it."""


def batches_and_rows(log: Path, topic: Mapping[int, Sequence[Place]]) -> dict[str, int]:
    """What became of the batches and rows of an agent's nodes.

    An agent that lives on gives the batches of each log the sequence numbers 0, 1, 2, …

    Returns:
        `written`, `delivered`, `dropped` batches; `told`: those that headers tell as dropped;
        `delivered_rows`, `told_rows`; `strange`: delivered batches that were never written;
        `stranded`: batches that the log still holds, and the topic does not; `burst`: most batches
        that arrived in a time in which the agent may not have learnt of them.
    """
    delivered: dict[str, dict[int, RoutingBatch]] = {}
    for place in (one for places in topic.values() for one in places):
        batch = decode_batch(place.value)
        delivered.setdefault(batch.header.node, {})[batch.header.sequence] = batch
    found: Counter[str] = Counter()
    for info in list_partitions(log):
        with BatchLogReader(log, info.name) as reader:
            first_kept = reader.first_offset()
        with BatchLogWriter(log, info.name) as writer:
            found["dropped"] += writer.dropped_records
        mine = delivered.pop(info.name, {})
        found["written"] += info.end_offset
        found["delivered"] += len(mine)
        found["strange"] += len(mine.keys() - set(range(info.end_offset)))
        found["stranded"] += len(set(range(first_kept, info.end_offset)) - mine.keys())
        found["delivered_rows"] += len(_serials(mine.values()))
        drops = [batch.header.drops for batch in mine.values()]
        found["told"] += sum(one.log_batches for one in drops)
        found["told_rows"] += sum(one.log_rows + one.ring_rows for one in drops)
    assert not delivered, f"Batches of nodes without a log: {delivered.keys()}"
    found["burst"] = largest_burst([one.arrived_us for places in topic.values() for one in places])
    names = (
        "written", "delivered", "dropped", "told", "delivered_rows", "told_rows", "strange",
        "stranded", "burst",
    )  # fmt: skip
    return {name: found[name] for name in names}


def _serials(batches: Any) -> set[int]:
    return {
        int(serial)
        for batch in batches
        if batch.tokens is not None and batch.tokens.token_id is not None
        for serial, flags in zip(batch.tokens.token_id, batch.tokens.flags, strict=True)
        if not flags & CONTEXT_FLAG
    }


def largest_burst(arrived_us: Sequence[int]) -> int:
    """Most records that arrived within `NOTICE_US`."""
    times = np.sort(np.array(arrived_us, np.int64))
    inside = np.searchsorted(times, times + NOTICE_US, side="right") - np.arange(len(times))
    return int(inside.max(initial=0))


class _Rows:
    """The rows that were delivered; what each of them routed is known by its number.

    Attributes:
        serial, time_us, position: int64 [N]. node, request: [N].
    """

    def __init__(self, topic: Mapping[int, Sequence[Place]]) -> None:
        found: dict[tuple[str, int], tuple[int, int, str]] = {}
        for place in (one for places in topic.values() for one in places):
            batch = decode_batch(place.value)
            node, tokens = batch.header.node, batch.tokens
            if tokens is None or tokens.token_id is None or tokens.event_time_us is None:
                continue
            columns = (tokens.token_id, tokens.event_time_us, tokens.position, tokens.request)
            for flags, serial, time, position, request in zip(
                tokens.flags.tolist(), *(column.tolist() for column in columns), strict=True
            ):
                if not flags & CONTEXT_FLAG:
                    found[node, serial] = (time, position, batch.requests.ids[request])
        keys = sorted(found)
        rows = [found[key] for key in keys]
        self.serial = np.array([serial for _, serial in keys], np.int64)
        self.node = np.array([node for node, _ in keys])
        self.time_us = np.array([row[0] for row in rows], np.int64)
        self.position = np.array([row[1] for row in rows], np.int64)
        self.request = np.array([row[2] for row in rows])

    def counts(self, chosen: NDArray[Any]) -> NDArray[np.int64]:
        """Assignments [L, E] of some of the rows."""
        serial = self.serial[chosen]
        ids = ids_of_steps()[serial // REQUESTS % TABLE, serial % REQUESTS]
        layers = np.arange(LAYERS)[None, :, None] * EXPERTS
        flat = np.bincount((ids + layers).ravel(), minlength=LAYERS * EXPERTS)
        return flat.reshape(LAYERS, EXPERTS)

    def by(self, column: NDArray[Any]) -> dict[Any, NDArray[np.int64]]:
        """Places of the rows with each value of a column."""
        order = np.argsort(column, kind="stable")
        values, begins = np.unique(column[order], return_index=True)
        return dict(zip(values.tolist(), np.split(order, begins[1:]), strict=True))


@dataclass(frozen=True, kw_only=True)
class EngineWindows:
    """Windows of engines' rows.

    Attributes:
        windows: Rows of the table that were compared. lost, twice: Assignments of them short of,
            and beyond, those of the rows that were delivered.
        holes: Time windows, by size, and whether they tell of missing rows.
        empty: Seconds of which every row of a node is missing. empty_with_row: Those of them
            that have a row of that node in the table all the same.
        producer_losses, batch_losses: Rows that `producers` and `batches` tell as lost.
    """

    windows: int
    lost: int
    twice: int
    holes: tuple[Holes, ...]
    empty: int
    empty_with_row: int
    producer_losses: int
    batch_losses: int

    @property
    def unmarked(self) -> int:
        """Windows of which rows are missing and that claim to be whole."""
        return sum(each.unmarked for each in self.holes)

    @property
    def blamed(self) -> int:
        """Windows that are marked where nobody tells of a loss."""
        return sum(each.blamed for each in self.holes)


def windows_of_engines(
    store_file: Path,
    topic: Mapping[int, Sequence[Place]],
    reports: Mapping[str, EngineReport],
) -> EngineWindows:
    """Time and token windows against the delivered rows, and against those that are missing."""
    rows = _Rows(topic)
    seconds = rows.time_us // SECOND_US
    per_second = {second: rows.counts(chosen) for second, chosen in rows.by(seconds).items()}
    by_request = rows.by(rows.request)
    with duckdb.connect(str(store_file), read_only=True) as connection:
        stored = connection.execute(
            "SELECT window_kind, size, start, request, list(counts ORDER BY layer), "
            "bool_and(complete AND coverage IS NOT NULL AND coverage >= 1) "
            "FROM windows WHERE window_kind IN ('time', 'token') AND scope_kind = 'all' "
            "GROUP BY ALL"
        ).fetchall()
        of_nodes = connection.execute(
            "SELECT DISTINCT scope_value, start // 1000000 FROM windows "
            "WHERE window_kind = 'time' AND scope_kind = 'node' AND size = 1000000"
        ).fetchall()
        (reached,) = connection.execute("SELECT watermark_us FROM domains").fetchall()[0]
        losses = [
            int(connection.execute(f"SELECT sum(lost_rows) FROM {table}").fetchall()[0][0] or 0)
            for table in ("producers", "batches")
        ]
    lost = twice = 0
    in_time: list[tuple[int, int, bool]] = []
    nothing = np.zeros((LAYERS, EXPERTS), np.int64)
    for kind, size, start, request, counts, is_whole in stored:
        if kind == "time":
            span = range(start // SECOND_US, (start + size) // SECOND_US)
            expected = sum((per_second.get(second, nothing) for second in span), nothing)
            in_time.append((size, start, is_whole))
        else:
            mine = by_request.get(request, np.zeros(0, np.int64))
            position = rows.position[mine]
            expected = rows.counts(mine[(position >= start) & (position < start + size)])
        off = np.array(counts, np.int64) - expected
        lost, twice = lost - int(off[off < 0].sum()), twice + int(off[off > 0].sum())
    # What is not there at all is lost, too; token windows are sampled.
    there = {start // SECOND_US for size, start, _ in in_time if size == SECOND_US}
    lost += sum(
        int(counts.sum())
        for second, counts in per_second.items()
        if second not in there and (second + 1 + LATENESS_S) * SECOND_US <= reached
    )
    delivered = Counter(zip(rows.node.tolist(), seconds.tolist(), strict=True))
    recorded = Seconds(reports, delivered)
    empty = recorded.empty()
    return EngineWindows(
        windows=len(stored) * LAYERS,
        lost=lost,
        twice=twice,
        holes=holes_of(in_time, recorded, seconds_of_losses(topic)),
        empty=len(empty),
        empty_with_row=len(empty & set(of_nodes)),
        producer_losses=losses[0],
        batch_losses=losses[1],
    )
