"""Consumers may say how far they are before the byte cap removes what they have read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.core.batchlog import BatchLogWriter, Cursor, Entry, WriterSettings

if TYPE_CHECKING:
    from pathlib import Path

FRAME = 100
PAYLOAD = bytes(FRAME - 48)
SETTINGS = WriterSettings(byte_cap=16 * FRAME, segment_bytes=2 * FRAME)


def test_cursor_that_is_moved_before_a_removal_counts(tmp_path: Path) -> None:
    """The ledger goes by what a consumer says last, not by what it had saved before."""
    calls = []

    def move() -> None:
        calls.append(writer.next_offset)
        cursor.advance(3)

    with BatchLogWriter(tmp_path, "node", settings=SETTINGS, before_removal=move) as writer:
        cursor = Cursor(tmp_path, "node", "shipper")
        writer.append_many([Entry(PAYLOAD)] * 16)
        assert calls == []
        writer.append_many([Entry(PAYLOAD)] * 4)
        assert calls == [16, 18]
        assert (writer.drops.released_records, writer.drops.dropped_records) == (3, 1)
