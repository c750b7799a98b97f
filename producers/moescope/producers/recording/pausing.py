"""What is looked at once a second: the kill switch and the budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moescope.core.errors import SettingsError
from moescope.producers.recording.budget import BUDGET_REASON, Budget, Rung, ladder

if TYPE_CHECKING:
    from moescope.core.vocabulary import Fidelity
    from moescope.producers.recording.switch import KillSwitch

LOOK_EVERY_SECONDS: Final = 1.0
NOT_RECORDING: Final = "recording is switched off"
"""What a probe says of a pass that it did not read as the recorder records nothing.

The recorder tells its own reason in place of this one, as long as it has one.
"""
INTERRUPTED: Final = "recording was interrupted"
"""What a probe says of rows that it was recording when the process was told to end."""


class Pausing:
    """Says whether rows are recorded at the moment.

    Args:
        switch: Of the recorder's folder.
        budget: Of the engine's time, if there is one.
        now: Seconds of a monotonic clock.

    Attributes:
        reason: Why nothing is recorded at the moment, or empty.
        next_look: When to look again.
    """

    def __init__(self, switch: KillSwitch, budget: Budget | None, now: float) -> None:
        self.switch = switch
        self.budget = budget
        self.next_look = now
        self.reason = ""
        self._fault = ""

    @property
    def has_failed(self) -> bool:
        """Whether not even requests are followed: nothing but counting is safe."""
        return bool(self._fault)

    @property
    def is_switched_off(self) -> bool:
        """Whether nothing at all is written at the moment."""
        return bool(self.switch.reason)

    def give_up(self, fault: str) -> None:
        """Record nothing any more."""
        self._fault = fault
        self._settle()

    def look(self, now: float) -> tuple[bool, Rung | None]:
        """Look at both.

        Returns:
            Whether the kill switch was just released, and the rung that the budget wants, if there
            is one.
        """
        self.next_look = now + LOOK_EVERY_SECONDS
        is_released = self.switch.look() and not self.switch.reason
        if self.budget is None:
            self._settle()
            return is_released, None
        self.budget.judge(now)
        self._settle()
        return is_released, self.budget.rung

    def restart_budget(self, fidelity: Fidelity, sampling_ratio: float, now: float) -> None:
        """Begin at the top of another ladder."""
        if self.budget is not None:
            self.budget.restart(ladder(fidelity, sampling_ratio), now)
            self._settle()

    def _settle(self) -> None:
        is_too_much = self.budget is not None and self.budget.rung.is_paused
        self.reason = self._fault or self.switch.reason or (BUDGET_REASON if is_too_much else "")


def new_budget(
    share: float | None, fidelity: Fidelity, sampling_ratio: float, now: float
) -> Budget | None:
    """The budget that a recorder was asked to keep, if any.

    Raises:
        SettingsError: It is no share.
    """
    if share is None:
        return None
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise SettingsError(
            f"The recorder's cpu_budget cannot be {share!r}.",
            why="It is a share of the engine's time: above 0, at most 1.",
            next_step="Use 0.01 for a hundredth, or leave it out.",
        )
    return Budget(share, ladder(fidelity, sampling_ratio), now)
