from __future__ import annotations

import errno
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.rings import small_recorder

from moescope.producers.agent import Agent
from moescope.producers.ring.errors import RingCreateError, RingFormatError, RingSettingsError
from moescope.producers.ring.facts import RequestFacts, pack_facts
from moescope.producers.ring.layout import FRAME_BYTES, HEADER_BYTES, SEGMENTS, Geometry
from moescope.producers.ring.notes import Note
from moescope.producers.ring.reader import RingReader
from moescope.producers.ring.rows import (
    RowShape,
    column_mask,
    place_columns,
    read_end,
    read_rows,
    write_end,
    write_rows,
)
from moescope.producers.ring.unseen import REASON_SLOTS, TOLD_STRIDE
from moescope.producers.ring.writer import RingWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

SHAPE = RowShape(layers=3, top_k=2, experts=300)
GEOMETRY = Geometry.for_size(32 * 8_192, SHAPE.longest_row_frame())
FACTS = RequestFacts("request-ä", "task", "chat", 17, 3)


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[RingWriter]:
    """A new ring of 32 segments of 8 KiB."""
    writer = RingWriter(tmp_path, 7, b"profile", GEOMETRY, created_at_us=5)
    yield writer
    writer.close()


@pytest.fixture
def reader(ring: RingWriter) -> Iterator[RingReader]:
    """Its reader."""
    opened = RingReader(ring.path)
    yield opened
    opened.close()


def write(ring: RingWriter, rows: int, first_position: int = 0) -> dict[str, NDArray[Any]]:
    """One frame of rows of one request; returns its columns."""
    rng = np.random.default_rng(first_position)
    values: dict[str, NDArray[Any]] = {
        "position": np.arange(first_position, first_position + rows),
        "phase": np.ones(rows, np.uint8),
        "flags": np.zeros(rows, np.uint8),
        "expert_ids": rng.integers(0, 300, (rows, 3, 2)),
        "entropy": rng.random((rows, 3)),
    }
    mask = column_mask(values)
    placement = place_columns(SHAPE, mask, rows)
    write_rows(
        ring, placement, mask, values, packed_facts=pack_facts(FACTS), counts=[rows],
        rows=rows, first_us=100, last_us=200,
    )  # fmt: skip
    return values


def test_rows_come_back_as_they_were_written(ring: RingWriter, reader: RingReader) -> None:
    """Columns, request facts and times survive the ring."""
    written = write(ring, 5, 40)
    frame = reader.read()
    assert frame is not None
    rows = read_rows(frame, SHAPE)
    assert rows.facts == (FACTS,)
    assert rows.counts.tolist() == [5]
    assert (frame.header.first_us, frame.header.last_us) == (100, 200)
    np.testing.assert_array_equal(rows.columns["expert_ids"], written["expert_ids"])
    np.testing.assert_array_equal(rows.columns["position"], written["position"])
    np.testing.assert_allclose(rows.columns["entropy"], written["entropy"], rtol=1e-6)
    assert reader.read() is None


def test_ends_come_back(ring: RingWriter, reader: RingReader) -> None:
    """The end of a request keeps its facts and whether the task is over."""
    for last in (True, False):
        write_end(ring, pack_facts(FACTS), last_of_task=last, time_us=9)
    frames = [reader.read(), reader.read()]
    assert [read_end(frame) for frame in frames if frame] == [(FACTS, True), (FACTS, False)]


def test_a_lapped_reader_knows_how_many_rows_it_missed(
    ring: RingWriter, reader: RingReader
) -> None:
    """Rows before the first readable frame = rows that were overwritten, exactly."""
    for number in range(1_000):
        write(ring, 1 + number % 30, number)
    seen, frames = 0, 0
    first = None
    while (frame := reader.read()) is not None:
        first = frame.header.rows_before if first is None else first
        seen += frame.header.rows
        frames += 1
    assert first is not None
    assert first > 0
    assert first + seen == sum(1 + number % 30 for number in range(1_000)) == ring.rows
    assert frames > 32


def test_what_is_read_is_never_older_than_the_published_tail(
    ring: RingWriter, reader: RingReader
) -> None:
    """A frame that was overwritten while it was copied is not handed out."""
    write(ring, 3)
    copied = reader._copy  # noqa: SLF001 - the moment between copying and checking

    def copy_while_lapped(left: int) -> object:
        frame = copied(left)
        if ring.rows == 3:
            for number in range(2_000):
                write(ring, 3, number)
        return frame

    reader._copy = copy_while_lapped  # type: ignore[assignment,method-assign]  # noqa: SLF001 - between two looks at the ring
    frame = reader.read()
    assert frame is not None
    assert frame.header.rows_before > 0


def test_a_damaged_frame_costs_its_segment_only(ring: RingWriter, reader: RingReader) -> None:
    """After three looks the reader goes on behind the damage, and the gap is countable."""
    while ring.head < 3 * GEOMETRY.segment_bytes:
        write(ring, 4)
    ring.buffer[HEADER_BYTES + FRAME_BYTES + 3] ^= 0xFF
    assert [reader.read(), reader.read()] == [None, None]
    frame = reader.read()
    assert frame is not None
    assert frame.header.position == GEOMETRY.segment_bytes
    assert reader.damaged == 1


def test_a_reader_is_quiet_only_between_calls(ring: RingWriter, reader: RingReader) -> None:
    """A call that took its time but did not publish yet keeps the watermark back."""
    assert reader.is_quiet()
    ring.enter()
    assert not reader.is_quiet()
    write(ring, 1)
    ring.leave()
    assert not reader.is_quiet()
    reader.read()
    assert reader.is_quiet()


def test_a_ring_has_ended_when_its_writer_let_go(ring: RingWriter, reader: RingReader) -> None:
    """The lock of a writer that died without a word tells as much as a closed ring."""
    assert not reader.has_ended
    ring.enter()
    ring.abandon()
    assert reader.has_ended
    assert reader.is_quiet()


def test_notes_survive_and_half_written_ones_do_not(ring: RingWriter, reader: RingReader) -> None:
    """A restarted agent finds the two latest notes, and never half of one."""
    assert reader.notes() == []
    notes = [Note(n, n * 100, n * 10, 0, n, 0, 1) for n in range(3)]
    for note in notes:
        reader.note(note)
    assert reader.notes() == notes[1:]
    ring.buffer[512 + 64 + 8] ^= 1
    assert reader.notes() == notes[2:]


def test_notes_take_no_totals_that_are_damaged_or_of_another_batch(
    ring: RingWriter, reader: RingReader
) -> None:
    """What a batch told of each reason is of that batch and whole, or it is not known."""
    told = [tuple(range(number, number + REASON_SLOTS + 1)) for number in range(2)]
    notes = [Note(n, 0, 0, 0, sum(told[n]), 0, 1, told[n]) for n in range(2)]
    for note in notes:
        reader.note(note)
    assert reader.notes() == notes
    ring.buffer[640 + TOLD_STRIDE + 8 + 5] ^= 1
    assert reader.notes() == [notes[0], notes[1]._replace(unseen=())]
    later = Note(2, 0, 0, 0, 500, 0, 1)  # in the place of number 0, by a release without totals
    reader.note(later)
    assert reader.notes() == [notes[1]._replace(unseen=()), later]


@pytest.mark.parametrize(
    "content",
    [b"", b"short", b"x" * 70_000, bytes(HEADER_BYTES)],
    ids=["empty", "short", "other", "zeros"],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    """A file that is no ring gives an error that says so."""
    path = tmp_path / "other.ring"
    path.write_bytes(content)
    with pytest.raises(RingFormatError, match="not a ring"):
        RingReader(path)


def test_a_ring_with_a_damaged_profile_is_refused(ring: RingWriter) -> None:
    """Nobody ships rows under a model name that a bad disk made up."""
    ring.buffer[4_096] ^= 1
    with pytest.raises(RingFormatError, match="damaged"):
        RingReader(ring.path)


def test_a_ring_that_holds_no_row_is_refused() -> None:
    """The error names the size that would do, and that size does."""
    shape = RowShape(layers=60, top_k=8, experts=256)
    with pytest.raises(RingSettingsError, match="too small") as caught:
        Geometry.for_size(64 * 1024, shape.longest_row_frame())
    needed = int(caught.value.next_step.split()[3])
    assert Geometry.for_size(needed, shape.longest_row_frame()).capacity <= needed
    assert needed % SEGMENTS == 0


def test_a_full_disk_shows_when_the_ring_is_made(tmp_path: Path) -> None:
    """The ring is allocated at the start: the engine cannot be hit by a full disk later."""
    code = """
import resource, sys
from pathlib import Path
from moescope.producers.ring.errors import RingCreateError
from moescope.producers.ring.layout import Geometry
from moescope.producers.ring.writer import RingWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    RingWriter(Path(sys.argv[1]), 7, b"", Geometry(32 * 8192, 8192), created_at_us=0)
except RingCreateError as error:
    assert error.retriable
    print("refused")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "refused\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("below", ["", "sub"])
@pytest.mark.parametrize("who", [small_recorder, lambda folder: Agent(folder, folder / "log")])
def test_a_link_that_leads_nowhere_is_named(
    tmp_path: Path, who: Callable[[Path], object], below: str
) -> None:
    """After a reboot that emptied the memory file system, the error says what to make."""
    link, target = tmp_path / "ring", tmp_path / "gone by now"
    link.symlink_to(target.name)
    with pytest.raises(RingCreateError, match="cannot use the folder") as caught:
        who(link / below)
    assert f"{link} is a link to {target}" in caught.value.why
    assert caught.value.next_step.endswith(f"mkdir -p '{target}'")
    assert caught.value.retriable


def test_a_folder_that_is_a_file_is_not_taken_for_a_link(tmp_path: Path) -> None:
    """Other reasons are the system's."""
    file = tmp_path / "ring"
    file.touch()
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(RingCreateError) as caught:
        small_recorder(file)
    assert caught.value.why == os.strerror(errno.EEXIST)
    with pytest.raises(RingCreateError):
        small_recorder(tmp_path / "circle")
