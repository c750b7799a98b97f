"""Where tasks are cut into windows, and why the parts close."""

from __future__ import annotations

import pytest

from moescope.core.clock import NO_TIME
from moescope.core.emission import LaneKey
from moescope.core.vocabulary import CloseReason, ScopeKind, WindowKind
from moescope.storage.shared import DomainClock, Series, WindowSpan
from moescope.storage.shared.tasks import TaskMinute, TaskWindows, split_task

SECOND = 1_000_000
MINUTE = 60 * SECOND
LANE = LaneKey("live", "m", "r", "model", "full", 1.0, 4, 1, (0,))
SERIES = Series(LANE, "decode", WindowKind.TASK, ScopeKind.ALL, "", "t")


def minute(first_us: int, last_us: int | None = None, *, ended: bool = False) -> TaskMinute:
    """A task's minute with rows from `first_us` to `last_us`."""
    return TaskMinute(
        first_us - first_us % MINUTE, first_us, first_us if last_us is None else last_us, ended
    )


@pytest.mark.parametrize(
    ("gap", "ended", "parts"),
    [
        (600 * SECOND - 1, False, 1),
        (600 * SECOND, False, 2),
        (62 * SECOND - 1, True, 1),
        (62 * SECOND, True, 2),
    ],
)
def test_silence_cuts_a_task(gap: int, ended: bool, parts: int) -> None:
    """Ten minutes, or 62 s once the task was said to be over; exactly that long cuts."""
    first = minute(50 * SECOND, ended=ended)
    assert len(split_task([minute(50 * SECOND + gap), first])) == parts


def test_an_hour_cuts_a_task() -> None:
    """The sixtieth minute after the first one starts a new window, whatever the seconds."""
    minutes = [minute(number * MINUTE + 30 * SECOND) for number in range(61)]
    assert [len(part.minutes) for part in split_task(minutes)] == [60, 1]


def test_rows_without_times_are_one_part() -> None:
    """They have no place among those with times."""
    parts = split_task([TaskMinute(0, NO_TIME, NO_TIME, last_of_task=False), minute(5 * MINUTE)])
    assert [part.timeless for part in parts] == [True, False]


def closed(tasks: TaskWindows, clock: DomainClock) -> list[tuple[WindowSpan, CloseReason]]:
    """What a clock closes."""
    return [(task.span, reason) for task, reason in tasks.due("live", clock)]


@pytest.mark.parametrize(
    ("ended", "waits", "reason"),
    [(False, 600, CloseReason.SILENCE), (True, 62, CloseReason.TASK_END)],
)
def test_a_task_closes_when_nothing_can_follow(
    ended: bool,
    waits: int,
    reason: CloseReason,
) -> None:
    """At exactly the watermark that rules out another row of it."""
    tasks = TaskWindows()
    tasks.add(SERIES, minute(10 * SECOND, 20 * SECOND, ended=ended))
    due = (20 + waits) * SECOND
    assert closed(tasks, DomainClock(reached_us=due - 1)) == []
    span = WindowSpan(SERIES, 0, 0, 0, 1)
    assert closed(tasks, DomainClock(reached_us=due)) == [(span, reason)]
    assert closed(tasks, DomainClock(reached_us=due + MINUTE)) == []


def test_a_long_task_rolls_over() -> None:
    """Its first hour closes while it goes on."""
    tasks = TaskWindows()
    for number in range(62):
        tasks.add(SERIES, minute(number * MINUTE))
    ((span, reason),) = closed(tasks, DomainClock(reached_us=61 * MINUTE))
    assert (span.low, span.high) == (0, 59 * MINUTE + 1)
    assert reason is CloseReason.ROLL_OVER


def test_a_seal_closes_what_is_open_each_for_its_own_reason() -> None:
    """What had closed anyway keeps its reason, so commits do not show."""
    tasks = TaskWindows()
    tasks.add(SERIES, minute(0))
    tasks.add(SERIES, minute(20 * MINUTE))
    other = Series(LANE, "decode", WindowKind.TASK, ScopeKind.ALL, "", "timeless")
    tasks.add(other, TaskMinute(0, NO_TIME, NO_TIME, last_of_task=False))
    assert closed(tasks, DomainClock(reached_us=NO_TIME)) == []
    found = closed(tasks, DomainClock(reached_us=20 * MINUTE, sealed=True))
    assert sorted((span.series.task, span.low, reason) for span, reason in found) == [
        ("t", 0, CloseReason.SILENCE),
        ("t", 20 * MINUTE, CloseReason.SEALED),
        ("timeless", 0, CloseReason.SEALED),
    ]


def test_a_late_row_names_the_windows_that_it_changes() -> None:
    """Only windows that it would have been part of, or would have joined."""
    tasks = TaskWindows()
    tasks.add(SERIES, minute(60 * MINUTE))
    closed(tasks, DomainClock(reached_us=75 * MINUTE))
    span = WindowSpan(SERIES, 0, 0, 60 * MINUTE, 60 * MINUTE + 1)
    for offset, touched in ((-10, False), (-9, True), (0, True), (9, True), (10, False)):
        found = tasks.touched(SERIES, minute((60 + offset) * MINUTE), 75 * MINUTE)
        assert found == ([span] if touched else []), offset


def test_a_window_that_opens_again_joins_the_late_rows() -> None:
    """The parts are cut anew from all minutes."""
    tasks = TaskWindows()
    tasks.add(SERIES, minute(60 * MINUTE))
    clock = DomainClock(reached_us=75 * MINUTE)
    ((span, _),) = closed(tasks, clock)
    tasks.reopen(span)
    tasks.add(SERIES, minute(55 * MINUTE))
    ((again, _),) = closed(tasks, clock)
    assert (again.low, again.high) == (55 * MINUTE, 60 * MINUTE + 1)


def test_closed_windows_are_final_after_ten_minutes() -> None:
    """Late rows of them are counted and dropped, whether or not they were forgotten already."""
    tasks = TaskWindows()
    tasks.add(SERIES, minute(0))
    closed(tasks, DomainClock(reached_us=10 * MINUTE))
    late = minute(MINUTE)
    assert len(tasks.touched(SERIES, late, 20 * MINUTE - 1)) == 1
    assert tasks.touched(SERIES, late, 20 * MINUTE) == []
    assert tasks.too_late(SERIES, late, 20 * MINUTE)
    tasks.forget("live", 20 * MINUTE)
    assert tasks.touched(SERIES, late, 20 * MINUTE - 1) == []


def test_a_very_late_row_still_joins_what_is_open() -> None:
    """A long task is open however old its first rows are; far away from it, they are lost."""
    tasks = TaskWindows()
    for number in range(0, 50, 5):
        tasks.add(SERIES, minute((100 + number) * MINUTE))
    assert closed(tasks, DomainClock(reached_us=150 * MINUTE)) == []
    assert not tasks.too_late(SERIES, minute(103 * MINUTE), 150 * MINUTE)
    assert tasks.too_late(SERIES, minute(80 * MINUTE), 150 * MINUTE)
    assert not tasks.too_late(SERIES, minute(150 * MINUTE), 150 * MINUTE)
