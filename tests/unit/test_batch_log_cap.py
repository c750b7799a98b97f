from pathlib import Path

import pytest

from moescope.core.batchlog import (
    BatchLogFullError,
    BatchLogReader,
    BatchLogWriter,
    CapPolicy,
    Cursor,
    DropLedger,
    Entry,
    Gap,
    PayloadTooLargeError,
    WriterSettings,
)
from moescope.core.batchlog.drops import write_drops

FRAME = 100
PAYLOAD = bytes(FRAME - 48)


def capped(policy: CapPolicy = "drop_oldest") -> WriterSettings:
    """Segments of two frames, eight segments under the cap."""
    return WriterSettings(byte_cap=16 * FRAME, segment_bytes=2 * FRAME, cap_policy=policy)


def disk_bytes(root: Path) -> int:
    """Bytes of all segments, from the file system."""
    return sum(file.stat().st_size for file in (root / "node").glob("*.seg"))


def test_cap_is_never_exceeded_and_drops_are_counted_exactly(tmp_path: Path) -> None:
    """Without any consumer everything removed was unread, and is counted to the byte."""
    with BatchLogWriter(tmp_path, "node", settings=capped()) as writer:
        for n in range(100):
            writer.append(PAYLOAD, n, n + 1)
            assert disk_bytes(tmp_path) == writer.total_bytes <= 16 * FRAME
            kept = writer.total_bytes // FRAME
            assert writer.first_offset == writer.dropped_records == n + 1 - kept
            assert writer.dropped_bytes == writer.dropped_records * FRAME
            assert kept >= min(n + 1, 14)
    with BatchLogReader(tmp_path, "node") as reader:
        found = reader.read(0)
        first = found.records[0].offset
        assert found.gap == Gap(0, first)
        assert reader.drops().dropped_records == first
        assert reader.drops().first_offset == reader.first_offset() == first


def test_accounting_survives_a_restart(tmp_path: Path) -> None:
    """Totals go on from where they were, and so does the ring position."""
    for part in range(4):
        with BatchLogWriter(tmp_path, "node", settings=capped()) as writer:
            writer.append_many([Entry(PAYLOAD, n, n + 1) for n in range(part * 25, part * 25 + 25)])
            assert writer.next_offset == 25 * (part + 1)
            assert writer.dropped_records == writer.first_offset
            assert writer.last_ring_to() == 25 * (part + 1)


def test_records_that_every_cursor_passed_are_released_not_dropped(tmp_path: Path) -> None:
    """Only what the slowest consumer still wanted counts as lost, also within a segment."""
    with BatchLogWriter(tmp_path, "node", settings=capped()) as writer:
        writer.append_many([Entry(PAYLOAD)] * 16)
        Cursor(tmp_path, "node", "fast").advance(12)
        Cursor(tmp_path, "node", "slow").advance(3)
        writer.append(PAYLOAD)
        assert writer.drops == DropLedger(2, 0, 0, 2, 2 * FRAME, 0)
        writer.append_many([Entry(PAYLOAD)] * 2)
        assert writer.drops == DropLedger(4, 1, FRAME, 3, 3 * FRAME, 0)


def test_refuse_keeps_unread_records_and_asks_to_retry(tmp_path: Path) -> None:
    """With "refuse" a slow consumer stops the producer; room appears when it moves on."""
    with BatchLogWriter(tmp_path, "node", settings=capped("refuse")) as writer:
        cursor = Cursor(tmp_path, "node", "slow")
        with pytest.raises(BatchLogFullError, match="byte cap") as caught:
            writer.append_many([Entry(PAYLOAD)] * 20)
        assert caught.value.retriable
        assert caught.value.appended == writer.next_offset == 16
        assert "'slow' is at 0" in caught.value.why
        cursor.advance(1)
        with pytest.raises(BatchLogFullError):
            writer.append(PAYLOAD)
        cursor.advance(2)
        assert writer.append(PAYLOAD) == 16
        assert writer.drops.released_records == 2
        assert writer.dropped_records == 0


def test_refuse_without_cursors_lets_nothing_go(tmp_path: Path) -> None:
    """A consumer that has not registered yet loses nothing."""
    with BatchLogWriter(tmp_path, "node", settings=capped("refuse")) as writer:
        writer.append_many([Entry(PAYLOAD)] * 16)
        with pytest.raises(BatchLogFullError, match="byte cap") as caught:
            writer.append(PAYLOAD)
        assert "No cursor" in caught.value.why
    with BatchLogReader(tmp_path, "node") as reader:
        assert len(reader.read(0).records) == 16


def test_payload_larger_than_the_cap_is_refused(tmp_path: Path) -> None:
    """Nothing is thrown away for a record that can never fit."""
    with BatchLogWriter(tmp_path, "node", settings=capped()) as writer:
        writer.append_many([Entry(PAYLOAD)] * 16)
        with pytest.raises(PayloadTooLargeError):
            writer.append(bytes(16 * FRAME - 47))
        assert writer.dropped_records == 0
        writer.append(bytes(16 * FRAME - 48))
        assert writer.dropped_records == 16
        assert writer.append(PAYLOAD) == 17
        assert (writer.dropped_records, writer.total_bytes) == (17, FRAME)


def test_reader_in_the_middle_of_a_removed_segment_goes_on(tmp_path: Path) -> None:
    """A removal never takes records from under a reader unseen: it reads them or sees a gap."""
    with BatchLogWriter(tmp_path, "node", settings=capped()) as writer:
        writer.append_many([Entry(b"%d" % n + PAYLOAD[3:]) for n in range(3)])
        with BatchLogReader(tmp_path, "node") as reader:
            offset = reader.read(0, max_records=1).next_offset
            seen = 1
            missing = 0
            writer.append_many([Entry(PAYLOAD)] * 60)
            while (found := reader.read(offset, max_records=5)).records:
                seen += len(found.records)
                missing += found.gap.count if found.gap else 0
                assert not found.corrupt
                offset = found.next_offset
    assert offset == 63
    assert seen + missing == 63
    assert missing > 0


def test_removal_that_a_crash_interrupted_is_finished(tmp_path: Path) -> None:
    """The ledger is written first: counted segments go at the next start, counted once."""
    with BatchLogWriter(tmp_path, "node", settings=capped()) as writer:
        writer.append_many([Entry(PAYLOAD)] * 10)
        write_drops(writer.path, DropLedger(4, 4, 4 * FRAME, 0, 0, 0))
    with BatchLogWriter(tmp_path, "node", settings=capped()) as writer:
        assert writer.first_offset == writer.dropped_records == 4
        assert writer.total_bytes == disk_bytes(tmp_path) == 6 * FRAME
