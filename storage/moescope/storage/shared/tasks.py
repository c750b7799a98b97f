"""Task windows: where the minutes of a task are cut, and when a part closes."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moescope.core.clock import END_OF_TIME, NO_TIME
from moescope.core.vocabulary import CloseReason
from moescope.storage.shared.spans import RETENTION_US, SECOND_US, Series, WindowSpan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from moescope.storage.shared.clocks import DomainClock

SILENCE_US = 600 * SECOND_US
AFTER_LAST_US = 62 * SECOND_US
ROLL_OVER_US = 3600 * SECOND_US
MINUTE_US = 60 * SECOND_US


@dataclass(slots=True)
class TaskMinute:
    """What is known about one minute of a task without its counts."""

    pane: int
    first_time_us: int
    last_time_us: int
    last_of_task: bool

    def merge(self, other: TaskMinute) -> None:
        """Take in another part of the same minute."""
        self.first_time_us = min(self.first_time_us, other.first_time_us)
        self.last_time_us = max(self.last_time_us, other.last_time_us)
        self.last_of_task |= other.last_of_task


@dataclass(slots=True)
class TaskPart:
    """Minutes of a task that make one window."""

    minutes: list[TaskMinute]
    first_time_us: int = 0
    last_time_us: int = 0
    ended: bool = False

    @classmethod
    def starting(cls, minute: TaskMinute) -> TaskPart:
        """A part that consists of one minute so far."""
        return cls([minute], minute.first_time_us, minute.last_time_us, minute.last_of_task)

    def append(self, minute: TaskMinute) -> None:
        """Add the next minute."""
        self.minutes.append(minute)
        self.last_time_us = max(self.last_time_us, minute.last_time_us)
        self.ended |= minute.last_of_task

    @property
    def timeless(self) -> bool:
        """Whether its rows have no event times: it closes at the seal only."""
        return self.first_time_us == NO_TIME

    @property
    def quiet_from_us(self) -> int:
        """Event time from which a further row is no longer part of it, by silence."""
        return self.last_time_us + (AFTER_LAST_US if self.ended else SILENCE_US)

    @property
    def rolls_at_us(self) -> int:
        """Event time from which a further row is no longer part of it, by age."""
        return self.minutes[0].pane + ROLL_OVER_US

    @property
    def closes_at_us(self) -> int:
        """Watermark at which it closes."""
        return min(self.quiet_from_us, self.rolls_at_us)

    def close_reason(self, clock: DomainClock) -> CloseReason:
        """Why it closes, the same for every way in which the watermark got there."""
        if self.timeless or (self.closes_at_us > clock.reached_us and not self.ended):
            return CloseReason.SEALED
        if self.rolls_at_us < self.quiet_from_us:
            return CloseReason.ROLL_OVER
        return CloseReason.TASK_END if self.ended else CloseReason.SILENCE


def split_task(minutes: Iterable[TaskMinute]) -> list[TaskPart]:
    """Cut a task into windows, by its event times alone.

    A row that comes 10 minutes after the row before it (62 s once the task was said to be
    over), or 60 minutes after the first minute, starts a new window. Because a watermark
    promises that nothing earlier follows, closing by watermark decides the same.
    """
    parts: list[TaskPart] = []
    for minute in sorted(minutes, key=lambda minute: minute.pane):
        part = parts[-1] if parts else None
        if (
            part is None
            or part.timeless
            or minute.first_time_us >= part.quiet_from_us
            or minute.pane >= part.rolls_at_us
        ):
            parts.append(TaskPart.starting(minute))
        else:
            part.append(minute)
    return parts


@dataclass(frozen=True, slots=True)
class ClosedTask:
    """A closed window that late rows may still change."""

    span: WindowSpan
    first_time_us: int
    closed_at_us: int
    minutes: tuple[TaskMinute, ...]

    @property
    def keep_until_us(self) -> int:
        """Watermark from which it never changes again."""
        return self.closed_at_us + RETENTION_US


@dataclass(slots=True)
class _Task:
    open: dict[int, TaskMinute] = field(default_factory=dict)
    closed: list[ClosedTask] = field(default_factory=list)


class TaskWindows:
    """Open and recently closed task windows: times only, no counts."""

    def __init__(self) -> None:
        self._tasks: dict[Series, _Task] = {}
        self._queues: dict[str, list[tuple[int, int, Series]]] = {}
        self._pushed = 0

    def add(self, series: Series, minute: TaskMinute) -> None:
        """Note an accepted pane of a task."""
        task = self._tasks.setdefault(series, _Task())
        known = task.open.get(minute.pane)
        if known is None:
            task.open[minute.pane] = minute
            self._push(series, minute.last_time_us + AFTER_LAST_US)
        else:
            known.merge(minute)

    def _push(self, series: Series, due_us: int) -> None:
        self._pushed += 1
        queue = self._queues.setdefault(series.lane.domain, [])
        heapq.heappush(queue, (due_us, self._pushed, series))

    def touched(self, series: Series, minute: TaskMinute, watermark_us: int) -> list[WindowSpan]:
        """Closed windows that a pane would change, less those that are closed for good."""
        task = self._tasks.get(series)
        if task is None or minute.first_time_us == NO_TIME:
            return []
        return [
            closed.span
            for closed in task.closed
            if closed.keep_until_us > watermark_us
            and minute.first_time_us < closed.closed_at_us
            and minute.last_time_us + SILENCE_US > closed.first_time_us
        ]

    def too_late(self, series: Series, minute: TaskMinute, watermark_us: int) -> bool:
        """Whether a pane that touches no closed window may belong to one that is forgotten."""
        final = minute.last_time_us + AFTER_LAST_US + RETENTION_US <= watermark_us
        if minute.first_time_us == NO_TIME or not final:
            return False
        task = self._tasks.get(series)
        return task is None or not any(
            known.first_time_us < minute.last_time_us + SILENCE_US
            and minute.first_time_us < known.last_time_us + SILENCE_US
            for known in task.open.values()
        )

    def reopen(self, span: WindowSpan) -> None:
        """Take a closed window's minutes back into the open ones."""
        task = self._tasks[span.series]
        (closed,) = (closed for closed in task.closed if closed.span == span)
        task.closed.remove(closed)
        for minute in closed.minutes:
            self.add(span.series, minute)

    def due(self, domain: str, clock: DomainClock) -> Iterator[tuple[ClosedTask, CloseReason]]:
        """Close what is due, in an order that does not depend on commits."""
        found: list[tuple[ClosedTask, CloseReason]] = []
        queue = self._queues.get(domain, [])
        seen: set[Series] = set()
        while queue and (clock.sealed or queue[0][0] <= clock.reached_us):
            series = heapq.heappop(queue)[2]
            if series not in seen:
                seen.add(series)
                found.extend(self._close(series, clock))
        return iter(found)

    def _close(
        self, series: Series, clock: DomainClock
    ) -> Iterator[tuple[ClosedTask, CloseReason]]:
        task = self._tasks[series]
        for part in split_task(task.open.values()):
            if not clock.sealed and (part.timeless or part.closes_at_us > clock.reached_us):
                self._push(series, END_OF_TIME if part.timeless else part.closes_at_us)
                continue
            for minute in part.minutes:
                del task.open[minute.pane]
            span = WindowSpan(series, 0, 0, part.minutes[0].pane, part.minutes[-1].pane + 1)
            closed_at = clock.reached_us if part.timeless else part.closes_at_us
            closed = ClosedTask(span, part.first_time_us, closed_at, tuple(part.minutes))
            task.closed.append(closed)
            yield closed, part.close_reason(clock)

    def restore_closed(self, series: Series, minutes: list[TaskMinute]) -> None:
        """Note closed windows again after a restart."""
        task = self._tasks.setdefault(series, _Task())
        for part in split_task(minutes):
            span = WindowSpan(series, 0, 0, part.minutes[0].pane, part.minutes[-1].pane + 1)
            closed_at = NO_TIME if part.timeless else part.closes_at_us
            task.closed.append(ClosedTask(span, part.first_time_us, closed_at, tuple(part.minutes)))

    def forget(self, domain: str, watermark_us: int) -> None:
        """Drop closed windows that never change again."""
        gone = []
        for series, task in self._tasks.items():
            if series.lane.domain != domain:
                continue
            if task.closed:
                task.closed = [
                    closed for closed in task.closed if closed.keep_until_us > watermark_us
                ]
            if not task.open and not task.closed:
                gone.append(series)
        for series in gone:
            del self._tasks[series]
