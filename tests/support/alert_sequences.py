"""Alert sequences as text: what arrives in each slot, and the state that must follow."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moescope.core.exceedance import SLOT_US
from moescope.core.thresholds import PagingRule
from moescope.jobs.paging import AlertState, Verdict, begin, lose, observe, silence_deadline

if TYPE_CHECKING:
    from pathlib import Path

    from moescope.jobs.paging import Course

VERDICTS = {"o": Verdict.OVER, ".": Verdict.UNDER, "?": Verdict.EXPLAINED}
LETTERS = {
    AlertState.PENDING: "p",
    AlertState.FIRING: "F",
    AlertState.RECOVERING: "r",
    AlertState.RESOLVED: "R",
    AlertState.NO_DATA: "n",
}
NO_DEADLINE = 10**6


@dataclass(frozen=True)
class Sequence:
    """One case of a file of sequences."""

    name: str
    needed: int
    of: int
    slots: str
    states: str
    fires: int
    no_data_after: int = NO_DEADLINE


def read_sequences(path: Path) -> list[Sequence]:
    """All cases of a TOML file."""
    return [Sequence(**case) for case in tomllib.loads(path.read_text("utf-8"))["case"]]


def rule_of(needed: int, of: int, *, line: float = 0.0, family: str = "load") -> PagingRule:
    """A rule for 128-token decode windows."""
    return PagingRule(
        phase="decode",
        kind="token",
        size=128,
        stride=128,
        scope_kind="all",
        family=family,
        line=line,
        needed=needed,
        of=of,
        expected_per_day=0.0,
        bound_per_day=1.0,
        only_bound=True,
    )


def played(slots: str, needed: int, of: int, no_data_after: int) -> tuple[str, int]:
    """States slot by slot as letters, and how often an alert fired."""
    rule = rule_of(needed, of)
    course: Course | None = None
    letters, fires = "", 0
    for index, symbol in enumerate(slots):
        slot_us = index * SLOT_US
        verdict = VERDICTS.get(symbol)
        if course is not None and not course.is_open:
            course = None
        fired_before = course is not None and course.fired_us is not None
        if course is None:
            if verdict is Verdict.OVER:
                course, _ = begin(slot_us, rule)
        elif verdict is not None:
            course, _ = observe(course, slot_us, verdict, rule)
        elif silence_deadline(course, no_data_after * SLOT_US) == slot_us:
            course, _ = lose(course, slot_us)
        fires += course is not None and course.fired_us is not None and not fired_before
        letters += "-" if course is None else LETTERS[course.state]
    return letters, fires
