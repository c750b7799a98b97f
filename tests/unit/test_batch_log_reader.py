import os
from pathlib import Path

import pytest

from moescope.core.batchlog import (
    BatchLogFormatError,
    BatchLogReader,
    BatchLogUsageError,
    BatchLogWriter,
    Cursor,
    Entry,
    Gap,
    LogRecord,
    PartitionNotFoundError,
    WriterSettings,
    cursor_offsets,
    list_partitions,
    partition_names,
)

SMALL = WriterSettings(segment_bytes=120)  # two frames of 12 bytes each


def filled(root: Path, count: int, settings: WriterSettings = SMALL) -> Path:
    """A partition "node" with records of 12 bytes; returns its folder."""
    with BatchLogWriter(root, "node", settings=settings) as writer:
        writer.append_many([Entry(b"%012d" % n) for n in range(count)])
        return writer.path


def test_missing_partition_is_a_clear_error(tmp_path: Path) -> None:
    """A consumer can tell "not there yet" from damage."""
    with pytest.raises(PartitionNotFoundError, match="'node'"):
        BatchLogReader(tmp_path, "node")
    with pytest.raises(PartitionNotFoundError, match="'node'"):
        Cursor(tmp_path, "node", "c")


def test_reader_follows_a_writer(tmp_path: Path) -> None:
    """New records and new segments show up in a reader that is already open."""
    with (
        BatchLogWriter(tmp_path, "node", settings=SMALL) as writer,
        BatchLogReader(tmp_path, "node") as reader,
    ):
        assert reader.read(0).records == []
        assert (reader.first_offset(), reader.end_offset()) == (0, 0)
        for n in range(7):
            writer.append(b"%012d" % n)
            found = reader.read(n)
            assert [(r.offset, r.payload) for r in found.records] == [(n, b"%012d" % n)]
            assert found.next_offset == reader.end_offset() == n + 1


def test_limits_of_a_read_are_kept(tmp_path: Path) -> None:
    """A read ends with the record that reaches a limit, whichever comes first."""
    filled(tmp_path, 9)
    with BatchLogReader(tmp_path, "node") as reader:
        assert [r.offset for r in reader.read(3, max_records=4).records] == [3, 4, 5, 6]
        assert [r.offset for r in reader.read(0, max_bytes=25).records] == [0, 1, 2]
        assert [r.offset for r in reader.read(8, max_bytes=1).records] == [8]
        for wrong in ((-1, 1, 1), (0, 0, 1), (0, 1, 0)):
            with pytest.raises(BatchLogUsageError):
                reader.read(*wrong)


def test_any_offset_can_be_read_in_any_order(tmp_path: Path) -> None:
    """A restart reads from an old offset; evidence is fetched by stored offsets."""
    filled(tmp_path, 50)
    with BatchLogReader(tmp_path, "node") as reader:
        for offset in [49, 0, 25, 24, 26, 1, 48]:
            record = reader.read(offset, max_records=1).records[0]
            assert (record.offset, record.payload) == (offset, b"%012d" % offset)


def test_random_access_in_a_large_segment(tmp_path: Path) -> None:
    """Going back within a segment of several megabytes finds the same records."""
    with BatchLogWriter(tmp_path, "node", settings=WriterSettings(durability="none")) as writer:
        writer.append_many([Entry(b"%07d" % n * 10_000) for n in range(60)])
        writer.append(bytes(3_000_000))
        writer.append(b"last")
    with BatchLogReader(tmp_path, "node") as reader:
        seen: list[LogRecord] = []
        while batch := reader.read(len(seen), max_records=9).records:
            seen += batch
        assert [record.payload[:7] for record in seen[:60]] == [b"%07d" % n for n in range(60)]
        assert [len(seen[60].payload), seen[61].payload] == [3_000_000, b"last"]
        for offset in [61, 3, 40, 17, 60]:
            assert reader.read(offset, max_records=1).records == [seen[offset]]


def test_reading_past_the_end_finds_nothing(tmp_path: Path) -> None:
    """An offset that does not exist yet is not an error, and is kept."""
    filled(tmp_path, 3)
    with BatchLogReader(tmp_path, "node") as reader:
        assert reader.read(3).records == []
        assert reader.read(10).next_offset == 10
        assert reader.read(2).records[0].offset == 2


def test_seal_tells_that_nothing_follows(tmp_path: Path) -> None:
    """An import ends: its consumer knows when it has read everything."""
    writer = BatchLogWriter(tmp_path, "node", settings=SMALL)
    with BatchLogReader(tmp_path, "node") as reader:
        writer.append_many([Entry(b"a"), Entry(b"b")])
        assert not reader.is_sealed()
        assert not reader.is_finished(2)
        writer.seal()
        assert reader.is_sealed()
        assert not reader.is_finished(1)
        assert [record.payload for record in reader.read(0).records] == [b"a", b"b"]
        assert reader.is_finished(2)
        assert reader.read(2).next_offset == 2


def test_damaged_end_of_a_sealed_partition_is_reported(tmp_path: Path) -> None:
    """In a sealed partition a bad last frame is a loss, not a frame in the making."""
    with BatchLogWriter(tmp_path, "node") as writer:
        writer.append_many([Entry(b"a"), Entry(b"b")])
        writer.seal()
    os.truncate(tmp_path / "node" / "00000000000000000000.seg", 49 + 30)
    with BatchLogReader(tmp_path, "node") as reader:
        found = reader.read(0)
        assert [record.offset for record in found.records] == [0]
        assert [(c.offset_from, c.offset_to, c.raw_bytes) for c in found.corrupt] == [(1, 2, 30)]
        assert reader.is_finished(found.next_offset)


def test_frame_in_the_making_is_never_returned(tmp_path: Path) -> None:
    """A reader waits for the rest of a frame that is half written, then returns it."""
    folder = filled(tmp_path, 2, WriterSettings())
    segment = folder / "00000000000000000000.seg"
    content = segment.read_bytes()
    os.truncate(segment, 60)
    with BatchLogReader(tmp_path, "node") as reader:
        assert [r.offset for r in reader.read(0).records] == [0]
        for size in range(61, 120):
            segment.write_bytes(content[:size])
            found = reader.read(1)
            assert (found.records, found.corrupt, found.next_offset) == ([], [], 1)
        segment.write_bytes(content)
        found = reader.read(1)
        assert ([r.offset for r in found.records], found.corrupt) == ([1], [])


def test_lost_segment_is_reported_as_missing_records(tmp_path: Path) -> None:
    """A segment that vanished in the middle is a counted hole, and reading goes on."""
    folder = filled(tmp_path, 8)
    (folder / "00000000000000000002.seg").unlink()
    with BatchLogReader(tmp_path, "node") as reader:
        found = reader.read(0)
        assert [r.offset for r in found.records] == [0, 1, 4, 5, 6, 7]
        assert [(c.offset_from, c.offset_to, c.reason) for c in found.corrupt] == [
            (2, 4, "missing records")
        ]
        assert reader.read(3).corrupt[0].offset_from == 3
        assert reader.read(4).corrupt == []


def test_records_that_are_gone_are_a_gap_with_an_exact_count(tmp_path: Path) -> None:
    """What the byte cap took is visible to the consumer that wanted it."""
    folder = filled(tmp_path, 8)
    with BatchLogReader(tmp_path, "node") as reader:
        assert reader.read(0, max_records=1).records[0].offset == 0
        for base in (0, 2):
            (folder / f"{base:020d}.seg").unlink()
        found = reader.read(0)
        assert found.gap == Gap(0, 4)
        assert found.gap.count == 4
        assert [r.offset for r in found.records] == [4, 5, 6, 7]
        assert reader.read(5).gap is None
        assert reader.first_offset() == 4


def test_partitions_are_listed_with_their_state(tmp_path: Path) -> None:
    """A processor finds live and imported partitions, and ignores foreign folders."""
    assert list_partitions(tmp_path / "nowhere") == []
    filled(tmp_path, 3)
    with BatchLogWriter(tmp_path, "im/port", domain="file-1", append_clock="none") as writer:
        writer.append(b"x")
        writer.seal()
    (tmp_path / "not finished").mkdir()
    (tmp_path / "half").mkdir()
    infos = [
        (i.name, i.domain, i.sealed, i.first_offset, i.end_offset)
        for i in list_partitions(tmp_path)
    ]
    assert infos == [("im/port", "file-1", True, 0, 1), ("node", "live", False, 0, 3)]
    assert partition_names(tmp_path) == ["im/port", "node"]


def test_cursors_are_durable_and_never_go_back(tmp_path: Path) -> None:
    """A consumer resumes where it was, and cannot ask for what it let go."""
    filled(tmp_path, 3)
    cursor = Cursor(tmp_path, "node", "kafka/1")
    assert cursor.offset == 0
    cursor.advance(2)
    cursor.advance(2)
    with pytest.raises(BatchLogUsageError, match="cannot move back to 1"):
        cursor.advance(1)
    assert Cursor(tmp_path, "node", "kafka/1").offset == 2
    Cursor(tmp_path, "node", "other")
    assert cursor_offsets(tmp_path / "node") == {"kafka/1": 2, "other": 0}
    cursor.remove()
    assert cursor_offsets(tmp_path / "node") == {"other": 0}


def test_interrupted_cursor_write_leaves_the_old_position(tmp_path: Path) -> None:
    """A crash between writing and renaming loses the step, not the cursor."""
    folder = filled(tmp_path, 3)
    Cursor(tmp_path, "node", "c").advance(1)
    (folder / "cursors" / ".c.json.77.tmp").write_text('{"off')
    assert Cursor(tmp_path, "node", "c").offset == 1
    assert cursor_offsets(folder) == {"c": 1}


@pytest.mark.parametrize("content", ["", "{}", '{"version": 1, "offset": -1}', '{"version": 1}'])
def test_damaged_cursor_is_a_clear_error_and_holds_everything_back(
    tmp_path: Path, content: str
) -> None:
    """Nobody guesses a position, and nothing that the consumer may need passes for read."""
    folder = filled(tmp_path, 3)
    Cursor(tmp_path, "node", "c").advance(3)
    (folder / "cursors" / "c.json").write_text(content)
    with pytest.raises(BatchLogFormatError, match=r"c\.json"):
        Cursor(tmp_path, "node", "c")
    assert cursor_offsets(folder) == {"c": 0}
