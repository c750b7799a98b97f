"""The plan of all shared windows of a store: what opens, closes, and closes again.

Only names and times are kept in memory; counts stay in the panes. So memory does not grow with
layers and experts, and a restart needs to read no counts.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moescope.core.vocabulary import WindowKind
from moescope.storage.shared.intervals import (
    IntervalWindows,
    closes_at,
    is_closed,
    is_too_late,
    lateness,
)
from moescope.storage.shared.panes import is_without_rows
from moescope.storage.shared.spans import RETENTION_US, Series, WindowSpan
from moescope.storage.shared.tasks import ClosedTask, TaskMinute, TaskWindows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from moescope.core.emission import SharedDelta
    from moescope.core.vocabulary import CloseReason
    from moescope.storage.shared.clocks import DomainClock
    from moescope.storage.shared.spans import WindowShapes


@dataclass(slots=True)
class Accepted:
    """What became of the deltas of one emission.

    Attributes:
        deltas: Those that at least one window takes.
        late_rows: Domain → rows that came too late, counted once per window.
    """

    deltas: list[SharedDelta] = field(default_factory=list)
    late_rows: dict[str, int] = field(default_factory=lambda: defaultdict(int))


@dataclass(slots=True)
class Due:
    """Windows to finish now.

    Attributes:
        spans: Each with the reason.
        tasks: Closed task windows, for the panes' retention.
        reached_us, step_reached: Where the domain's clock has to stand afterwards.
    """

    spans: list[tuple[WindowSpan, CloseReason]]
    tasks: list[ClosedTask]
    clock: DomainClock


def _minute(delta: SharedDelta) -> TaskMinute:
    return TaskMinute(delta.pane, delta.first_time_us, delta.last_time_us, delta.last_of_task)


class SharedWindows:
    """Which shared windows are open, and what a delta means for those that closed.

    For each emission: `late`, `reopen` for what may still change, `accept`, then `due` once
    the clocks have moved.
    """

    def __init__(self, shapes: WindowShapes) -> None:
        self._shapes = shapes
        self._intervals = IntervalWindows(shapes)
        self._tasks = TaskWindows()

    def late(
        self, deltas: Iterable[SharedDelta], clocks: Mapping[str, DomainClock]
    ) -> list[WindowSpan]:
        """Closed windows that deltas would change, less those that are closed for good."""
        found: dict[WindowSpan, None] = {}
        for delta in deltas:
            clock = clocks[delta.lane.domain]
            if delta.kind is WindowKind.TASK:
                touched = self._tasks.touched(Series.of(delta), _minute(delta), clock.reached_us)
                found.update(dict.fromkeys(touched))
                continue
            if not self._intervals.may_be_late(delta, clock):
                continue
            for span in self._intervals.spans(delta):
                if is_closed(span, clock) and not is_too_late(span, clock):
                    found[span] = None
        return list(found)

    def accept(
        self,
        deltas: Iterable[SharedDelta],
        clocks: Mapping[str, DomainClock],
        refused: Collection[WindowSpan],
    ) -> Accepted:
        """Open the windows of deltas; `refused` are closed windows that cannot change.

        A delta that only brings a similarity pane, or passes, is kept, but opens no window:
        without a row there is none.

        Every other window that `late` named opens again. Task windows that `late` named and
        that are not refused have to be reopened by `reopen` before.
        """
        accepted = Accepted()
        for delta in deltas:
            domain = delta.lane.domain
            if delta.kind is WindowKind.TASK:
                missed = self._accept_task(delta, clocks[domain], refused)
                taken = not missed
            else:
                missed, taken = self._accept_interval(delta, clocks[domain], refused)
            if missed:
                accepted.late_rows[domain] += missed * delta.seen
            if taken:
                accepted.deltas.append(delta)
        return accepted

    def _accept_task(
        self, delta: SharedDelta, clock: DomainClock, refused: Collection[WindowSpan]
    ) -> int:
        series, minute = Series.of(delta), _minute(delta)
        touched = self._tasks.touched(series, minute, clock.reached_us)
        if any(span in refused for span in touched):
            return 1
        if not touched and self._tasks.too_late(series, minute, clock.reached_us):
            return 1
        self._tasks.add(series, minute)
        return 0

    def _accept_interval(
        self, delta: SharedDelta, clock: DomainClock, refused: Collection[WindowSpan]
    ) -> tuple[int, bool]:
        if not self._intervals.may_be_late(delta, clock):
            if not is_without_rows(delta):
                self._intervals.open_all(delta)
            return 0, self._intervals.has_windows(delta.kind)
        missed, taken = 0, False
        for span in self._intervals.spans(delta):
            if span in refused or (is_closed(span, clock) and is_too_late(span, clock)):
                missed += 1
            else:
                if not is_without_rows(delta):
                    self._intervals.open(span)
                taken = True
        return missed, taken

    def reopen(self, spans: Iterable[WindowSpan]) -> None:
        """Take closed windows back into the open ones."""
        for span in spans:
            if span.series.kind is WindowKind.TASK:
                self._tasks.reopen(span)
            else:
                self._intervals.open(span)

    def due(self, domain: str, clock: DomainClock) -> Due:
        """Close what is due in a domain."""
        spans = list(self._intervals.due(domain, clock))
        tasks: list[ClosedTask] = []
        for task, reason in self._tasks.due(domain, clock):
            tasks.append(task)
            spans.append((task.span, reason))
        ends = {WindowKind.TIME: clock.reached_us, WindowKind.STEP: clock.step_reached}
        for span, _ in spans:
            kind = span.series.kind
            if kind in ends:
                ends[kind] = max(ends[kind], closes_at(span))
        clock = clock.past(ends[WindowKind.TIME], ends[WindowKind.STEP])
        return Due(spans, tasks, clock)

    def forget(self, domain: str, watermark_us: int) -> None:
        """Drop what no late row can change any more."""
        self._tasks.forget(domain, watermark_us)

    def keep_until(self, delta: SharedDelta) -> int | None:
        """Watermark at which a pane is no longer needed; None: while its windows are open."""
        if delta.kind is not WindowKind.TIME:
            return None
        end = self._shapes.last_end(WindowKind.TIME, delta.pane)
        return end + lateness(WindowKind.TIME) + RETENTION_US

    def restore(
        self,
        open_panes: Iterable[SharedDelta],
        closed_minutes: Mapping[Series, list[TaskMinute]],
        clocks: Mapping[str, DomainClock],
    ) -> None:
        """Rebuild the plan after a restart.

        Args:
            open_panes: Stored panes (counts are not looked at) of time windows, and of step
                and task windows that are open.
            closed_minutes: Stored minutes of closed task windows.
            clocks: As stored.
        """
        for delta in open_panes:
            if delta.kind is WindowKind.TASK:
                self._tasks.add(Series.of(delta), _minute(delta))
                continue
            if not (delta.seen or delta.lost or delta.unknown_gap):
                # It tells of what rows were, and opens no window.
                continue
            clock = clocks[delta.lane.domain]
            for span in self._intervals.spans(delta):
                if not is_closed(span, clock):
                    self._intervals.open(span)
        for series, minutes in closed_minutes.items():
            self._tasks.restore_closed(series, minutes)
