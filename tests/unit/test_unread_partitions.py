"""Which partitions the owner waits for, and which it gives up."""

from __future__ import annotations

from moescope.core.accounts import PartitionProgress
from moescope.core.clock import ManualClock
from moescope.storage.deltas.unread import UnreadPartitions


def progress(name: str, emitted_to: int) -> PartitionProgress:
    """Progress of a partition."""
    return PartitionProgress(
        partition=name, domain="live", emitted_to=emitted_to, replay_from=0, state=b"",
        watermark_us=0, step_low=0, sealed=False,
    )  # fmt: skip


def test_records_that_wait_are_unread_until_they_are_applied() -> None:
    """A partition without records, or with all of them applied, is waited for by nobody."""
    partitions = UnreadPartitions(ManualClock())
    partitions.note_progress([progress("a", 4), progress("b", 5)])
    partitions.note_ends({"a": 5, "b": 5, "empty": 0, "new": 1})
    assert partitions.unread() == {"a", "new"}
    partitions.note_progress([progress("a", 5)])
    assert partitions.unread() == {"new"}
    partitions.note_progress([progress("new", 7)])
    assert partitions.unread() == set()


def test_a_partition_that_nobody_serves_is_given_up_and_taken_back() -> None:
    """After 120 s without progress it holds nobody back; a step of it, and it is waited for."""
    clock = ManualClock()
    partitions = UnreadPartitions(clock)
    partitions.note_ends({"a": 5, "b": 9})
    clock.sleep(119.0)
    partitions.note_progress([progress("b", 3)])
    partitions.note_ends({"a": 6, "b": 10})
    assert partitions.unread() == {"a", "b"}
    assert partitions.unserved() == set()
    clock.sleep(2.0)
    assert partitions.unread() == {"b"}
    assert partitions.unserved() == {"a"}
    partitions.note_progress([progress("a", 1)])
    assert partitions.unread() == {"a", "b"}
    assert partitions.unserved() == set()


def test_patience_begins_when_records_begin_to_wait() -> None:
    """A partition that was idle for an hour is not given up when its first record comes."""
    clock = ManualClock()
    partitions = UnreadPartitions(clock)
    partitions.note_progress([progress("a", 5)])
    partitions.note_ends({"a": 5})
    clock.sleep(3_600.0)
    partitions.note_ends({"a": 6})
    assert partitions.unread() == {"a"}
    assert partitions.unserved() == set()
