"""Whether a broker answers, told once each time that this changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from moescope.core.errors import MoescopeError


class BrokerWatch:
    """Says when the broker goes away and when it is back: once each.

    Args:
        log: Told of it.

    Attributes:
        trouble: Why nothing comes at present, and what to do about it; empty: all is well.
        returns: How many times the broker went away and came back.
    """

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self.is_away = False
        self.trouble = ""
        self.returns = 0

    def lost(self, error: MoescopeError) -> None:
        """Nobody answers, or a topic is not there."""
        self.trouble = f"{error.what} {error.next_step}".rstrip()
        if not self.is_away:
            self.is_away = True
            said = (error.what, error.why, error.next_step)
            self._log(f"waiting for Kafka: {' '.join(part for part in said if part)}")

    def found(self) -> None:
        """Somebody answers."""
        self.trouble = ""
        if self.is_away:
            self.is_away = False
            self.returns += 1
            self._log("Kafka answers again")
