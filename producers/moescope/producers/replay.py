"""Plays recorded routing again at another time, as one node of a log."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from moescope.core.batch import DropCounters, RoutingBatch
from moescope.core.batchlog import BatchLogReader, BatchLogWriter
from moescope.core.clock import END_OF_TIME, NO_TIME
from moescope.core.errors import InputError
from moescope.core.wire import decode_batch, encode_batch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

    from moescope.core.batch import BatchHeader, Requests, TimeBlocks, TokenBlocks, Tokens
    from moescope.core.batchlog import LogRecord

_AT_ONCE: Final = 64
_SHIPPING_US: Final = 25_000
"""How long after its watermark a batch reaches the log."""


class ReplayError(InputError):
    """A recording cannot be played: it is missing, empty, without times, or of another model."""


@dataclass(slots=True)
class ReplayTotals:
    """What was played.

    Attributes:
        rows: Tokens, without repeated context rows.
        assignments: (token, layer, expert) selections of these.
        wire_bytes: Size of the records.
    """

    records: int = 0
    rows: int = 0
    assignments: int = 0
    wire_bytes: int = 0


class Replay:
    """Writes recordings to one partition of a batch log, one after the other in event time.

    Routing, positions, phases, scenes and cached tokens are played as they were recorded. Event
    times move by a constant per recording, batches get numbers of the replaying node, and request
    and task names get the recording's name in front: one recording may be played beside another
    that holds the same names.

    Args:
        root: Log root to write to.
        node: Replaying node, and the partition's name.
        domain: Watermark domain of the partition.
        incarnation: Boot id, unsigned 64 bits.

    Raises:
        BatchLogError: The partition cannot be written.
    """

    def __init__(self, root: Path, node: str, *, domain: str, incarnation: int = 1) -> None:
        self._node = node
        self._incarnation = incarnation
        self._sequence = 0
        self._last: BatchHeader | None = None
        self._reached_us = NO_TIME
        self._writer = BatchLogWriter(root, node, domain=domain)
        self.totals = ReplayTotals()

    def play(
        self,
        recordings: Path,
        recording: str,
        start_us: int,
        part_us: tuple[int, int] | None = None,
    ) -> int:
        """Write a recording, or a part of it, so that its first row is at `start_us`.

        Args:
            recordings: Log root that holds the recording.
            recording: Its partition.
            start_us: Event time of its first row; not before anything that was played before.
            part_us: [from, to) of recorded event time; None: all of it. No batch may hold rows
                on both sides of an end.

        Returns:
            Event time of its last row, in µs.

        Raises:
            ReplayError: It cannot be played.
            BatchLogError: Reading or writing failed.
        """
        first_us = NO_TIME
        for record in _records(recordings, recording):
            batch = decode_batch(record.payload)
            self._check_model(batch.header, recording)
            span = _span(batch)
            if part_us is not None and not _is_inside(span, part_us, recording):
                continue
            if first_us == NO_TIME:
                if span is None:
                    continue  # Nothing was computed yet.
                first_us = span[0]
                if start_us < self._reached_us:
                    raise ReplayError(
                        f"The recording {recording} would start in the past of its node.",
                        why=f"{self._node} has played up to {self._reached_us} µs.",
                        next_step="Start it later, or on a node of its own.",
                    )
            self._write(_moved(batch, start_us - first_us, recording))
            if span is not None:
                self._reached_us = max(self._reached_us, span[1] + start_us - first_us)
        if first_us == NO_TIME:
            raise ReplayError(
                f"The recording {recording} has no row with an event time.",
                next_step="Record with event times.",
            )
        return self._reached_us

    def wait_until(self, time_us: int) -> None:
        """Say that nothing earlier than `time_us` follows.

        Raises:
            ReplayError: Nothing was played yet, so the model is not known.
        """
        if self._last is None:
            raise ReplayError("A replay cannot wait before it has played anything.")
        header = replace(self._last, watermark_us=time_us, encoded_at_us=time_us)
        self._write(RoutingBatch(header=header))
        self._reached_us = max(self._reached_us, time_us)

    def close(self, *, seal: bool = True) -> None:
        """End the replay; a sealed partition never gets another record."""
        if seal:
            self._writer.seal()
        self._writer.close()

    def __enter__(self) -> Self:
        """The replay itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Seal after success; after an error leave the partition open, for it lacks something."""
        self.close(seal=kind is None)

    def _check_model(self, header: BatchHeader, recording: str) -> None:
        last = self._last
        if last is not None and (header.model, header.revision, header.experts, header.top_k) != (
            last.model,
            last.revision,
            last.experts,
            last.top_k,
        ):
            raise ReplayError(
                f"The recording {recording} is of another model or revision.",
                why=f"{self._node} plays {last.model} {last.revision}, not {header.model}"
                f" {header.revision}.",
                next_step="Play it on a node of its own.",
            )

    def _write(self, batch: RoutingBatch) -> None:
        header = replace(
            batch.header,
            node=self._node,
            incarnation=self._incarnation,
            sequence=self._sequence,
            drops=DropCounters(),
        )
        payload = encode_batch(replace(batch, header=header))
        append_us = max(header.watermark_us, header.encoded_at_us, self._reached_us) + _SHIPPING_US
        self._writer.append(payload, append_time_us=append_us)
        self._sequence += 1
        self._last = header
        self.totals.records += 1
        self.totals.wire_bytes += len(payload)
        if batch.tokens is not None:
            rows = int(((batch.tokens.flags & 1) == 0).sum())
            self.totals.rows += rows
            self.totals.assignments += rows * len(header.layers) * header.top_k


def _records(root: Path, recording: str) -> Iterator[LogRecord]:
    with BatchLogReader(root, recording) as reader:
        offset = reader.first_offset()
        while True:
            result = reader.read(offset, max_records=_AT_ONCE)
            if result.gap is not None or result.corrupt:
                raise ReplayError(
                    f"The recording {recording} has a gap at record {offset}.",
                    why="Records are missing or damaged.",
                    next_step="Restore its files.",
                )
            if not result.records:
                return
            yield from result.records
            offset = result.next_offset


def _span(batch: RoutingBatch) -> tuple[int, int] | None:
    """First and last event time of a batch's rows, None without any."""
    if batch.tokens is None or batch.tokens.event_time_us is None or not len(batch.tokens):
        return None
    own = (batch.tokens.flags & 1) == 0
    times = batch.tokens.event_time_us[own]
    return (int(times.min()), int(times.max())) if len(times) else None


def _is_inside(span: tuple[int, int] | None, part_us: tuple[int, int], recording: str) -> bool:
    """Whether a batch belongs to a part; batches without rows of their own do not."""
    if span is None:
        return False
    inside = [part_us[0] <= time < part_us[1] for time in span]
    if inside[0] != inside[1]:
        raise ReplayError(
            f"A part of the recording {recording} ends inside of a batch.",
            why=f"The batch has rows from {span[0]} to {span[1]} µs.",
            next_step="Choose an end at which no request is running.",
        )
    return inside[0]


def _moved(batch: RoutingBatch, by_us: int, recording: str) -> RoutingBatch:
    header = replace(
        batch.header,
        # "Nothing follows at all" was true of the recording, not of the replaying node.
        watermark_us=NO_TIME
        if batch.header.watermark_us == END_OF_TIME
        else _later(batch.header.watermark_us, by_us),
        encoded_at_us=_later(batch.header.encoded_at_us, by_us),
    )
    return replace(
        batch,
        header=header,
        requests=_renamed(batch.requests, recording),
        tokens=None if batch.tokens is None else _moved_tokens(batch.tokens, by_us),
        token_blocks=None
        if batch.token_blocks is None
        else _moved_blocks(batch.token_blocks, by_us),
        time_blocks=None if batch.time_blocks is None else _moved_seconds(batch.time_blocks, by_us),
    )


def _renamed(requests: Requests, recording: str) -> Requests:
    return replace(
        requests,
        ids=tuple(f"{recording}/{name}" for name in requests.ids),
        tasks=tuple(f"{recording}/{name}" if name else "" for name in requests.tasks),
    )


def _moved_tokens(tokens: Tokens, by_us: int) -> Tokens:
    times = tokens.event_time_us
    return tokens if times is None else replace(tokens, event_time_us=times + by_us)


def _moved_blocks(blocks: TokenBlocks, by_us: int) -> TokenBlocks:
    if blocks.first_time_us is None or blocks.last_time_us is None:
        return blocks
    return replace(
        blocks,
        first_time_us=blocks.first_time_us + by_us,
        last_time_us=blocks.last_time_us + by_us,
    )


def _moved_seconds(seconds: TimeBlocks, by_us: int) -> TimeBlocks:
    if by_us % 1_000_000:
        raise ReplayError(
            "A recording with counts per second can only move by whole seconds.",
            next_step="Choose another start.",
        )
    return replace(seconds, second_us=seconds.second_us + np.int64(by_us))


def _later(time_us: int, by_us: int) -> int:
    return time_us if time_us in {NO_TIME, END_OF_TIME} else time_us + by_us
