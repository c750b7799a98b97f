"""An alert in memory, and its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from moescope.jobs.paging import AlertState

if TYPE_CHECKING:
    from moescope.core.exceedance import Exceedance
    from moescope.jobs.alerts.series import AlertSeries
    from moescope.jobs.paging import Change, Course


class Worst(NamedTuple):
    """The greatest exceedance of an alert so far, and the thresholds that judged it."""

    value: float
    metric: str
    layer: int
    start: int
    request: str
    version: str

    @classmethod
    def of(cls, part: Exceedance, version: str) -> Worst:
        """That of a slot."""
        return cls(part.value, part.metric, part.layer, part.start, part.request, version)


@dataclass(slots=True)
class OpenAlert:
    """An alert that is not resolved, or whose end nobody was told yet.

    Attributes:
        alert: Its id.
        series: What it is about.
        course: State and history.
        worst: Greatest exceedance.
        events: Changes of state so far.
        pattern: What it looks like; empty until one is named.
        caused_by: Id of the alert that was sent for the same cause; else empty.
        historic: It fired while a backlog was read.
    """

    alert: str
    series: AlertSeries
    course: Course
    worst: Worst
    events: int = 0
    pattern: str = ""
    caused_by: str = ""
    historic: bool = False

    @property
    def was_sent(self) -> bool:
        """Whether people were told of it."""
        return self.course.fired_us is not None and not self.caused_by and not self.historic

    @property
    def shows_fault(self) -> bool:
        """Whether it fired, and windows do not say that the fault is gone."""
        return self.course.state in {AlertState.FIRING, AlertState.RECOVERING}

    def note(self, part: Exceedance | None, version: str) -> None:
        """Take a slot's exceedance into account; of equal ones the earlier stays."""
        if part is not None and part.value > self.worst.value:
            self.worst = Worst.of(part, version)

    def row(self) -> dict[str, Any]:
        """Its row of `alerts`."""
        course, worst = self.course, self.worst
        return {
            "alert": self.alert,
            **self.series.columns(),
            "state": str(course.state),
            "pattern": self.pattern,
            "began_at": course.began_us,
            "fired_at": course.fired_us,
            "resolved_at": course.resolved_us,
            "last_slot": course.last_slot_us,
            "worst_value": worst.value,
            "worst_metric": worst.metric,
            "worst_layer": worst.layer,
            "worst_start": worst.start,
            "worst_request": worst.request,
            "version": worst.version,
            "caused_by": self.caused_by,
            "historic": self.historic,
        }

    def event(self, change: Change) -> dict[str, Any]:
        """The row of `alert_events` of its next change."""
        self.events += 1
        return {
            "alert": self.alert,
            "number": self.events,
            "slot": change.slot_us,
            "state": str(change.state),
            "why": change.why,
        }
