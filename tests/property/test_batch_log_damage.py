import os
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from moescope.core.batchlog import BatchLogReader, BatchLogWriter, Entry, WriterSettings
from moescope.core.batchlog.names import escape_name, unescape_name

SEGMENT = "00000000000000000000.seg"
payload_lists = st.lists(st.binary(max_size=40), min_size=1, max_size=8)


def write(root: Path, payloads: list[bytes], *, seal: bool, segment_bytes: int = 1 << 20) -> Path:
    """A partition with these payloads; returns its folder."""
    writer = BatchLogWriter(
        root,
        "node",
        settings=WriterSettings(segment_bytes=segment_bytes, durability="none"),
    )
    writer.append_many([Entry(payload) for payload in payloads])
    if seal:
        writer.seal()
    writer.close()
    return writer.path


@settings(max_examples=10)
@given(payload_lists)
def test_end_torn_at_any_byte_loses_the_last_record_alone(payloads: list[bytes]) -> None:
    """Whatever part of the last frame reached the disk, recovery and readers see the others."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        segment = write(root, payloads, seal=False) / SEGMENT
        content = segment.read_bytes()
        last_frame = 48 + len(payloads[-1])
        for torn in range(last_frame):
            segment.write_bytes(content[: len(content) - last_frame + torn])
            with BatchLogReader(root, "node") as reader:
                found = reader.read(0)
                assert [record.payload for record in found.records] == payloads[:-1]
                assert not found.corrupt
                with BatchLogWriter(root, "node") as writer:
                    assert writer.recovery.truncated_bytes == torn
                    assert writer.append(b"after") == len(payloads) - 1
                assert [r.payload for r in reader.read(found.next_offset).records] == [b"after"]


@given(
    payloads=payload_lists,
    segment_bytes=st.integers(1, 300),
    where=st.floats(0, 1, exclude_max=True),
    flips=st.integers(1, 255),
    step=st.integers(1, 3),
)
def test_flipped_bits_never_change_a_payload_and_are_always_counted(
    payloads: list[bytes], segment_bytes: int, where: float, flips: int, step: int
) -> None:
    """Every record of a sealed partition is read intact or reported lost, exactly once."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        path = write(root, payloads, seal=True, segment_bytes=segment_bytes)
        segments = sorted(path.glob("*.seg"))
        total = sum(segment.stat().st_size for segment in segments)
        position = int(where * total)
        for segment in segments:
            content = bytearray(segment.read_bytes())
            if position < len(content):
                content[position] ^= flips
                segment.write_bytes(content)
                break
            position -= len(content)
        read = dict[int, bytes]()
        lost = set[int]()
        offset = 0
        with BatchLogReader(root, "node") as reader:
            while not reader.is_finished(offset):
                found = reader.read(offset, max_records=step)
                assert found.next_offset > offset
                offset = found.next_offset
                read |= {record.offset: record.payload for record in found.records}
                for damage in found.corrupt:
                    lost |= set(range(damage.offset_from, damage.offset_to))
        assert read == {n: p for n, p in enumerate(payloads) if n not in lost}
        assert len(lost) == 1


@given(
    payloads=payload_lists,
    damage=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=3),
    keep=st.floats(0, 1),
    more=payload_lists,
)
def test_damaged_log_can_be_continued(
    payloads: list[bytes], damage: list[tuple[float, int]], keep: float, more: list[bytes]
) -> None:
    """After bit flips and a cut, new records are appended and read; old ones are never wrong."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        segment = write(root, payloads, seal=False) / SEGMENT
        content = bytearray(segment.read_bytes())
        for where, flips in damage:
            content[int(where * len(content))] ^= flips
        segment.write_bytes(content[: int(keep * len(content))])
        with BatchLogWriter(root, "node") as writer:
            appended = writer.append_many([Entry(payload) for payload in more])
            writer.seal()
        with BatchLogReader(root, "node") as reader:
            found = reader.read(0)
        assert appended.stop == found.next_offset
        read = {record.offset: record.payload for record in found.records}
        assert [read[offset] for offset in appended] == more
        lost = {n for c in found.corrupt for n in range(c.offset_from, c.offset_to)}
        assert sorted([*read, *lost]) == list(range(appended.stop))
        assert all(read[n] == payloads[n] for n in read if n < appended.start)


@given(st.binary(max_size=200))
def test_payload_that_looks_like_a_log_is_still_opaque(noise: bytes) -> None:
    """Frames inside a payload never pass for records when the frame around them is damaged."""
    with tempfile.TemporaryDirectory() as folder:
        inner = write(Path(folder) / "inner", [b"0", b"1", b"2", b"3", b"4"], seal=False)
        log_bytes = (inner / SEGMENT).read_bytes()
        root = Path(folder) / "outer"
        with BatchLogWriter(root, "other", settings=WriterSettings(durability="none")) as writer:
            writer.append_many([Entry(noise + log_bytes), Entry(b"next")])
        segment = root / "other" / SEGMENT
        content = bytearray(segment.read_bytes())
        content[8] ^= 0xFF
        segment.write_bytes(content)
        with BatchLogReader(root, "other") as reader:
            found = reader.read(0)
        assert [(record.offset, record.payload) for record in found.records] == [(1, b"next")]
        assert [(c.offset_from, c.offset_to) for c in found.corrupt] == [(0, 1)]


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=24))
def test_every_name_has_one_safe_form(name: str) -> None:
    """A partition name survives the file system, and stays inside its folder."""
    escaped = escape_name(name)
    assert unescape_name(escaped) == name
    assert os.path.basename(escaped) == escaped  # noqa: PTH119 - the oracle is the oldest one
    assert not escaped.startswith(".")
