"""A simulated fleet that keeps step with the clock, as traffic to try a deployment on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from moescope.core.errors import InputError

if TYPE_CHECKING:
    from moescope.core.clock import Clock
    from moescope.producers.simulator import Scenario

SECOND_US: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class LivePace:
    """Event time that follows the clock, one second behind it.

    A second is simulated at once when it is over, as an agent writes what was computed in it.

    Attributes:
        start_us: Event time at which the simulation begins, a whole second.
    """

    start_us: int
    clock: Clock

    @classmethod
    def beginning_now(cls, clock: Clock) -> Self:
        """Begin with the last second that is over."""
        return cls((clock.now_us() // SECOND_US - 1) * SECOND_US, clock)

    @property
    def run_name(self) -> str:
        """Stands in names of nodes and requests: a second run must not use them again."""
        return str(self.start_us // SECOND_US)

    def wait_for(self, second: int) -> None:
        """Wait until the second with this number, counted from 0, is over."""
        over_us = self.start_us + (second + 1) * SECOND_US
        left_us = over_us - self.clock.now_us()
        if left_us > 0:
            self.clock.sleep(left_us / SECOND_US)


def refuse_training(scenario: Scenario) -> None:
    """Training counts its steps from 0 in each run, so that a second one would repeat them.

    Raises:
        InputError: The scenario is a training run.
    """
    if scenario.training is not None:
        raise InputError(
            f"The scenario {scenario.name} cannot run live.",
            why="A training run's steps begin at 0 each time, and live traffic has them once.",
            next_step="Choose a scenario of inference, or leave --live out.",
        )
