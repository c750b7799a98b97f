"""What the owner stores beside an emission that came through a topic."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.shared_rows import BASE, SECOND, SHAPES, Record, RowProcessor, share_finisher

from moescope.core.accounts import DeadLetter, DeadLetterCount
from moescope.core.emission import Emission
from moescope.storage import Store
from moescope.storage.errors import EmissionRefusedError, LogReplacedError
from moescope.storage.progress import is_contained

if TYPE_CHECKING:
    from pathlib import Path

    from moescope.core.accounts import PartitionProgress

TOPIC = "x.deltas-0"


def records(number: int, first: int = 0) -> list[Record]:
    """Records without rows, whose watermarks rise."""
    return [Record((), BASE + (first + each) * SECOND) for each in range(number)]


def test_the_place_in_the_topic_is_stored_with_the_output(tmp_path: Path) -> None:
    """It survives a restart, and never moves back."""
    processor = RowProcessor()
    with Store(tmp_path / "s.duckdb", share_finisher, SHAPES) as store:
        assert store.read_to() == {}
        store.apply(replace(processor.emission(records(2)), read_to={TOPIC: 5}))
        store.apply(processor.emission(records(1, 2)))
        store.apply(Emission(progress=(), read_to={TOPIC: 9}))
    with Store(tmp_path / "s.duckdb", share_finisher, SHAPES) as store:
        assert store.read_to() == {TOPIC: 9}
        back = replace(processor.emission(records(1, 3)), read_to={TOPIC: 8})
        with pytest.raises(EmissionRefusedError, match=r"x\.deltas-0"):
            store.apply(back)
        assert store.read_to() == {TOPIC: 9}
        store.apply(replace(back, read_to={TOPIC: 9}))


def test_what_is_handled_may_lie_behind_where_reading_begins(tmp_path: Path) -> None:
    """It is stored with the place, by itself too, and is the place where nothing is said."""
    with Store(tmp_path / "s.duckdb", share_finisher, SHAPES) as store:
        store.apply(Emission(progress=(), read_to={TOPIC: 5}))
        assert store.handled_to() == {TOPIC: 5}
        store.apply(Emission(progress=(), read_to={TOPIC: 6}, handled_to={TOPIC: 9}))
        store.apply(Emission(progress=(), handled_to={TOPIC: 11}))
    with Store(tmp_path / "s.duckdb", share_finisher, SHAPES) as store:
        assert store.read_to() == {TOPIC: 6}
        assert store.handled_to() == {TOPIC: 11}


def test_reading_may_begin_anew_where_somebody_says_so(tmp_path: Path) -> None:
    """A topic that was made anew is read from its beginning; what is handled goes back, too."""
    processor = RowProcessor()
    with Store(tmp_path / "s.duckdb", share_finisher, SHAPES) as store:
        store.apply(replace(processor.emission(records(1)), read_to={TOPIC: 9}))
        store.apply(Emission(progress=(), read_to={"other-0": 4}, handled_to={TOPIC: 12}))
        store.read_deltas_from(TOPIC, 2)
        store.apply(replace(processor.emission(records(1, 1)), read_to={TOPIC: 3}))
    with Store(tmp_path / "s.duckdb", share_finisher, SHAPES) as store:
        assert store.read_to() == store.handled_to() == {TOPIC: 3, "other-0": 4}
        assert store.load_progress()["p"].emitted_to == 2


def of_log(emission: Emission, log_id: str) -> Emission:
    """The emission, with the id of the log that it was made of."""
    (progress,) = emission.progress
    return replace(emission, progress=(replace(progress, log_id=log_id),))


def test_records_of_another_log_are_refused(tmp_path: Path) -> None:
    """Whoever does not name the log neither forgets it nor is stopped; another one is."""
    processor = RowProcessor()
    with Store(tmp_path / "s.duckdb", share_finisher, SHAPES) as store:
        for number, log_id in enumerate(("", "one", "", "one")):
            store.apply(of_log(processor.emission(records(1, number)), log_id))
        store.apply(processor.emission(records(1, 4)))
        assert store.load_progress()["p"].log_id == "one"
    with Store(tmp_path / "s.duckdb", share_finisher, SHAPES) as store:
        assert store.load_progress()["p"].log_id == "one"
        other = of_log(processor.emission(records(1, 5)), "two")
        with pytest.raises(LogReplacedError, match="p come from another topic"):
            store.apply(other)
        assert store.load_progress()["p"].emitted_to == 5


def test_dead_letters_of_the_topic_itself_need_no_progress(tmp_path: Path) -> None:
    """A damaged record of the deltas topic is kept, with the place behind it."""
    letter = DeadLetter(
        partition=TOPIC, offset=4, append_time_us=BASE, reason="damaged_emission", detail="",
        payload=b"x",
    )  # fmt: skip
    with Store(tmp_path / "s.duckdb", share_finisher, SHAPES) as store:
        store.apply(Emission(progress=(), dead_letters=(letter,), read_to={TOPIC: 5}))
        with pytest.raises(EmissionRefusedError):
            store.apply(Emission(progress=(), dead_letters=(letter,)))
        with store.cursor() as cursor:
            found = cursor.execute("SELECT partition, log_offset FROM dead_letters").fetchall()
    assert found == [(TOPIC, 4)]


def test_counts_of_dead_letters_add_up(tmp_path: Path) -> None:
    """Increments of one and of several commits, and of two reasons, are added exactly."""

    def count(reason: str, number: int) -> DeadLetterCount:
        return DeadLetterCount(
            partition="p", reason=reason, records=number, kept=1, record_bytes=number * 10
        )

    processor = RowProcessor()
    with Store(tmp_path / "s.duckdb", share_finisher, SHAPES) as store:
        for counts in ((count("a", 3), count("b", 1), count("a", 4)), (), (count("a", 5),)):
            store.apply(replace(processor.emission(records(1)), dead_letter_counts=counts))
        with store.cursor() as cursor:
            found = cursor.execute(
                "SELECT reason, records, kept, record_bytes FROM dead_letter_counts ORDER BY 1"
            ).fetchall()
    assert found == [("a", 12, 3, 120), ("b", 1, 1, 10)]


def progress_of(*emissions: Emission) -> dict[str, PartitionProgress]:
    """Progress after emissions."""
    return {each.partition: each for emission in emissions for each in emission.progress}


def test_an_emission_that_repeats_what_is_stored_is_told_apart() -> None:
    """Contained: no partition gets further. Anything that does is not."""
    first, other = RowProcessor(), RowProcessor("q")
    stored = progress_of(first.emission(records(3)), other.emission(records(3)))
    again, others = RowProcessor(), RowProcessor("q")
    assert is_contained(again.emission(records(2)), stored)
    assert is_contained(others.emission(records(3)), stored)
    straddling = again.emission(records(2, 2))
    assert not is_contained(straddling, stored)
    mixed = replace(straddling, progress=(*straddling.progress, stored["q"]))
    assert not is_contained(mixed, stored)
    assert not is_contained(RowProcessor("new").emission(records(1)), stored)
    unmoved = Emission(progress=(stored["p"],))
    assert not is_contained(unmoved, stored)
    assert not is_contained(Emission(progress=(replace(stored["p"], sealed=True),)), stored)
    assert not is_contained(Emission(progress=()), stored)
