"""Logs that are not whole: a comparison of a part says so before anything else."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.comparison_logs import Batch, Row, write_log

from moescope.core.batchlog import BatchLogReader, BatchLogWriter, WriterSettings
from moescope.core.errors import InsufficientDataError
from moescope.jobs.reports.comparison import compare, find_side
from moescope.jobs.reports.comparison.page import comparison_html
from moescope.jobs.reports.comparison.terminal import opening_lines

if TYPE_CHECKING:
    from pathlib import Path

RECORDS = 4
NO_TIME_TO_SYNC = WriterSettings(durability="none")


def batches() -> list[Batch]:
    """24 tokens in four batches."""
    tokens = [Row(f"r{at % 4}", at, ((0, 1, 2), (3, 4, 5)), key=at + 1) for at in range(24)]
    return [Batch(tuple(tokens[at : at + 6])) for at in range(0, 24, 6)]


def copied(source: Path, target: Path, payloads: int = RECORDS, *, seal: bool = False) -> Path:
    """The first records of a log in a log that a writer may go on with."""
    with (
        BatchLogReader(source, "n") as reader,
        BatchLogWriter(target, "n", settings=NO_TIME_TO_SYNC) as writer,
    ):
        for record in reader.read(0).records[:payloads]:
            writer.append(record.payload)
        if seal:
            writer.seal()
    return target


def damage(log: Path, *records: int) -> int:
    """Damage records in the middle; bytes of the log."""
    (file,) = (log / "n").glob("*.seg")
    content = bytearray(file.read_bytes())
    frame = len(content) // RECORDS
    for record in records:
        content[record * frame + frame // 2] ^= 0xFF
    file.write_bytes(content)
    return len(content)


def test_damage_is_told_first_in_text_numbers_and_page(tmp_path: Path) -> None:
    """How many records of how many, and what share of the log: nobody counts rows by hand."""
    a, b = (write_log(tmp_path / name, batches()) for name in "ab")
    size = damage(b, 1, 2)
    report = compare(find_side(a), find_side(b), fewest_pairs=12)
    side: Any = report["b"]
    told = ("records", "unreadable_records", "removed_records", "log_bytes", "tail_bytes")
    assert [side[name] for name in told] == [4, 2, 0, size, 0]
    assert side["unreadable_bytes"] == pytest.approx(size / 2, rel=0.02)
    note = (
        "The log of side B is not whole: 2 of 4 records cannot be read (2 damaged)."
        f" That is 50 % of the {size:,} bytes that are there."
    )
    assert report["notes"] == [note]
    assert opening_lines(report)[0] == f"Note: {note}"
    page = comparison_html(report, "c.json")
    assert f"<p><strong>Note</strong>: {note}</p>" in page
    assert page.index(note) < page.index(report["summary"][0])


def test_a_whole_log_needs_no_note(tmp_path: Path) -> None:
    """A note that is always there is read by nobody."""
    a = write_log(tmp_path / "a", batches())
    b = copied(write_log(tmp_path / "source", batches()), tmp_path / "b")
    report = compare(find_side(a), find_side(b), fewest_pairs=24)
    assert report["notes"] == []
    assert report["a"]["records"] == RECORDS
    assert report["a"]["unreadable_bytes"] == report["a"]["tail_bytes"] == 0


@pytest.mark.parametrize("seal", [False, True], ids=["open", "sealed"])
def test_a_side_of_damaged_records_alone_says_so(tmp_path: Path, seal: bool) -> None:
    """It was recorded well, and `record with fidelity full` would send somebody astray.

    Behind the last complete record of an open log nothing tells damage from what is being written.
    """
    a = write_log(tmp_path / "a", batches())
    b = copied(a, tmp_path / "b", seal=seal)
    size = damage(b, *range(RECORDS))
    with pytest.raises(InsufficientDataError) as caught:
        compare(find_side(a), find_side(b))
    assert caught.value.what == "Side B has no row to compare."
    assert caught.value.why == (
        "It has 4 unreadable records."
        if seal
        else f"The last {size:,} bytes hold no complete record: they are damaged, or just being"
        " written."
    )
    assert caught.value.next_step.startswith("Restore the log from a copy")


def test_the_end_of_an_open_log_is_told_as_what_it_is(tmp_path: Path) -> None:
    """Whole records before it are compared; a writer that goes on may complete it."""
    a = write_log(tmp_path / "a", batches())
    b = copied(write_log(tmp_path / "source", batches()), tmp_path / "b")
    size = damage(b, 3)
    b_side: Any = compare(find_side(a), find_side(b), fewest_pairs=18)["b"]
    assert (b_side["records"], b_side["unreadable_records"]) == (3, 0)
    assert b_side["tail_bytes"] == b_side["unreadable_bytes"]
    assert b_side["tail_bytes"] == pytest.approx(size / 4, rel=0.02)
    with pytest.raises(InsufficientDataError) as caught:
        compare(find_side(a), find_side(b), fewest_pairs=19)
    assert f"The log of side B is not whole: The last {b_side['tail_bytes']:,} bytes" in (
        caught.value.why
    )


def test_repeats_of_a_damaged_log_are_told_likewise(tmp_path: Path) -> None:
    """One side is enough for a note."""
    again = [*batches(), *(replace(batch, scene="again") for batch in batches())][:RECORDS]
    again[2:] = again[:2]
    a = write_log(tmp_path / "a", again)
    damage(a, 3)
    report = compare(find_side(a), None, fewest_pairs=6)
    assert report["notes"][0].startswith(
        "The log of side A is not whole: 1 of 4 records cannot be read (1 damaged). That is 25 %"
    )


def test_what_the_byte_cap_removed_is_no_damage(tmp_path: Path) -> None:
    """It was removed on purpose: nothing has to be restored."""
    a, source = (write_log(tmp_path / name, batches()) for name in ("a", "source"))
    with BatchLogReader(source, "n") as reader:
        record = reader.read(0).records[0]
    settings = WriterSettings(segment_bytes=4_096, byte_cap=65_536, durability="none")
    with BatchLogWriter(tmp_path / "b", "n", settings=settings) as writer:
        for _ in range(200):
            writer.append(record.payload)
    report = compare(find_side(a), find_side(tmp_path / "b"), fewest_pairs=6)
    side: Any = report["b"]
    gone = side["unreadable_records"]
    assert 0 < gone == side["removed_records"] < side["records"] == 200
    told = f"{gone} of 200 records cannot be read ({gone} removed by the byte cap)."
    assert report["notes"] == [f"The log of side B is not whole: {told}"]
