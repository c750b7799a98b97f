"""One commit's slots, judged in the order of event time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moescope.core.clock import END_OF_TIME, NO_TIME
from moescope.jobs.alerts.incidents import cause_of, told_end
from moescope.jobs.alerts.open_alert import OpenAlert, Worst
from moescope.jobs.alerts.series import alert_id
from moescope.jobs.paging import (
    AlertState,
    Verdict,
    begin,
    lose,
    observe,
    retire,
    silence_deadline,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moescope.jobs.alerts.memory import RedLineMemory, SlotParts
    from moescope.jobs.alerts.rows import PendingRows
    from moescope.jobs.alerts.rules import Judged, RulesInForce
    from moescope.jobs.alerts.series import AlertSeries
    from moescope.jobs.paging import Change, Course

_ALL_OVER = "the last alert of the same cause shows no fault any more"
_STILL = "it fired while a backlog was read, and still shows the fault at its end"
_NOBODY_JUDGES = "no thresholds in force have a paging rule for it any more"


class SlotWork:
    """Moves alerts on by the slots that became final, and collects the rows that follow.

    Args:
        memory: State as of the commit before.
        rules: Rules in force.
        rows: Takes what changes.
        no_data_after_us: Event time without windows until `no_data`.
        historic: The commit reads a backlog.
    """

    def __init__(
        self,
        memory: RedLineMemory,
        rules: RulesInForce,
        rows: PendingRows,
        no_data_after_us: int,
        *,
        historic: bool,
    ) -> None:
        self.rows = rows
        self._memory = memory
        self._rules = rules
        self._no_data_after_us = no_data_after_us
        self._historic = historic

    def advance(self, domain: str, final_before_us: int) -> None:
        """Judge a domain's slots that begin before a time, silences included."""
        memory = self._memory
        if final_before_us <= memory.judged_before_us.get(domain, NO_TIME):
            return
        waiting = memory.waiting[domain]
        for slot_us in sorted(slot for slot in waiting if slot < final_before_us):
            self._lose_silent(domain, slot_us)
            self._judge(slot_us, waiting.pop(slot_us))
        self._lose_silent(domain, final_before_us)
        memory.judged_before_us[domain] = final_before_us
        self.rows.progressed(domain, final_before_us)

    def retire_unjudged(self) -> None:
        """Close silent alerts that no rule looks at since the thresholds changed."""
        silent = (
            each for each in self._memory.open.values() if each.course.state is AlertState.NO_DATA
        )
        for alert in sorted(silent, key=_order):
            slot_us = self._memory.judged_before_us.get(alert.series.lane.domain, NO_TIME)
            if slot_us in {NO_TIME, END_OF_TIME}:
                slot_us = alert.course.last_slot_us
            if self._rules.newest(alert.series, slot_us) is None:
                self._take(alert, *retire(alert.course, slot_us, _NOBODY_JUDGES))

    def send_what_is_no_longer_historic(self) -> None:
        """Send alerts that fired while a backlog was read and still fire at its end."""
        if self._historic:
            return
        for alert in sorted(self._memory.open.values(), key=_order):
            if alert.historic and alert.shows_fault and alert.course.fired_us is not None:
                alert.caused_by = cause_of(self._memory, alert, alert.course.fired_us)
                alert.historic = False
                self.rows.changed(alert)
                if not alert.caused_by:
                    self.rows.send_standing(alert, alert.course.last_slot_us, _STILL)

    def _lose_silent(self, domain: str, before_us: int) -> None:
        """Alerts of a domain whose deadline lies before a slot, earliest first."""
        due = [
            (deadline, alert)
            for alert in self._memory.open.values()
            if alert.series.lane.domain == domain
            and (deadline := silence_deadline(alert.course, self._no_data_after_us)) is not None
            and deadline < before_us
        ]
        for deadline, alert in sorted(due, key=lambda each: (each[0], _order(each[1]))):
            if self._rules.newest(alert.series, deadline) is None:
                self._take(alert, *retire(alert.course, deadline, _NOBODY_JUDGES))
            else:
                self._take(alert, *lose(alert.course, deadline))

    def _judge(self, slot_us: int, slot: SlotParts) -> None:
        for series, judged in self._verdicts(slot_us, slot):
            alert = self._memory.open.get(series)
            if alert is not None:
                alert.note(judged.worst, judged.version)
                self._take(alert, *observe(alert.course, slot_us, judged.verdict, judged.rule))
            elif judged.worst is not None:
                course, change = begin(slot_us, judged.rule)
                worst = Worst.of(judged.worst, judged.version)
                alert = OpenAlert(alert_id(series, slot_us), series, course, worst)
                self._memory.open[series] = alert
                self._take(alert, course, change)

    def _verdicts(self, slot_us: int, slot: SlotParts) -> Iterable[tuple[AlertSeries, Judged]]:
        """Series that the slot says something new about, in a fixed order."""
        open_alerts = self._memory.open
        found = [
            (series, judged)
            for series, parts in slot.items()
            if (judged := self._rules.judge(series, slot_us, parts.items())) is not None
            and (judged.verdict is Verdict.OVER or series in open_alerts)
        ]
        return sorted(found, key=lambda each: each[0].order) if len(found) > 1 else found

    def _take(self, alert: OpenAlert, course: Course, change: Change | None) -> None:
        """Move an alert on, write what changed and send what is news."""
        before, alert.course = alert.course.state, course
        self.rows.changed(alert)
        if change is None:
            return
        event = self.rows.event(alert, change)
        if change.state is AlertState.FIRING and course.fired_us == change.slot_us:
            alert.historic = self._historic
            alert.caused_by = (
                "" if alert.historic else cause_of(self._memory, alert, change.slot_us)
            )
        is_over = change.state is AlertState.RESOLVED
        if is_over:
            del self._memory.open[alert.series]
        if course.fired_us is None or alert.historic:
            return
        if is_over:
            self._tell_end(alert, event)
        elif not alert.caused_by and _is_news(change.state, before):
            self.rows.send(alert, event, self._same_cause(alert))

    def _tell_end(self, alert: OpenAlert, event: dict[str, Any]) -> None:
        lead = told_end(self._memory, alert)
        if lead is alert:
            self.rows.send(alert, event)
        elif lead is not None:
            self.rows.send_standing(lead, event["slot"], _ALL_OVER)

    def _same_cause(self, alert: OpenAlert) -> list[str]:
        return sorted(each.alert for each in self._memory.followers(alert.alert))


def _is_news(state: AlertState, before: AlertState) -> bool:
    """Whether people hear of a fired alert's change, its end aside."""
    if state is AlertState.FIRING:
        return before is not AlertState.RECOVERING
    return state is AlertState.NO_DATA


def _order(alert: OpenAlert) -> tuple[object, ...]:
    return alert.series.order
