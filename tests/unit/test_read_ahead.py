"""Records that were fetched ahead come out in order, once, with what is missing between them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from moescope.processors.sources.protocol import SourceGap, SourceRecord
from moescope.processors.sources.read_ahead import (
    CONFIRMED_SECONDS,
    REWOUND_LOOKS,
    SERVED_SECONDS,
    ReadAhead,
)


def record(offset: int, size: int = 10) -> SourceRecord:
    """A record of some bytes."""
    return SourceRecord(offset, 1_000_000 + offset, b"x" * size)


def opened(offset: int = 5) -> ReadAhead:
    """A partition that is read from an offset on."""
    ahead = ReadAhead(0.0)
    ahead.restart(offset)
    return ahead


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=12),
    st.integers(1, 5),
    st.integers(1, 60),
)
def test_everything_comes_out_once_and_in_order(
    pieces: list[tuple[bool, int]], most: int, most_bytes: int
) -> None:
    """Whatever the sizes of reads, offsets are covered without holes and bytes add up to none."""
    ahead, at = opened(), 5
    for is_gap, length in pieces:
        if is_gap:
            ahead.miss(at + length, "gone")
        else:
            # What comes a second time, after a client began again, is passed over.
            ahead.add([record(offset) for offset in range(max(5, at - 2), at + length)])
        at += length
    covered = 5
    while True:
        poll = ahead.take(most, most_bytes)
        assert len(poll.records) + len(poll.gaps) <= most
        items: list[SourceRecord | SourceGap] = [*poll.records, *poll.gaps]
        items.sort(key=lambda one: one.first if isinstance(one, SourceGap) else one.offset)
        for item in items:
            first = item.first if isinstance(item, SourceGap) else item.offset
            assert first == covered
            covered = item.end if isinstance(item, SourceGap) else first + 1
        assert poll.next_offset == covered
        if poll.exhausted:
            break
    assert covered == at
    assert ahead.held_bytes == 0


def test_beginning_is_told_from_what_is_gone_later() -> None:
    """Only what the log lacks because it begins later, from its first record on, is beginning."""
    gaps: list[SourceGap] = []
    for first, begins_there in ((0, True), (5, True), (0, False)):
        ahead = opened(first)
        ahead.miss(700, "gone", begins_there=begins_there)
        ahead.add([record(700)])
        poll = ahead.take(10, 1 << 20)
        assert [each.offset for each in poll.records] == [700]
        gaps += poll.gaps
    assert gaps == [
        SourceGap(0, 700, "gone", is_beginning=True),
        SourceGap(5, 700, "gone"),
        SourceGap(0, 700, "gone"),
    ]


def test_silence_counts_only_when_the_end_is_known() -> None:
    """Unread: nobody told the end, records wait, or the answer is old; not after two minutes."""
    ahead = opened()
    assert ahead.is_unread(1.0)
    ahead.note_end(7, 1.0)
    assert ahead.is_unread(1.0)
    ahead.add([record(5), record(6)])
    assert ahead.is_unread(1.0)
    ahead.take(10, 1 << 20)
    assert not ahead.is_unread(1.0 + CONFIRMED_SECONDS)
    assert ahead.is_unread(1.1 + CONFIRMED_SECONDS)
    assert not ahead.is_unread(1.1 + SERVED_SECONDS)


def test_end_before_the_place_counts_when_it_stays() -> None:
    """A new leader may tell a smaller end for a moment; a topic made anew goes on to do so."""
    ahead = opened(5)
    for look in range(REWOUND_LOOKS - 1):
        ahead.note_end(2, float(look))
        assert not ahead.is_rewound
        assert not ahead.is_read
    ahead.note_end(5, 9.0)
    assert ahead.is_read
    for look in range(REWOUND_LOOKS):
        ahead.note_end(2, 10.0 + look)
    assert ahead.is_rewound
