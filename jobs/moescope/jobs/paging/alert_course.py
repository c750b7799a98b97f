"""The course of one alert: a pure state machine over slots of event time.

Only slots with data move an alert on. A slot without windows changes nothing until so many have
passed that the alert is in state `no_data`; it is never taken for health. A slot whose windows
are all explained by a change of the traffic mix counts as neither: it shows that windows arrive,
but says nothing about the model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, NamedTuple

from moescope.core.exceedance import SLOT_US

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moescope.core.thresholds import PagingRule

MOST_SLOTS = 60
"""Greatest `of` that a rule can have."""

_LEAST_RECOVERY = 6
HISTORY = 2 * MOST_SLOTS
"""Slots with data that an open alert remembers."""


class AlertState(StrEnum):
    """Where an alert stands."""

    PENDING = "pending"
    """Over the line, but not often enough to fire."""
    FIRING = "firing"
    """`needed` of the last `of` slots with data were over the line."""
    RECOVERING = "recovering"
    """It fired, and fewer are now; not long enough for `resolved`."""
    RESOLVED = "resolved"
    """Over. It never changes again: the next slot over the line begins another alert."""
    NO_DATA = "no_data"
    """Its windows stopped arriving."""


class Verdict(Enum):
    """What a slot says about a series."""

    OVER = "over"
    UNDER = "under"
    EXPLAINED = "explained"
    """Nothing but windows that a change of the traffic mix explains."""


class Change(NamedTuple):
    """A change of state, and the slot that decided."""

    slot_us: int
    state: AlertState
    why: str


@dataclass(frozen=True, slots=True)
class Course:
    """An alert as of a slot.

    Attributes:
        state: Where it stands.
        began_us: First slot over the line.
        last_slot_us: Newest slot with windows.
        fired_us, resolved_us: When it did; None: not yet.
        history: Whether each slot with data since it began was over, oldest first; the newest
            `HISTORY` of them. Slots before the first were under, or it had begun earlier.
    """

    state: AlertState
    began_us: int
    last_slot_us: int
    fired_us: int | None = None
    resolved_us: int | None = None
    history: tuple[bool, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether later slots can change it."""
        return self.state is not AlertState.RESOLVED


Step = tuple[Course, Change | None]


def slots_to_recover(rule: PagingRule) -> int:
    """Slots with data in a row that have to be under the line before a fired alert resolves."""
    return max(2 * rule.of, _LEAST_RECOVERY)


def begin(slot_us: int, rule: PagingRule) -> Step:
    """A new alert by its first slot over the line."""
    course = Course(AlertState.PENDING, slot_us, slot_us, history=(True,))
    moved, change = _settle(course, slot_us, rule)
    return moved, change or Change(slot_us, AlertState.PENDING, _count(course.history, rule))


def observe(course: Course, slot_us: int, verdict: Verdict, rule: PagingRule) -> Step:
    """An open alert after the next slot with windows."""
    history = course.history
    if verdict is not Verdict.EXPLAINED:
        history = (*history, verdict is Verdict.OVER)[-HISTORY:]
    return _settle(replace(course, last_slot_us=slot_us, history=history), slot_us, rule)


def silence_deadline(course: Course, no_data_after_us: int) -> int | None:
    """The slot at which an alert whose windows stay away is in state `no_data`.

    None when it is already, or resolved.
    """
    if course.state in {AlertState.NO_DATA, AlertState.RESOLVED}:
        return None
    return course.last_slot_us - (-no_data_after_us // SLOT_US) * SLOT_US


def lose(course: Course, slot_us: int) -> Step:
    """An open alert whose windows stayed away until its deadline."""
    seconds = (slot_us - course.last_slot_us) // 1_000_000
    change = Change(slot_us, AlertState.NO_DATA, f"no windows for {seconds} s of event time")
    return replace(course, state=AlertState.NO_DATA), change


def retire(course: Course, slot_us: int, why: str) -> Step:
    """An open alert that nothing judges any more, since a person changed the thresholds."""
    resolved = replace(course, state=AlertState.RESOLVED, resolved_us=slot_us)
    return resolved, Change(slot_us, AlertState.RESOLVED, why)


def _settle(course: Course, slot_us: int, rule: PagingRule) -> Step:
    """The state that follows from the history, and whether that is a change."""
    state, why = _verdict_of(course, rule)
    if state is course.state:
        return course, None
    moved = replace(
        course,
        state=state,
        fired_us=slot_us
        if state is AlertState.FIRING and course.fired_us is None
        else course.fired_us,
        resolved_us=slot_us if state is AlertState.RESOLVED else None,
    )
    return moved, Change(slot_us, state, why)


def _verdict_of(course: Course, rule: PagingRule) -> tuple[AlertState, str]:
    history = course.history
    counted = _count(history, rule)
    over = sum(history[-rule.of :])
    if over >= rule.needed:
        return AlertState.FIRING, counted
    if course.fired_us is None:
        if over:
            return AlertState.PENDING, counted
        return AlertState.RESOLVED, f"{counted}: it never fired"
    recovered = slots_to_recover(rule)
    if len(history) >= recovered and not any(history[-recovered:]):
        return AlertState.RESOLVED, f"{recovered} slots with data in a row under the line"
    return AlertState.RECOVERING, counted


def _count(history: Sequence[bool], rule: PagingRule) -> str:
    over = sum(history[-rule.of :])
    return f"{over} of the last {rule.of} slots with data over the line, {rule.needed} needed"
