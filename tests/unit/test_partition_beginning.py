"""What is gone before anything was processed is no loss; afterwards it is, always."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.routed_topic import make_streams
from support.small_windows import CONFIG
from support.streams import encode

from moescope.processors.partition import Partition
from moescope.processors.sources.protocol import SourceGap, SourceRecord

if TYPE_CHECKING:
    from moescope.core.accounts import DeadLetter

BEGINNING = SourceGap(0, 11, "removed", is_beginning=True)


def letters_of(partition: Partition) -> list[DeadLetter]:
    """What it hands out as dead letters."""
    return partition.take()[1].dead_letters


def test_who_comes_late_to_an_old_log_misses_nothing() -> None:
    """The first records of a partition that was never processed are gone: no letter."""
    partition = Partition("p", "live", CONFIG, None)
    partition.pass_gap(BEGINNING)
    assert partition.next_offset == 11
    assert letters_of(partition) == []


def test_gap_behind_the_first_commit_is_told_though_replay_begins_at_the_first_record() -> None:
    """Two records were committed, whose windows are open; of eleven that are gone nine are lost."""
    records = [each for each in make_streams(8, (0,), passes=6)[0] if each.rows]
    before = Partition("p", "live", CONFIG, None)
    for offset, each in enumerate(records[:2]):
        before.process(SourceRecord(offset, each.appended, encode(each)))
    progress = before.take()[0]
    assert (progress.emitted_to, progress.replay_from) == (2, 0)
    after = Partition("p", "live", CONFIG, progress)
    after.pass_gap(BEGINNING)
    assert [(each.offset, each.detail) for each in letters_of(after)] == [(2, "9 records: removed")]
