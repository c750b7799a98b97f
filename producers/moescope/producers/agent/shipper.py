"""Ships one ring: each frame into exactly one numbered batch, whenever the agent is killed."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from moescope.core.batch import STEPS_ENDED, STEPS_LABEL, BatchError, DropCounters
from moescope.core.wire import encode_batch
from moescope.producers.agent.batching import build_batch
from moescope.producers.agent.context import ContextRows
from moescope.producers.agent.counts import COUNTS_CONTEXT
from moescope.producers.agent.current_terms import (
    BatchTerms,
    CurrentTerms,
    with_label,
)
from moescope.producers.agent.grouping import GroupedRows, group_rows, update_context
from moescope.producers.agent.pending import PendingFrames
from moescope.producers.agent.progress import PreparedBatch, Progress, ShippedCounters, note_of
from moescope.producers.recording.splitting import MAX_SPAN_US
from moescope.producers.ring.unseen import WITHOUT_REASON
from moescope.producers.terms import UNSEEN_REASON

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moescope.core.batch import Placement
    from moescope.core.clock import Clock
    from moescope.producers.agent.node_log import NodeLog
    from moescope.producers.agent.settings import AgentSettings
    from moescope.producers.profile import Profile
    from moescope.producers.ring.reader import Frame, RingReader

CONTEXT_SEGMENTS: Final = 2
"""How far before its resume point a restarted agent reads again, to know context rows."""

_STEP_BYTES: Final = 16 * 1024 * 1024
_LARGEST_EXPECTED_RATIO: Final = 8
_FILL: Final = 0.9

_log = logging.getLogger("moescope.producers")


class RingShipper:
    """Turns the frames of one ring into batches of the node's log.

    Args:
        reader: The ring.
        profile: Its producer.
        log: The node's log.
        clock: Time.
        settings: Of the agent.
        counters: Are added to.

    Attributes:
        finished: Whether the ring has ended, all of it is in the log, and nobody waits for its
            heartbeats any more.
        superseded: Whether a newer ring of the node waits.
    """

    def __init__(
        self,
        reader: RingReader,
        profile: Profile,
        log: NodeLog,
        *,
        clock: Clock,
        settings: AgentSettings,
        counters: ShippedCounters,
    ) -> None:
        self.reader = reader
        self.finished = False
        self.superseded = False
        self._ended_at: float | None = None
        self._said_goodbye = False
        self._has_steps = False
        self._has_told_end = False
        self._shape = profile.shape
        self._terms = CurrentTerms(profile)
        self._log = log
        self._clock = clock
        self._settings = settings
        self._counters = counters
        self._context = ContextRows()
        self._has_counts_context = False
        self._pending = PendingFrames(MAX_SPAN_US, settings.batch_bytes)
        self._outbox: deque[PreparedBatch] = deque()
        self._has_unconfirmed = False
        self._latest_batch = clock.monotonic()
        self._done = self._resume()

    @property
    def shipped_to(self) -> int:
        """Ring position up to which everything is in the log."""
        return self._outbox[0].ring_from if self._outbox else self._done.position

    @property
    def is_idle(self) -> bool:
        """Whether all that was recorded is in the log."""
        return not self._outbox and self._has_read_all()

    def step(self, *, flush: bool = False) -> bool:
        """Ship what is due; whether there was anything to do.

        Args:
            flush: Close the open batch as soon as the ring is empty.

        Raises:
            BatchLogError: The log refused. Nothing is lost: the next step tries again.
            RingFormatError: The ring is damaged.
            BatchError: Nothing that the ring says makes a batch.
        """
        try:
            return self._step(flush=flush)
        finally:
            if self._has_unconfirmed:
                self._log.flush()
                self._has_unconfirmed = False

    def _step(self, *, flush: bool) -> bool:
        self.reader.check(self._shape)
        worked = self._send()
        budget = _STEP_BYTES
        while budget > 0:
            frame = self.reader.read()
            if frame is None:
                break
            worked = True
            budget -= frame.header.length
            if not self._pending.accepts(frame):
                self._prepare(self._pending.take(), frame.header.first_us)
                self._pending.add(frame, self._clock.monotonic())
                self._send()
            else:
                self._pending.add(frame, self._clock.monotonic())
        if budget > 0:
            worked |= self._when_empty(flush=flush)
        return worked

    def _when_empty(self, *, flush: bool) -> bool:
        now_us = self._clock.now_us()  # before the question, so that it is a true watermark
        if not self.reader.is_quiet():
            return False
        has_ended = self.reader.has_ended
        waited_us = (self._clock.monotonic() - self._pending.since) * 1e6
        if self._pending.frames:
            if flush or has_ended or waited_us >= self._settings.group_us:
                self._prepare(self._pending.take(), now_us)
        elif has_ended and not self.reader.is_quiet():
            return True  # it wrote once more before it ended
        elif self._has_to_speak(has_ended=has_ended, flush=flush):
            self._prepare([], now_us)
        if has_ended and self._owes_end_of_steps() and self._has_read_all():
            self._has_told_end = True
            self._prepare([], now_us)
        worked = self._send()
        if has_ended:
            self._finish(flush=flush)
        return worked

    def _has_to_speak(self, *, has_ended: bool, flush: bool) -> bool:
        """Whether a batch without rows is due."""
        if has_ended and self._is_silent_about_something():
            return True
        if has_ended and flush and not self._said_goodbye:
            self._said_goodbye = True
            return True
        return self._silence_us() >= self._settings.heartbeat_us

    def _finish(self, *, flush: bool) -> None:
        if self._has_unconfirmed:
            self._log.flush()  # before the ring goes
        if self._ended_at is None:
            self._ended_at = self._clock.monotonic()
        lingers = (self._clock.monotonic() - self._ended_at) * 1e6 < self._settings.linger_us
        self.finished = (
            self.is_idle
            and not self._is_silent_about_something()
            and not self._owes_end_of_steps()
            and (flush or self.superseded or not lingers)
        )

    def _owes_end_of_steps(self) -> bool:
        """Whether no batch says yet that the last optimizer step is done."""
        return self.reader.is_complete and self._has_steps and not self._has_told_end

    def _has_read_all(self) -> bool:
        return not self._pending.frames and self.reader.is_quiet()

    def _silence_us(self) -> float:
        return (self._clock.monotonic() - self._latest_batch) * 1e6

    def _is_silent_about_something(self) -> bool:
        """Whether a ring that has ended has counts that no batch carries yet."""
        done = self._done
        return (
            self.reader.rejected_rows > done.rejected_rows
            or self.reader.unseen_rows > done.unseen_rows
            or (self.reader.inherited_rows > 0 and not done.inherited)
            or (done.rows is not None and self.reader.total_rows > done.rows)
        )

    def _resume(self) -> Progress:
        last = self._log.last
        note = note_of(last, self.reader.notes(), self.reader.incarnation)
        if note is not None:
            done = Progress.after(note, self.reader.unseen_by_reason())
            self._check_told(done)
            self._log.reported_batches = min(note.log_batches, self._log.dropped_batches)
        elif last is not None and last.incarnation == self.reader.incarnation:
            _log.warning(
                "No note about batch %d: rows lost before it are not counted.", last.sequence
            )
            done = Progress(
                last.sequence + 1, last.ring_to, None, self.reader.rejected_rows,
                self.reader.unseen_by_reason(), inherited=True,
            )  # fmt: skip
        else:
            return Progress()
        self._remember_before(done.position)
        self.reader.position = done.position
        return done

    def _check_told(self, done: Progress) -> None:
        """Batches cannot have told of more rows than the ring counts."""
        reader = self.reader
        told = (done.rejected_rows, *done.unseen)
        counted = (reader.rejected_rows, *reader.unseen_by_reason())
        for before, now in zip(told, counted, strict=True):
            if before > now:
                raise reader.damage(
                    f"It counts {now} rejected or unseen rows, of which batches told {before}."
                )

    def _remember_before(self, position: int) -> None:
        """Read again what was shipped last, for the context rows of the next batch."""
        start = self.reader.segment_start_before(position, CONTEXT_SEGMENTS)
        if start is None:
            return
        self.reader.position = start
        pending = PendingFrames(2**62, 2**62)
        while self.reader.position < position and (frame := self.reader.read()) is not None:
            if not pending.accepts(frame):
                self._remember_frames(pending.take())
            pending.add(frame, 0.0)
        self._remember_frames(pending.take())

    def _remember_frames(self, frames: Sequence[Frame]) -> None:
        terms = self._terms_of(frames)
        self._remember(self._grouped(frames, terms), terms)

    def _terms_of(self, frames: Sequence[Frame]) -> BatchTerms:
        return self._terms.read(frames[0].terms if frames else self.reader.terms)

    def _grouped(self, frames: Sequence[Frame], terms: BatchTerms) -> GroupedRows:
        if terms.is_counts != self._has_counts_context:
            self._has_counts_context = terms.is_counts
            if terms.is_counts:
                self._context.keep_columns(COUNTS_CONTEXT)
            else:
                self._context.forget_all()
        grouped = group_rows(frames, self._shape, self._context, repeat_context=not terms.is_counts)
        self._has_steps |= "step" in grouped.columns
        return grouped

    def _remember(self, grouped: GroupedRows, terms: BatchTerms) -> None:
        update_context(self._context, grouped, COUNTS_CONTEXT if terms.is_counts else ())

    def _prepare(self, frames: Sequence[Frame], watermark_us: int) -> None:
        """Make the next batch of these frames, and one more for each further reason of unseen rows.

        A header names one reason: rows that are unseen for another one need a batch of their own.
        """
        terms = self._terms_of(frames)
        first, *others = self._untold_reasons() or [WITHOUT_REASON]
        if not others:
            self._prepare_batch(frames, terms, watermark_us, first)
            return
        # They come second: what a node's rows are tells what the unseen ones would have been.
        earliest_us = min([frame.header.first_us for frame in frames] + [watermark_us])
        self._prepare_batch(frames, terms, earliest_us, first)
        for slot in others:
            at_us = watermark_us if slot == others[-1] else earliest_us
            self._prepare_batch([], terms, at_us, slot, follows=True)

    def _untold_reasons(self) -> list[int]:
        """Slots of the reasons of which no batch tells all rows, the one of most rows first."""
        counted = self.reader.unseen_by_reason()
        untold = [rows - told for rows, told in zip(counted, self._done.unseen, strict=True)]
        slots = [slot for slot, rows in enumerate(untold) if rows > 0]
        return sorted(slots, key=lambda slot: -untold[slot])

    def _prepare_batch(
        self,
        frames: Sequence[Frame],
        terms: BatchTerms,
        watermark_us: int,
        slot: int,
        *,
        follows: bool = False,
    ) -> None:
        """Make the next batch, or two where one would be too long.

        Args:
            frames: Whose rows it holds.
            terms: What holds for them.
            watermark_us: Nothing earlier follows.
            slot: Of the reason of the unseen rows that it tells of.
            follows: Whether frames that were read, and are in no batch yet, may come after it.
        """
        of_frames = terms
        grouped = self._grouped(frames, terms)
        drops, done = self._account(frames, slot, follows=follows)
        reason = self.reader.unseen_reason(slot) if drops.unseen_rows else ""
        if reason:
            terms = with_label(terms, UNSEEN_REASON, reason)
        if self._has_told_end:
            terms = with_label(terms, STEPS_LABEL, STEPS_ENDED)
        rows = grouped.recorded_rows
        now = self._clock.monotonic()
        placement = self._terms.placement_due(terms, now)
        header = (terms, placement, watermark_us)
        try:
            payload = self._encode(grouped, *header, drops)
        except BatchError:
            if len(frames) > 1:
                self._prepare_halves(frames, of_frames, watermark_us, slot)
                return
            _log.exception("%d rows of the ring make no batch.", rows)
            self._counters.unencodable_rows += rows
            drops = replace(drops, rejected_rows=drops.rejected_rows + rows)
            grouped, rows = _nothing(grouped), 0
            payload = self._encode(grouped, *header, drops)
        if len(payload) > self._settings.batch_bytes and len(frames) > 1:
            self._prepare_halves(frames, of_frames, watermark_us, slot)
            return
        self._adapt(frames, len(payload))
        self._remember(grouped, terms)
        self._terms.told(placement, now)
        note = done.note(self._done.sequence, self._log.reported_batches + drops.log_batches)
        self._log.reported_batches += drops.log_batches
        self._log.reported_rows += drops.log_rows
        self._log.untold_rejected_rows = 0
        context_rows = len(grouped.request) - rows
        self._outbox.append(
            PreparedBatch(payload, self._done.position, note, rows, context_rows, drops)
        )
        self._done = done

    def _prepare_halves(
        self, frames: Sequence[Frame], terms: BatchTerms, watermark_us: int, slot: int
    ) -> None:
        middle = len(frames) // 2
        earliest = min(frame.header.first_us for frame in frames[middle:])
        self._prepare_batch(frames[:middle], terms, min(earliest, watermark_us), slot)
        self._prepare_batch(frames[middle:], terms, watermark_us, slot)

    def _encode(
        self,
        grouped: GroupedRows,
        terms: BatchTerms,
        placement: Placement | None,
        watermark_us: int,
        drops: DropCounters,
    ) -> bytes:
        header = terms.profile.header(
            self.reader.incarnation,
            self._done.sequence,
            watermark_us=watermark_us,
            encoded_at_us=self._clock.now_us(),
            drops=drops,
            placement=placement,
        )
        return encode_batch(build_batch(terms.profile, header, grouped))

    def _account(
        self, frames: Sequence[Frame], slot: int, *, follows: bool
    ) -> tuple[DropCounters, Progress]:
        """What was lost up to the end of these frames, and how far they reach."""
        done = self._done
        rows, position, lost = done.rows, done.position, 0
        for frame in frames:
            header = frame.header
            if rows is not None:
                lost += max(0, header.rows_before - rows)
            rows = header.rows_before + header.rows
            position = frame.end
        is_last = not frames and not follows and self.reader.has_ended and self.reader.is_quiet()
        if is_last and rows is not None:
            behind = self.reader.rows_behind(position, rows, self._shape)
            lost += behind  # damaged, behind the last valid frame
            rows += behind
        rejected, unseen = self.reader.rejected_rows, list(done.unseen)
        unseen[slot] = max(unseen[slot], self.reader.unseen_by_reason()[slot])
        drops = DropCounters(
            ring_rows=lost + (0 if done.inherited else self.reader.inherited_rows),
            log_batches=self._log.dropped_batches - self._log.reported_batches,
            log_rows=self._log.dropped_rows - self._log.reported_rows,
            rejected_rows=rejected - done.rejected_rows + self._log.untold_rejected_rows,
            unseen_rows=unseen[slot] - done.unseen[slot],
        )
        return drops, Progress(
            done.sequence + 1, position, rows, rejected, tuple(unseen), inherited=True
        )

    def _adapt(self, frames: Sequence[Frame], payload_bytes: int) -> None:
        """Learn how many bytes of frames fill a batch."""
        raw = sum(frame.header.length for frame in frames)
        limit = self._settings.batch_bytes
        if raw >= limit // 4:
            expected = int(raw * limit * _FILL / payload_bytes)
            self._pending.raw_bytes = min(
                max(expected, limit // 2), _LARGEST_EXPECTED_RATIO * limit
            )

    def _send(self) -> bool:
        """Append what is prepared."""
        if not self._outbox:
            return False
        while self._outbox:
            batch = self._outbox[0]
            self.reader.note(batch.note)
            self._log.append(
                batch.payload, batch.ring_from, batch.note.position, batch.rows, batch.told
            )
            self._outbox.popleft()
            self._latest_batch = self._clock.monotonic()
            self._counters.add(batch)
            self._has_unconfirmed = True
        return True


def _nothing(grouped: GroupedRows) -> GroupedRows:
    return GroupedRows([], grouped.request[:0], {}, 0, grouped.ended)
