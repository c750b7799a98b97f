"""Which malformed records are kept whole, and that all of them are counted, over any restarts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batches import make_heartbeat
from support.rolled_up import roll_up

from moescope.core.accounts import DeadLetter
from moescope.core.clock import NO_TIME
from moescope.core.wire import encode_batch
from moescope.processors.config import WindowConfig
from moescope.processors.letters import REMEMBERED_MINUTES, LetterBox
from moescope.processors.partition import Partition
from moescope.processors.sources.protocol import SourceGap, SourceRecord

START_US = 1_700_000_000_000_000
MINUTE_US = 60_000_000
CONFIG = WindowConfig(token=((16, 16),), time=(), step=(), dead_letters_kept=3)


def _stream(kinds: list[tuple[str, int]]) -> list[SourceRecord]:
    """Records at minutes: heartbeats, garbage, and heartbeats with a version from the future."""
    records = []
    for offset, (kind, minute) in enumerate(kinds):
        payload = encode_batch(make_heartbeat(offset))
        if kind == "garbage":
            payload = b"x" * (offset + 1)
        elif kind == "version":
            payload = payload[:4] + b"\xf7" + payload[5:]
        records.append(SourceRecord(offset, START_US + minute * MINUTE_US, payload))
    return records


@given(
    st.lists(
        st.tuples(st.sampled_from(["good", "garbage", "garbage", "version"]), st.integers(0, 2)),
        max_size=60,
    ),
    st.integers(0, 2**32),
)
@settings(max_examples=40)
def test_malformed_records_are_counted_exactly_and_kept_up_to_the_limit(
    kinds: list[tuple[str, int]], seed: int
) -> None:
    """Three of each minute are kept and all are counted, wherever commits and restarts are."""
    rng = Random(seed)
    numbers = range(3 * len(kinds))
    commits = {number for number in numbers if rng.random() < 0.3}
    restarts = {number for number in numbers if rng.random() < 0.1}
    records = _stream(kinds)
    found = roll_up(records, CONFIG, commits=commits, restarts=restarts)
    bad = [offset for offset, (kind, _) in enumerate(kinds) if kind != "good"]
    in_minute: Counter[int] = Counter()
    kept = []
    for offset in bad:
        in_minute[kinds[offset][1]] += 1
        if in_minute[kinds[offset][1]] <= 3:
            kept.append(offset)
    assert found.dead_letters == kept
    by_kind = {"records": 0, "kept": 0, "bytes": 0}
    for (what, _), number in found.letter_counts.items():
        by_kind[what] += number
    assert by_kind == {
        "records": len(bad),
        "kept": len(kept),
        "bytes": sum(len(records[offset].payload) for offset in bad),
    }
    versions = sum(kind == "version" for kind, _ in kinds)
    assert found.letter_counts["records", "unknown_version"] == versions


def test_lost_records_are_always_told_and_counted_one_by_one() -> None:
    """A gap is a letter even where no other is kept, and counts the records that were not read."""
    config = WindowConfig(token=((16, 16),), time=(), step=(), dead_letters_kept=0)
    partition = Partition("p", "live", config, None)
    partition.process(SourceRecord(0, START_US, b"garbage"))
    partition.pass_gap(SourceGap(1, 8, "expired", b""))
    output = partition.take()[1]
    assert [(letter.reason, letter.offset) for letter in output.dead_letters] == [("log_gap", 1)]
    counts = {each.reason: (each.records, each.kept) for each in output.dead_letter_counts}
    assert counts.pop("log_gap") == (7, 1)
    ((records, kept),) = counts.values()
    assert (records, kept) == (1, 0)


def test_records_of_a_gap_that_were_read_before_it_are_not_missed() -> None:
    """After a restart, only what was never processed counts as gone."""
    first = Partition("p", "live", CONFIG, None)
    for offset in range(5):
        first.process(SourceRecord(offset, START_US, encode_batch(make_heartbeat(offset))))
    progress = first.take()[0]
    again = Partition("p", "live", CONFIG, progress)
    again.pass_gap(SourceGap(0, 9, "expired", b""))
    (count,) = again.take()[1].dead_letter_counts
    assert (count.reason, count.records) == ("log_gap", 4)


@pytest.mark.parametrize("time_us", [NO_TIME, START_US])
def test_a_storm_within_one_minute_is_bounded(time_us: int) -> None:
    """However many records come, as many are held in memory as the limit says."""
    box = LetterBox("p", 2)
    for offset in range(1_000):
        box.put(_letter(offset), time_us)
    letters, (count,) = box.take()
    assert [letter.offset for letter in letters] == [0, 1]
    assert (count.records, count.kept, count.record_bytes) == (1_000, 2, 3_000)
    assert box.take() == ([], [])


def test_loss_told_at_the_place_of_a_letter_is_one_letter() -> None:
    """One row per place: as many are said to be kept as there are letters."""
    box = LetterBox("p", 2)
    box.put_loss(replace(_letter(5), reason="state_lost", payload=b""))
    box.put(_letter(5), START_US)
    ((letter,), counts) = box.take()
    assert (letter.reason, letter.payload) == ("state_lost", b"abc")
    assert {each.reason: (each.records, each.kept) for each in counts} == {
        "r": (1, 0),
        "state_lost": (0, 1),
    }


def test_state_of_the_limit_stays_small() -> None:
    """Records whose append times are all over the place do not make the saved state grow."""
    box = LetterBox("p", 2)
    for offset in range(1_000):
        box.put(_letter(offset), START_US + offset * MINUTE_US)
    assert len(box.state()) == REMEMBERED_MINUTES


def _letter(offset: int) -> DeadLetter:
    return DeadLetter(
        partition="p", offset=offset, append_time_us=0, reason="r", detail="", payload=b"abc"
    )
