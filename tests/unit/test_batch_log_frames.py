import re
import struct
from pathlib import Path

import pytest

from moescope.core.batchlog import BatchLogUsageError, BatchLogWriter, LogRecord, partition_path
from moescope.core.batchlog.frames import (
    HEADER_BYTES,
    encode_header,
    is_valid_frame,
    plausible_header,
    segment_seed,
)
from moescope.core.batchlog.names import escape_name, unescape_name
from moescope.core.clock import NO_TIME, ManualClock


def crc32c_by_bits(data: bytes) -> int:
    """CRC-32C as RFC 3720 defines it, one bit at a time."""
    remainder = 0xFFFFFFFF
    for byte in data:
        remainder ^= byte
        for _ in range(8):
            remainder = (remainder >> 1) ^ (0x82F63B78 if remainder & 1 else 0)
    return remainder ^ 0xFFFFFFFF


def seeded(seed_text: bytes, data: bytes) -> int:
    """The checksum of two pieces in a row is that of their concatenation."""
    return crc32c_by_bits(seed_text + data)


def test_segment_holds_the_documented_bytes(tmp_path: Path) -> None:
    """A second implementation can rely on every byte of docs/reference/batch-log-format.md."""
    with BatchLogWriter(tmp_path, "node a", clock=ManualClock(1_700_000_000_000_000)) as writer:
        writer.append(b"routing", ring_from=5, ring_to=9)
        writer.append(b"", append_time_us=-1)
    first = struct.pack("<HHIQqQQ", 1, 0, 7, 0, 1_700_000_000_000_000, 5, 9) + b"routing"
    second = struct.pack("<HHIQqQQ", 1, 0, 0, 1, -1, 0, 0)
    place = b"node a\x0000000000000000000000"
    expected = b"".join(
        b"\xf5MBL" + seeded(place, frame).to_bytes(4, "little") + frame for frame in (first, second)
    )
    assert (tmp_path / "node%20a" / "00000000000000000000.seg").read_bytes() == expected


def test_example_of_the_format_page_is_real(tmp_path: Path, repository_root: Path) -> None:
    """Whoever writes a second implementation can check it against the page's bytes."""
    page = (repository_root / "docs/reference/batch-log-format.md").read_text()
    (example,) = re.findall(r"```\n((?:[0-9A-F]{2}[ \n])+)```", page)
    with BatchLogWriter(tmp_path, "a", clock=ManualClock(1)) as writer:
        writer.append(b"hi")
    assert (writer.path / "00000000000000000000.seg").read_bytes() == bytes.fromhex(example)


def test_header_has_the_documented_length() -> None:
    """Readers hop by the header's length: it is part of the format."""
    assert HEADER_BYTES == 48
    assert len(encode_header(0, 0, NO_TIME, (0, 0), b"abc")) == 48


def test_frame_of_another_segment_or_partition_is_not_valid() -> None:
    """A frame that was copied elsewhere, as in a payload, never passes for a record there."""
    seed = segment_seed("node", 10)
    frame = encode_header(seed, 12, 0, (0, 0), b"payload") + b"payload"
    assert is_valid_frame(frame, seed)
    assert not is_valid_frame(frame, segment_seed("node", 11))
    assert not is_valid_frame(frame, segment_seed("edon", 10))
    assert not is_valid_frame(frame + b"x", seed)
    assert plausible_header(frame, 0) == (12, len(frame))
    assert plausible_header(frame[:47], 0) is None


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        ("node-1.example_A", "node-1.example_A"),
        ("..", "%2E."),
        (".hidden", "%2Ehidden"),
        ("a/b", "a%2Fb"),
        ("50%", "50%25"),
        ("nœud", "n%C5%93ud"),
        ("\0", "%00"),
    ],
)
def test_names_are_escaped_as_documented(name: str, escaped: str) -> None:
    """No partition name can leave the log root, hide, or collide with another one."""
    assert escape_name(name) == escaped
    assert unescape_name(escaped) == name


@pytest.mark.parametrize("name", ["", "x" * 201, "é" * 34, "\ud800"])
def test_impossible_names_are_refused(name: str) -> None:
    """An empty, over-long or unencodable name is an error of the caller, not of the disk."""
    with pytest.raises(BatchLogUsageError, match="cannot be a batch log name"):
        partition_path(Path("root"), name)


@pytest.mark.parametrize("folder", ["a b", ".git", "%41", "%zz", "%FF", "", "a%2fb"])
def test_foreign_folder_names_mean_no_partition(folder: str) -> None:
    """A folder that the log did not make is never taken for a partition."""
    assert unescape_name(folder) is None


def test_log_record_fields_keep_their_order() -> None:
    """Consumers unpack records by position."""
    assert LogRecord._fields == ("offset", "append_time_us", "ring_from", "ring_to", "payload")
