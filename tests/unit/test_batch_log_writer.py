import copy
import os
from pathlib import Path

import pytest

from moescope.core.batchlog import (
    BatchLogError,
    BatchLogFormatError,
    BatchLogLockedError,
    BatchLogReader,
    BatchLogSealedError,
    BatchLogSyncError,
    BatchLogUsageError,
    BatchLogWriteError,
    BatchLogWriter,
    Cursor,
    Entry,
    LogRecord,
    PayloadTooLargeError,
    WriterSettings,
    partition_path,
)
from moescope.core.clock import NO_TIME, ManualClock


def payloads(root: Path, partition: str = "node") -> list[bytes]:
    """Everything that a new reader finds."""
    with BatchLogReader(root, partition) as reader:
        return [record.payload for record in reader.read(0).records]


def test_records_come_back_with_all_their_fields(tmp_path: Path) -> None:
    """What is appended is what is read: offset, time, ring range and bytes."""
    clock = ManualClock(7)
    with BatchLogWriter(tmp_path, "node", clock=clock) as writer:
        assert writer.append(b"a", 1, 3) == 0
        clock.set_us(9)
        assert writer.append_many([Entry(bytearray(b"b"), 3, 4), Entry(b"", 0, 0, -5)]) == range(
            1, 3
        )
        assert writer.append(memoryview(b"cd")) == 3
    with BatchLogReader(tmp_path, "node") as reader:
        assert reader.read(0).records == [
            LogRecord(0, 7, 1, 3, b"a"),
            LogRecord(1, 9, 3, 4, b"b"),
            LogRecord(2, -5, 0, 0, b""),
            LogRecord(3, 9, 0, 0, b"cd"),
        ]


def test_reopened_log_goes_on_where_it_ended(tmp_path: Path) -> None:
    """Offsets stay dense and the ring position survives restarts, also past heartbeats."""
    for number in range(3):
        with BatchLogWriter(tmp_path, "node") as writer:
            assert writer.last_ring_to() == number * 10
            assert writer.append(b"%d" % number, number * 10, number * 10 + 10) == 2 * number
            assert writer.append(b"heartbeat") == 2 * number + 1
    assert len(payloads(tmp_path)) == 6


def test_ring_position_is_found_in_an_older_segment(tmp_path: Path) -> None:
    """An agent that only sent heartbeats for a whole segment still resumes at the right place."""
    settings = WriterSettings(segment_bytes=100)
    with BatchLogWriter(tmp_path, "node", settings=settings) as writer:
        writer.append(b"data" * 10, 70, 77)
        for _ in range(5):
            writer.append(b"heartbeat" * 5)
    with BatchLogWriter(tmp_path, "node", settings=settings) as writer:
        assert writer.last_ring_to() == 77


def test_segments_roll_at_the_limit(tmp_path: Path) -> None:
    """A segment holds as many whole frames as fit and is named by its first offset."""
    with BatchLogWriter(tmp_path, "node", settings=WriterSettings(segment_bytes=120)) as writer:
        writer.append_many([Entry(bytes(12))] * 5)
        writer.append(bytes(500))
    sizes = {p.name: p.stat().st_size for p in sorted((tmp_path / "node").glob("*.seg"))}
    assert sizes == {
        "00000000000000000000.seg": 120,
        "00000000000000000002.seg": 120,
        "00000000000000000004.seg": 60,
        "00000000000000000005.seg": 548,
    }
    assert [len(payload) for payload in payloads(tmp_path)] == [12] * 5 + [500]


def test_second_writer_is_refused_until_the_first_closes(tmp_path: Path) -> None:
    """Two agents on one partition would give out the same offsets."""
    with BatchLogWriter(tmp_path, "node") as writer:
        writer.append(b"a")
        with pytest.raises(BatchLogLockedError, match="Another writer") as caught:
            BatchLogWriter(tmp_path, "node")
        assert caught.value.retriable
        BatchLogWriter(tmp_path, "other").close()
        writer.append(b"b")
    with BatchLogWriter(tmp_path, "node") as writer:
        assert writer.append(b"c") == 2


def test_sealed_partition_takes_nothing_more(tmp_path: Path) -> None:
    """Consumers rely on a sealed import never growing."""
    writer = BatchLogWriter(tmp_path, "import", domain="file-1", append_clock="none")
    writer.append(b"a")
    writer.seal()
    with pytest.raises(BatchLogUsageError, match="closed"):
        writer.append(b"b")
    with pytest.raises(BatchLogSealedError, match="complete at offset 1"):
        BatchLogWriter(tmp_path, "import")
    assert payloads(tmp_path, "import") == [b"a"]


def test_oversized_payload_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """One bad entry leaves no trace, not even of the good ones before it."""
    with BatchLogWriter(tmp_path, "node", settings=WriterSettings(max_payload_bytes=8)) as writer:
        with pytest.raises(PayloadTooLargeError, match="9 bytes"):
            writer.append_many([Entry(b"fits"), Entry(b"too large")])
        assert writer.total_bytes == 0
        assert writer.append(b"8 bytes!") == 0


@pytest.mark.parametrize(
    ("ring_from", "ring_to", "time_us"),
    [(3, 2, None), (-1, 2, None), (0, 2**64, None), (0, 0, 2**63), (0, 0, NO_TIME - 1)],
)
def test_values_that_do_not_fit_are_refused(
    tmp_path: Path, ring_from: int, ring_to: int, time_us: int | None
) -> None:
    """A wrong ring range or time is an error at once, not a corrupt frame later."""
    with BatchLogWriter(tmp_path, "node") as writer:
        with pytest.raises(BatchLogUsageError):
            writer.append(b"x", ring_from, ring_to, time_us)
        assert writer.next_offset == 0


def test_partition_without_append_times_stores_none(tmp_path: Path) -> None:
    """An import never pretends that the time of importing means something."""
    with BatchLogWriter(tmp_path, "import", append_clock="none") as writer:
        writer.append(b"x")
        with pytest.raises(BatchLogUsageError, match="without append times"):
            writer.append(b"x", append_time_us=1)
    with BatchLogReader(tmp_path, "import") as reader:
        assert [record.append_time_us for record in reader.read(0).records] == [NO_TIME]


def test_properties_are_fixed_at_creation(tmp_path: Path) -> None:
    """A live agent cannot slip into an import's watermark domain, nor the other way round."""
    BatchLogWriter(tmp_path, "a", domain="file-1", append_clock="none").close()
    with BatchLogWriter(tmp_path, "a") as writer:
        assert (writer.meta.domain, writer.meta.append_clock) == ("file-1", "none")
    with pytest.raises(BatchLogUsageError, match="other properties"):
        BatchLogWriter(tmp_path, "a", domain="live")
    with pytest.raises(BatchLogUsageError, match="other properties"):
        BatchLogWriter(tmp_path, "a", append_clock="clock")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        b'{"version": 2}',
        b'{"version": 1, "name": "b"}',
        b'{"version": 1, "name": "b", "domain": "live", "append_clock": "clock"}',
        b"\xff",
    ],
)
def test_damaged_metadata_are_a_clear_error(tmp_path: Path, content: bytes) -> None:
    """Nobody appends to a partition whose metadata are of a newer version or another folder's."""
    BatchLogWriter(tmp_path, "a").close()
    (tmp_path / "a" / "partition.json").write_bytes(content)
    with pytest.raises(BatchLogFormatError, match=r"partition\.json"):
        BatchLogWriter(tmp_path, "a")
    with pytest.raises(BatchLogFormatError, match=r"partition\.json"):
        BatchLogReader(tmp_path, "a")


@pytest.mark.parametrize(
    "settings",
    [
        {"segment_bytes": 0},
        {"byte_cap": 48},
        {"max_payload_bytes": 0},
        {"durability": "all"},
        {"max_payload_bytes": 64 * 1024 * 1024 + 1},
        {"cap_policy": "drop"},
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, object]) -> None:
    """A wrong setting names itself."""
    with pytest.raises(BatchLogUsageError, match=next(iter(settings))):
        WriterSettings(**settings)  # type: ignore[arg-type]  # wrong types, too


def test_writer_is_refused_after_a_fork(tmp_path: Path) -> None:
    """A forked child that appended would give out the parent's offsets again."""
    with BatchLogWriter(tmp_path, "node") as writer:
        writer.append(b"parent")
        child = os.fork()
        if child == 0:
            try:
                writer.append(b"child")
            except BatchLogUsageError:
                os._exit(3)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        assert writer.append(b"parent again") == 1


def test_offset_that_a_cursor_passed_is_never_given_out_again(tmp_path: Path) -> None:
    """After a power loss took the end of the log, a consumer does not skip the new records."""
    with BatchLogWriter(tmp_path, "node") as writer:
        writer.append_many([Entry(b"0"), Entry(b"1"), Entry(b"2")])
    Cursor(tmp_path, "node", "kafka").advance(3)
    os.truncate(tmp_path / "node" / "00000000000000000000.seg", 49 + 20)
    with BatchLogWriter(tmp_path, "node") as writer:
        assert writer.recovery.truncated_bytes == 20
        assert writer.append(b"3") == 3
    with BatchLogReader(tmp_path, "node") as reader:
        found = reader.read(0)
    assert [(record.offset, record.payload) for record in found.records] == [(0, b"0"), (3, b"3")]
    assert [(c.offset_from, c.offset_to, c.reason) for c in found.corrupt] == [
        (1, 3, "missing records")
    ]


def test_damage_before_the_torn_end_is_kept_and_shown(tmp_path: Path) -> None:
    """Recovery cuts off the torn last frame alone; an older damaged record stays countable."""
    with BatchLogWriter(tmp_path, "node") as writer:
        writer.append_many([Entry(bytes([n]) * 100) for n in range(3)])
    segment = tmp_path / "node" / "00000000000000000000.seg"
    content = bytearray(segment.read_bytes())
    content[148 + 60] ^= 1
    segment.write_bytes(content[: 2 * 148 + 90])
    for _ in range(3):
        with BatchLogWriter(tmp_path, "node") as writer:
            assert writer.next_offset == 2
    assert segment.read_bytes() == content[: 2 * 148]
    with BatchLogWriter(tmp_path, "node") as writer:
        assert writer.append(b"next") == 2
    with BatchLogReader(tmp_path, "node") as reader:
        found = reader.read(0)
    assert [record.offset for record in found.records] == [0, 2]
    (damage,) = found.corrupt
    assert (damage.offset_from, damage.offset_to, damage.raw_bytes) == (1, 2, 148)
    assert (damage.reason, damage.position) == ("bad frame", 148)


def test_failed_sync_stops_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed sync the kernel may lie about later ones, so the writer gives up for good."""

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    with BatchLogWriter(tmp_path, "node") as writer:
        writer.append(b"a")
        with monkeypatch.context() as disk:
            disk.setattr(os, "fdatasync", fail)
            with pytest.raises(BatchLogSyncError) as caught:
                writer.flush()
        assert not caught.value.retriable
        with pytest.raises(BatchLogSyncError):
            writer.append(b"b")
    assert payloads(tmp_path) == [b"a"]


def test_root_that_cannot_be_made_is_a_documented_error(tmp_path: Path) -> None:
    """A wrong log root is told as such, not as a traceback of the operating system."""
    (tmp_path / "file").write_text("")
    with pytest.raises(BatchLogWriteError, match="Could not open the partition"):
        BatchLogWriter(tmp_path / "file", "node")


def test_append_errors_keep_their_count_across_processes() -> None:
    """An error rebuilt as pickle does it still says how many records are in the log."""
    error = copy.copy(BatchLogWriteError("a", why="b", next_step="c", appended=4))
    assert isinstance(error, BatchLogError)
    assert (error.what, error.why, error.next_step) == ("a", "b", "c")
    assert error.appended == 4


def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    """Shutdown code may close in more than one place."""
    writer = BatchLogWriter(tmp_path, "node")
    writer.close()
    writer.close()
    assert partition_path(tmp_path, "node") == writer.path
