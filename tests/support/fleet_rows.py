"""The rows of an engine, one by one: what became of them, and which windows say so."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
from support.fleet_engine import EXPERTS, LAYERS, REQUESTS, TABLE, ids_of_steps

from moescope.core.batchlog import BatchLogReader, BatchLogWriter, list_partitions
from moescope.core.wire import decode_batch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from support.fleet_engine import EngineReport
    from support.fleet_topic import Place

SECOND_US = 1_000_000
CONTEXT_FLAG = 1
LATENESS_S = 2
NOTICE_US = 500_000
"""How much later than a broker takes a batch the agent may learn of it."""


def batches_and_rows(log: Path, node: str, topic: Mapping[int, Sequence[Place]]) -> dict[str, int]:
    """What became of an agent's batches and rows.

    An agent that lives on gives the batches of its log the sequence numbers 0, 1, 2, …

    Returns:
        `written`, `delivered`, `dropped` batches; `told`: those that headers tell as dropped;
        `delivered_rows`, `told_rows`; `strange`: delivered batches that were never written;
        `stranded`: batches that the log still holds, and the topic does not; `burst`: most batches
        that arrived in a time in which the agent may not have learnt of them.
    """
    (info,) = list_partitions(log)
    assert info.name == node
    with BatchLogReader(log, node) as reader:
        first_kept = reader.first_offset()
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
        "strange": len(delivered.keys() - set(range(info.end_offset))),
        "stranded": len(set(range(first_kept, info.end_offset)) - delivered.keys()),
        "burst": largest_burst([one.arrived_us for places in topic.values() for one in places]),
        "told": sum(one.log_batches for one in drops),
        "delivered_rows": len(serials),
        "told_rows": sum(one.log_rows + one.ring_rows for one in drops),
    }


def largest_burst(arrived_us: Sequence[int]) -> int:
    """Most records that arrived within `NOTICE_US`."""
    times = np.sort(np.array(arrived_us, np.int64))
    inside = np.searchsorted(times, times + NOTICE_US, side="right") - np.arange(len(times))
    return int(inside.max(initial=0))


class _Rows:
    """The rows of an engine that were delivered; what each of them routed is known by its number.

    Attributes:
        serial, time_us, position: int64 [N]. request: [N].
    """

    def __init__(self, topic: Mapping[int, Sequence[Place]]) -> None:
        found: dict[int, tuple[int, int, str]] = {}
        for place in (one for places in topic.values() for one in places):
            batch = decode_batch(place.value)
            tokens = batch.tokens
            if tokens is None or tokens.token_id is None or tokens.event_time_us is None:
                continue
            columns = (tokens.token_id, tokens.event_time_us, tokens.position, tokens.request)
            for flags, serial, time, position, request in zip(
                tokens.flags.tolist(), *(column.tolist() for column in columns), strict=True
            ):
                if not flags & CONTEXT_FLAG:
                    found[serial] = (time, position, batch.requests.ids[request])
        self.serial = np.array(sorted(found), np.int64)
        rows = [found[serial] for serial in self.serial.tolist()]
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


def windows_of_engine(
    store_file: Path, topic: Mapping[int, Sequence[Place]], report: EngineReport
) -> dict[str, int]:
    """Time and token windows against the delivered rows, and against the seconds that lack rows.

    Returns:
        `lost`, `twice`: assignments of windows short of, and beyond, those of the rows; `windows`:
        rows of the table that were compared; `holes`: seconds of which rows are missing;
        `unmarked`: those of them whose window claims to be whole; `beside`: windows that are marked
        although their seconds lack nothing, where a loss is spread over them; `blamed`: elsewhere.
    """
    rows = _Rows(topic)
    seconds = rows.time_us // SECOND_US
    place_of = {second: place for place, second in enumerate(np.unique(seconds).tolist())}
    per_second = [rows.counts(seconds == second) for second in place_of]
    by_request = {name: rows.request == name for name in np.unique(rows.request).tolist()}
    with duckdb.connect(str(store_file), read_only=True) as connection:
        stored = connection.execute(
            "SELECT window_kind, size, start, request, list(counts ORDER BY layer), "
            "bool_and(complete AND coverage IS NOT NULL AND coverage >= 1), max(task) "
            "FROM windows WHERE window_kind IN ('time', 'token') AND scope_kind = 'all' "
            "GROUP BY ALL"
        ).fetchall()
        (reached,) = connection.execute("SELECT watermark_us FROM domains").fetchall()[0]
    lost = twice = 0
    whole: dict[int, bool] = {}
    nothing = np.zeros((LAYERS, EXPERTS), np.int64)
    for kind, size, start, request, counts, is_whole, _ in stored:
        if kind == "time":
            span = range(start // SECOND_US, (start + size) // SECOND_US)
            expected = sum((per_second[place_of[s]] for s in span if s in place_of), nothing)
            if size == SECOND_US:
                whole[start // SECOND_US] = is_whole
        else:
            inside = (rows.position >= start) & (rows.position < start + size)
            expected = rows.counts(by_request[request] & inside)
        off = np.array(counts, np.int64) - expected
        lost, twice = lost - int(off[off < 0].sum()), twice + int(off[off > 0].sum())
    # What is not there at all is lost, too; token windows are sampled.
    lost += sum(
        int(per_second[place].sum())
        for second, place in place_of.items()
        if second not in whole and (second + 1 + LATENESS_S) * SECOND_US <= reached
    )
    recorded = Counter(round(step.at * SECOND_US) // SECOND_US for step in report.steps)
    delivered = Counter(seconds.tolist())
    # A step at a border may be counted one second later than it was called.
    holes = {
        second
        for second, steps in recorded.items()
        if delivered[second] < (steps - 1) * REQUESTS and second in whole
    }
    marked = {
        second
        for second, is_whole in whole.items()
        if not is_whole and abs(delivered[second] - recorded[second] * REQUESTS) <= REQUESTS
    }
    told = seconds_of_losses(topic)
    return {
        "windows": len(stored) * LAYERS,
        "lost": lost,
        "twice": twice,
        "holes": len(holes),
        "unmarked": sum(whole[second] for second in holes),
        "beside": len(marked & told),
        "blamed": len(marked - told),
    }


def seconds_of_losses(topic: Mapping[int, Sequence[Place]]) -> set[int]:
    """Seconds over which losses are spread: from the watermark before one to the first row after.

    Each node's first record of a batch counts, in the order of the topic.
    """
    last: dict[str, tuple[int, int]] = {}
    found: set[int] = set()
    for batch in (decode_batch(one.value) for places in topic.values() for one in places):
        header, tokens = batch.header, batch.tokens
        sequence, watermark = last.get(header.node, (-1, header.watermark_us))
        if header.sequence <= sequence:
            continue
        if header.drops.lost_rows or header.sequence > sequence + 1:
            times = None if tokens is None else tokens.event_time_us
            end = header.watermark_us if times is None or not len(times) else int(times.min())
            found |= set(range(watermark // SECOND_US, end // SECOND_US + 1))
        last[header.node] = (header.sequence, max(watermark, header.watermark_us))
    return found
