"""Unseen rows by reason, in a ring's header: what cost how many, however often reasons alternate.

A slot belongs to one reason for as long as the ring lives. Its text is written once, before its
first row is counted; its count is one aligned word that only grows.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from moescope.producers.ring.layout import NOTE_SLOTS

if TYPE_CHECKING:
    from collections.abc import Mapping

REASON_SLOTS: Final = 16
OTHER_REASONS: Final = "other reasons"
"""What more reasons than there are slots are counted under."""
WITHOUT_REASON: Final = REASON_SLOTS
"""Place behind the slots in totals: rows of a recorder that keeps no reasons."""

_TOLD_AT: Final = 640
_TOLD: Final = struct.Struct(f"<Q{REASON_SLOTS + 1}QI")
"""Number of a batch, the totals told up to it, checksum of all before it."""
TOLD_STRIDE: Final = 152

_REASONS_AT: Final = 1024
_REASON_STRIDE: Final = 184
_TEXT: Final = struct.Struct("<QH")
"""Rows, length of the text behind it."""
_LONGEST_TEXT: Final = _REASON_STRIDE - _TEXT.size


def reason_slot(known: Mapping[str, int], reason: str) -> tuple[int, str]:
    """The slot of a reason, and what it is called there; new if it is not among the known ones."""
    name = reason.encode(errors="replace")[:_LONGEST_TEXT].decode(errors="ignore")
    if name in known:
        return known[name], name
    if len(known) >= REASON_SLOTS - 1:
        name = OTHER_REASONS
    return known.get(name, len(known)), name


def count_word(slot: int) -> int:
    """Where a slot's rows are, in the header seen as 64-bit words."""
    return (_REASONS_AT + slot * _REASON_STRIDE) // 8


def write_reason(header: memoryview, slot: int, name: str) -> None:
    """Name a slot that counts no row yet."""
    text = name.encode()
    _TEXT.pack_into(header, _place(slot), 0, len(text))
    start = _place(slot) + _TEXT.size
    header[start : start + len(text)] = text


def read_reason(header: memoryview, slot: int) -> str:
    """What a slot is called; empty where no reason was told, or its text is damaged."""
    if slot == WITHOUT_REASON:
        return ""
    _, length = _TEXT.unpack_from(header, _place(slot))
    if length > _LONGEST_TEXT:
        return ""
    start = _place(slot) + _TEXT.size
    try:
        return bytes(header[start : start + length]).decode()
    except UnicodeDecodeError:
        return ""


def write_told(header: memoryview, sequence: int, told: tuple[int, ...]) -> None:
    """Store the totals that are told up to a batch."""
    place = _told_place(sequence)
    _TOLD.pack_into(header, place, sequence, *told, 0)
    checksum = crc32c(header[place : place + _TOLD.size - 4])
    _TOLD.pack_into(header, place, sequence, *told, checksum)


def read_told(header: memoryview, sequence: int) -> tuple[int, ...]:
    """Totals that were stored for a batch; empty where they are not whole, or for another one."""
    place = _told_place(sequence)
    number, *told, checksum = _TOLD.unpack_from(header, place)
    if number != sequence or checksum != crc32c(header[place : place + _TOLD.size - 4]):
        return ()
    return tuple(told)


def spread_told(total: int, counted: tuple[int, ...]) -> tuple[int, ...]:
    """How much of what was counted is told, where only the total is known: the first reasons."""
    told = []
    for rows in counted:
        told.append(min(rows, total))
        total -= told[-1]
    return tuple(told)


def _place(slot: int) -> int:
    return _REASONS_AT + slot * _REASON_STRIDE


def _told_place(sequence: int) -> int:
    return _TOLD_AT + sequence % NOTE_SLOTS * TOLD_STRIDE
