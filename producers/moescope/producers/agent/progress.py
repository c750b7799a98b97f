"""How far an agent is with a ring: totals so far, batches that wait for the log, and resuming."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from moescope.producers.ring.notes import Note
from moescope.producers.ring.unseen import REASON_SLOTS, spread_told

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moescope.core.batch import DropCounters
    from moescope.producers.agent.node_log import LastBatch


NOTHING_UNSEEN: Final = (0,) * (REASON_SLOTS + 1)


@dataclass(slots=True)
class ShippedCounters:
    """What went into the batch log, in rows (tokens) unless said otherwise.

    Attributes:
        batches: All batches, heartbeats among them.
        heartbeats: Batches without rows.
        rows: Recorded rows that were shipped.
        context_rows: Rows that were repeated.
        lost_rows: Overwritten in the ring before they were read.
        unseen_rows: Computed by the engine where nobody could record them.
        unencodable_rows: Rows that made no valid batch; reported as rejected.
        payload_bytes: Encoded bytes.
    """

    batches: int = 0
    heartbeats: int = 0
    rows: int = 0
    context_rows: int = 0
    lost_rows: int = 0
    unseen_rows: int = 0
    unencodable_rows: int = 0
    payload_bytes: int = 0

    def add(self, batch: PreparedBatch) -> None:
        """Count a batch that was appended."""
        self.batches += 1
        self.heartbeats += batch.rows == 0 and batch.context_rows == 0
        self.rows += batch.rows
        self.context_rows += batch.context_rows
        self.lost_rows += batch.told.ring_rows
        self.unseen_rows += batch.told.unseen_rows
        self.payload_bytes += len(batch.payload)


class PreparedBatch(NamedTuple):
    """A batch that waits for the log.

    Attributes:
        ring_from: Ring position after the batch before it.
        note: What a restarted agent has to know once the log has it.
        told: Drops that its header tells.
    """

    payload: bytes
    ring_from: int
    note: Note
    rows: int
    context_rows: int
    told: DropCounters


@dataclass(slots=True)
class Progress:
    """How far the prepared batches reach; `rows` is None when nobody knows."""

    sequence: int = 0
    position: int = 0
    rows: int | None = 0
    rejected_rows: int = 0
    unseen: tuple[int, ...] = NOTHING_UNSEEN
    inherited: bool = False

    @property
    def unseen_rows(self) -> int:
        """Unseen rows that are told, whatever the reason."""
        return sum(self.unseen)

    @classmethod
    def after(cls, note: Note, unseen: tuple[int, ...]) -> Progress:
        """As of the end of the batch that a note is about, with the ring's counts by reason."""
        told = note.unseen or spread_told(note.unseen_rows, unseen)
        return cls(
            note.sequence + 1, note.position, note.rows, note.rejected_rows, told,
            bool(note.inherited),
        )  # fmt: skip

    def note(self, sequence: int, log_batches: int) -> Note:
        """The note about the batch of that number, which reaches so far."""
        return Note(
            sequence=sequence,
            position=self.position,
            rows=self.rows or 0,
            rejected_rows=self.rejected_rows,
            unseen_rows=self.unseen_rows,
            log_batches=log_batches,
            inherited=1,
            unseen=self.unseen,
        )


def note_of(last: LastBatch | None, notes: Sequence[Note], incarnation: int) -> Note | None:
    """The note about the last batch that was appended, if there is one."""
    if last is not None and last.incarnation == incarnation:
        return next((note for note in notes if note.sequence == last.sequence), None)
    # Nothing of this ring is in the log. Two notes mean that there was: the log was removed.
    return notes[0] if len(notes) > 1 else None
