"""Runs of windows that show something, k of n in a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Shown(NamedTuple):
    """One window, and how much it shows: `strength` is 0 where it shows nothing."""

    begin_us: int
    end_us: int
    strength: float


class Stretch(NamedTuple):
    """Windows that follow each other and show something.

    Attributes:
        begin_us, end_us: From the first to the last window that shows it.
        windows: How many show it.
        strength: Greatest strength.
        peak_us: Begin of the window that has it.
    """

    begin_us: int
    end_us: int
    windows: int
    strength: float
    peak_us: int


def stretches(windows: Iterable[Shown], needed: int, of: int) -> list[Stretch]:
    """Stretches in which `needed` of `of` consecutive windows show something.

    Windows further apart than `of` lengths do not follow each other.

    Args:
        windows: In any order.
        needed: Windows that show it, of …
        of: … this many in a row.
    """
    found: list[Stretch] = []
    recent: list[Shown] = []
    members: list[Shown] = []
    for window in sorted(windows):
        length = window.end_us - window.begin_us
        if recent and window.begin_us - recent[-1].end_us > of * length:
            recent, members = [], _closed(found, members)
        recent = [*recent[-(of - 1) :], window] if of > 1 else [window]
        showing = [each for each in recent if each.strength > 0]
        if len(showing) >= needed:
            members += [each for each in showing if not members or each > members[-1]]
        elif members and members[-1] not in recent:
            members = _closed(found, members)
    _closed(found, members)
    return found


def _closed(found: list[Stretch], members: Sequence[Shown]) -> list[Shown]:
    if members:
        peak = max(members, key=lambda each: (each.strength, -each.begin_us))
        found.append(
            Stretch(
                members[0].begin_us,
                max(each.end_us for each in members),
                len(members),
                peak.strength,
                peak.begin_us,
            )
        )
    return []
