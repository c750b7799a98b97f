"""One cause, one page: which alerts are sent, and which belong to one that was."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.jobs.paging import AlertState

if TYPE_CHECKING:
    from moescope.jobs.alerts.memory import RedLineMemory
    from moescope.jobs.alerts.open_alert import OpenAlert

SAME_CAUSE_US = 900_000_000
"""Alerts of a model that fire within a quarter of an hour of the one that was sent have its cause.

Token windows tell within seconds, windows of a minute and rules over many slots within minutes.
"""


def cause_of(memory: RedLineMemory, alert: OpenAlert, slot_us: int) -> str:
    """Id of the alert that was sent for the cause of one that fires now; empty: it is the first.

    Once people were told that an alert is over, it is nobody's cause any more.
    """
    sent = [
        (each.course.fired_us, each.alert)
        for each in (*memory.open.values(), *memory.ended.values())
        if each is not alert
        and each.was_sent
        and each.series.model == alert.series.model
        and each.course.fired_us is not None
        and slot_us - each.course.fired_us <= SAME_CAUSE_US
    ]
    return max(sent)[1] if sent else ""


def told_end(memory: RedLineMemory, alert: OpenAlert) -> OpenAlert | None:
    """The sent alert of a cause that is over, now that one of its alerts was resolved.

    An alert that is over is kept while others of its cause are not.
    """
    lead = memory.find(alert.caused_by) if alert.caused_by else alert
    if lead is None or lead.course.state is not AlertState.RESOLVED:
        return None
    if memory.followers(lead.alert):
        memory.ended[lead.alert] = lead
        return None
    memory.ended.pop(lead.alert, None)
    return lead
