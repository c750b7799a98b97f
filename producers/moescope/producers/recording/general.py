"""Any call that makes sense, written row by row where need be: the way that is right, not fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from moescope.core.vocabulary import RowFlag
from moescope.producers.recording.running import flags_for
from moescope.producers.recording.splitting import Chunk, fitting_chunks
from moescope.producers.ring.rows import RowShape, column_mask, write_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moescope.producers.recording.call import RecordCall
    from moescope.producers.recording.counters import Complaints, RowBooks
    from moescope.producers.recording.event_times import EventTimes
    from moescope.producers.recording.running import RunningRequest, RunningRequests
    from moescope.producers.recording.sampling import Sampling
    from moescope.producers.ring.layout import Geometry
    from moescope.producers.ring.writer import RingWriter

_RECOMPUTED: Final = np.uint8(RowFlag.RECOMPUTED)


class PartlyWrittenError(Exception):
    """Some rows of a call did not reach the ring; never leaves the recorder.

    Args:
        rows: How many.
    """

    def __init__(self, rows: int) -> None:
        super().__init__(f"{rows} rows did not reach the ring")
        self.rows = rows


class GeneralCalls:
    """Writes checked calls into the ring, under its lock.

    Args:
        running: The recorder's requests.
        sampling: Which of them are recorded.
        shape: What the rows have in common.
        geometry: Of the ring.
        books: Counts rows that are not recorded.
        times: Of rows that come without one.
        complaints: Says why rows are left out.
    """

    def __init__(
        self,
        *,
        running: RunningRequests,
        sampling: Sampling,
        shape: RowShape,
        geometry: Geometry,
        books: RowBooks,
        times: EventTimes,
        complaints: Complaints,
    ) -> None:
        self._running = running
        self._sampling = sampling
        self._shape = shape
        self._geometry = geometry
        self._books = books
        self._times = times
        self._complaints = complaints

    def write(self, ring: RingWriter, call: RecordCall) -> None:
        """Write a call's rows; the others are counted.

        Raises:
            PartlyWrittenError: An error of the recorder's own, after a part of the rows.
        """
        if not self._sampling.takes_all:
            self._leave_out(call)
        resolved = self._running.resolve(call.names)
        if resolved.has_impossible:
            impossible = np.repeat([request is None for request in resolved.requests], call.counts)
            call.condemn(impossible, "request ids that are no short text")
        if call.bad_rows is not None:
            self._complaints.say_once(f"record: {call.bad_row_reason}")
            self._books.book(rejected=int(np.count_nonzero(call.bad_rows)))
            call.keep(~call.bad_rows)
            resolved = self._running.resolve(call.names)
        if not call.rows:
            return
        values = call.values
        requests = cast("Sequence[RunningRequest]", resolved.requests)
        flags = flags_for(requests, call.counts, values["position"], values["phase"], call.padding)
        values["flags"] = flags
        ring.enter()
        try:
            first_us, last_us = self._span(values)
            chunk = Chunk(
                values, resolved.facts, resolved.packed, call.counts, call.rows, first_us, last_us
            )
            self._write_pieces(ring, chunk)
        finally:
            ring.leave()
        self._books.recomputed.add(int(np.count_nonzero(flags & _RECOMPUTED)))

    def _write_pieces(self, ring: RingWriter, chunk: Chunk) -> None:
        mask = column_mask(chunk.values)
        written = 0
        try:
            for piece, placement in fitting_chunks(chunk, self._shape, mask, self._geometry):
                write_rows(
                    ring, placement, mask, piece.values, packed_facts=piece.packed,
                    counts=piece.counts, rows=piece.rows, first_us=piece.first_us,
                    last_us=piece.last_us,
                )  # fmt: skip
                written += piece.rows
        except Exception as error:
            raise PartlyWrittenError(chunk.rows - written) from error

    def _leave_out(self, call: RecordCall) -> None:
        """Take out the rows of requests that sampling does not take; bad ones count as such."""
        takes = np.repeat([*map(self._sampling.takes, call.names)], call.counts)
        keep = takes if call.bad_rows is None else takes | call.bad_rows
        self._books.unsampled.add(call.rows - int(np.count_nonzero(keep)))
        call.keep(keep)

    def _span(self, values: dict[str, Any]) -> tuple[int, int]:
        given = values.get("event_time_us")
        if given is None:
            now = self._times.now_us()
            return now, now
        if given.ndim == 0:
            del values["event_time_us"]
            return int(given), int(given)
        return int(given.min()), int(given.max())
