"""The reader's notes in a ring's header: what a batch's number stood for.

A batch log record holds the ring position where it ended, but not how many rows that was, and a
restarted agent that was lapped meanwhile has to know to count what it lost. So the agent leaves a
note before each append. Two slots are enough: at most one batch can be noted and not appended.
"""

from __future__ import annotations

from typing import NamedTuple

from crc32c import crc32c

from moescope.producers.ring.layout import NOTE, NOTE_SLOTS, NOTE_STRIDE, NOTES_AT
from moescope.producers.ring.unseen import read_told, write_told


class Note(NamedTuple):
    """Totals of an incarnation as of the end of one batch.

    Attributes:
        sequence: Number of the batch.
        position: Ring position after its last frame.
        rows: Rows recorded up to there, whether shipped or lost.
        rejected_rows: Rejected rows reported up to this batch.
        unseen_rows: Unseen rows reported up to this batch.
        log_batches: Dropped by the batch log, since its partition was made, and reported up to
            this batch.
        inherited: 1 once the rows of older, removed rings are reported.
        unseen: Unseen rows reported up to this batch by slot of the reason; empty where unknown.
    """

    sequence: int
    position: int
    rows: int
    rejected_rows: int
    unseen_rows: int
    log_batches: int
    inherited: int
    unseen: tuple[int, ...] = ()


def write_note(header: memoryview, note: Note) -> None:
    """Store a note in the slot of its sequence number."""
    if note.unseen:
        write_told(header, note.sequence, note.unseen)
    place = _place(note.sequence % NOTE_SLOTS)
    fields = note[:-1]
    NOTE.pack_into(header, place, *fields, 0)
    checksum = crc32c(header[place : place + NOTE.size - 4])
    NOTE.pack_into(header, place, *fields, checksum)


def read_notes(header: memoryview) -> list[Note]:
    """The notes that are whole, oldest first."""
    notes = []
    for slot in range(NOTE_SLOTS):
        place = _place(slot)
        *fields, checksum = NOTE.unpack_from(header, place)
        # All zero is a slot that was never written; its checksum would not be zero.
        if checksum == crc32c(header[place : place + NOTE.size - 4]):
            note = Note(*fields)
            notes.append(note._replace(unseen=read_told(header, note.sequence)))
    return sorted(notes)


def _place(slot: int) -> int:
    return NOTES_AT + slot * NOTE_STRIDE
