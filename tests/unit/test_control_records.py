"""Thresholds in force through the control topic's records."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.plain_equality import same
from support.shared_rows import LANE
from support.threshold_versions import small_version

from moescope.core.control_records import (
    ACTIVATIONS_KEY,
    ControlReader,
    control_changes,
    control_records,
)
from moescope.core.plain_codec import PlainFormatError
from moescope.core.thresholds import Activation, BaselineReference, PagingRule, ThresholdBook

SCOPE = small_version("t-1", LANE).scope
RULE = PagingRule(
    phase="decode", kind="token", size=4, stride=4, scope_kind="all", family="routing", line=2.5,
    needed=3, of=5, expected_per_day=0.01, bound_per_day=0.2, only_bound=True,
)  # fmt: skip


def book_of(records: list[tuple[bytes, bytes | None]]) -> ThresholdBook:
    """A book filled from records."""
    reader, book = ControlReader(), ThresholdBook()
    for key, value in records:
        reader.add(key, value)
    assert reader.fill(book)
    return book


def subjects(changes: list[tuple[bytes, bytes | None]]) -> list[str]:
    """What each record is about."""
    return ["/".join(key.decode().split("/")[:2]) for key, _ in changes]


def key_of(records: dict[bytes, bytes]) -> bytes:
    """Key of the one version."""
    (key,) = records.keys() - {ACTIVATIONS_KEY}
    return key


def test_versions_judge_as_they_did() -> None:
    """A version that travelled is the same, arrays with NaN, references and rules included."""
    version = replace(
        small_version("t-1", LANE),
        references={
            "decode": BaselineReference(
                scenes={"chat": np.arange(8, dtype=np.int64).reshape(2, 4)}, tokens={"chat": 14}
            )
        },
        paging=(RULE,),
    )
    records = control_records({"t-1": version}, {SCOPE: (Activation(5, "t-1"),)})
    found = book_of(list(records.items())).at(LANE, 5)
    assert found is not None
    assert same(found, version)
    assert book_of(list(records.items())).at(LANE, 4) is None


def test_only_what_differs_is_sent() -> None:
    """Versions come before activations that name them, and go after those that did."""
    versions = {name: small_version(name, LANE) for name in ("t-1", "t-2")}
    old = control_records(versions, {SCOPE: (Activation(5, "t-1"),)})
    new = control_records(versions, {SCOPE: (Activation(5, "t-2"), Activation(9, ""))})
    assert control_changes(old, old) == []
    assert subjects(control_changes({}, old)) == ["version/t-1", "activations"]
    changes = control_changes(old, new)
    assert subjects(changes) == ["version/t-2", "activations", "version/t-1"]
    assert changes[-1][1] is None
    book = book_of([*old.items(), *changes])
    at = [book.at(LANE, time_us) for time_us in (4, 5, 9)]
    assert [each and each.version for each in at] == [None, "t-2", None]


def test_nothing_judges_while_a_version_is_missing() -> None:
    """Activations alone never switch judging off for a moment."""
    records = control_records({"t-1": small_version("t-1", LANE)}, {SCOPE: (Activation(5, "t-1"),)})
    reader, book = ControlReader(), ThresholdBook()
    reader.add(ACTIVATIONS_KEY, records[ACTIVATIONS_KEY])
    assert not reader.fill(book)
    assert book.edition == 0
    reader.add(key_of(records), records[key_of(records)])
    assert reader.fill(book)
    assert book.at(LANE, 5) is not None


def test_records_that_hold_something_else_are_refused() -> None:
    """Damaged and misplaced values are errors; keys of later versions are passed over."""
    records = control_records({"t-1": small_version("t-1", LANE)}, {SCOPE: (Activation(5, "t-1"),)})
    reader = ControlReader()
    key = key_of(records)
    for wrong, value in (
        (key.replace(b"t-1", b"t-2"), records[key]),
        (key, records[ACTIVATIONS_KEY]),
        (ACTIVATIONS_KEY, records[key]),
        (ACTIVATIONS_KEY, b"junk"),
    ):
        with pytest.raises(PlainFormatError):
            reader.add(wrong, value)
    reader.add(b"version/t-1", b"junk")
    reader.add(b"colours", b"junk")
    reader.add(None, b"junk")
    assert reader.is_whole


def test_large_versions_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are put together in any order, and never with those of another content."""
    monkeypatch.setattr("moescope.core.control_records.PART_BYTES", 100)
    activations = {SCOPE: (Activation(5, "t-1"),)}
    old = control_records({"t-1": small_version("t-1", LANE)}, activations)
    other = small_version("t-1", LANE, 0.7)
    new = control_records({"t-1": other}, activations)
    assert len(old) > 3
    records = [*reversed(old.items()), *control_changes(old, new)]
    found = book_of(records).at(LANE, 5)
    assert found is not None
    assert same(found, other)
    assert old.keys() & new.keys() == {ACTIVATIONS_KEY}
    reader, book = ControlReader(), ThresholdBook()
    for key, value in list(old.items())[1:]:
        reader.add(key, value)
    assert not reader.fill(book)
