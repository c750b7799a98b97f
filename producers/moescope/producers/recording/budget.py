"""Keeps the time that recording takes below a share of the engine's, by recording less.

The share is the time spent in the recorder (and in a probe that says so) divided by the time that
passed, smoothed over periods of 5 s. Above the budget the next lower rung of the ladder is taken;
below half of it, and after a while there, the rung above is tried again. A trial that fails makes
the next one wait twice as long, so that fidelity does not swing.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from moescope.core.vocabulary import Fidelity
from moescope.producers.recording.counters import ThreadTotals

BUDGET_REASON: Final = "budget"
PERIOD_SECONDS: Final = 5.0
FIRST_TRIAL_SECONDS: Final = 60.0
LAST_TRIAL_SECONDS: Final = 3_600.0

_WEIGHT_OF_LATEST: Final = 0.5
_UP_BELOW: Final = 0.5
_HALVINGS: Final = 3


class Rung(NamedTuple):
    """How much is recorded; nothing at all where it is paused."""

    fidelity: Fidelity
    sampling_ratio: float
    is_paused: bool = False


def ladder(fidelity: Fidelity, sampling_ratio: float) -> tuple[Rung, ...]:
    """The rungs below a fidelity, itself first: fewer requests, then counts, then nothing."""
    rungs = [Rung(fidelity, sampling_ratio)]
    if fidelity is not Fidelity.COUNTS:
        ratios = [sampling_ratio / 2**halving for halving in range(1, _HALVINGS + 1)]
        rungs += [Rung(Fidelity.SAMPLED, ratio) for ratio in ratios]
        rungs.append(Rung(Fidelity.COUNTS, 1.0))
    return (*rungs, Rung(Fidelity.COUNTS, 1.0, is_paused=True))


class Budget:
    """Decides how much is recorded.

    Args:
        share: Of the time that passes, above 0 and at most 1.
        rungs: What there is to choose from, most first.
        now: Seconds of a monotonic clock.

    Attributes:
        share: Of own time, smoothed; None until a first period is over.
    """

    def __init__(self, share: float, rungs: tuple[Rung, ...], now: float) -> None:
        self._allowed = share
        self._spent = ThreadTotals(0.0)
        self.share: float | None = None
        self.restart(rungs, now)

    @property
    def rung(self) -> Rung:
        """How much is recorded now."""
        return self._rungs[self._at]

    @property
    def spent(self) -> float:
        """Seconds of own time in the running period."""
        return self._spent.total - self._spent_before

    def spend(self, seconds: float) -> None:
        """Add own time; any thread that measured it may."""
        self._spent.add(seconds)

    @property
    def is_reduced(self) -> bool:
        """Whether less is recorded than was asked for."""
        return self._at > 0

    def restart(self, rungs: tuple[Rung, ...], now: float) -> None:
        """Begin at the top of other rungs."""
        self._rungs = rungs
        self._at = 0
        self._wait = FIRST_TRIAL_SECONDS
        self._came_up = False
        self._begin_rung(now)

    def judge(self, now: float) -> bool:
        """Close the period if it is over; whether another rung holds from now on."""
        elapsed = now - self._period_began
        if elapsed < PERIOD_SECONDS:
            return False
        latest = self.spent / elapsed
        before = latest if self.share is None else self.share
        self.share = _WEIGHT_OF_LATEST * latest + (1 - _WEIGHT_OF_LATEST) * before
        self._begin_period(now)
        held = now - self._rung_began
        if self.share > self._allowed:
            return self._step_down(now)
        if self._came_up and held >= self._wait:
            self._came_up, self._wait = False, FIRST_TRIAL_SECONDS  # the trial was a success
        if self._at and held >= self._wait and self.share < _UP_BELOW * self._allowed:
            self._at -= 1
            self._came_up = True
            self._begin_rung(now)
            return True
        return False

    def _step_down(self, now: float) -> bool:
        if self._at == len(self._rungs) - 1:
            return False
        if self._came_up:
            self._wait = min(2 * self._wait, LAST_TRIAL_SECONDS)
            self._came_up = False
        self._at += 1
        self._begin_rung(now)
        return True

    def _begin_rung(self, now: float) -> None:
        self._rung_began = now
        self.share = None
        self._begin_period(now)

    def _begin_period(self, now: float) -> None:
        self._period_began = now
        self._spent_before = self._spent.total
