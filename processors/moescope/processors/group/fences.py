"""How often the group took another member for us."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from moescope.processors.group.errors import duplicate_processor

if TYPE_CHECKING:
    from collections.abc import Callable

    from moescope.core.clock import Clock

ALLOWED: Final = 3
WITHIN_SECONDS: Final = 600.0
"""A broker that dies while it takes us back fences us once; a living double does it each time."""


class Fences:
    """Decides whether a processor whose name somebody else has taken joins again.

    The thread that commits and the one that reads both find out, and what a member had yet to
    commit is fenced by its own successor: each member is counted once.

    Args:
        instance_id: Our name.
        clock: Tells when a fence is forgotten.
        log: Told of each.
    """

    def __init__(self, instance_id: str, clock: Clock, log: Callable[[str], None]) -> None:
        self._instance_id = instance_id
        self._clock = clock
        self._log = log
        self._lock = threading.Lock()
        self._times: deque[float] = deque()
        self._fenced = ""
        self._must_rejoin = False

    def note(self, member: str, why: str) -> None:
        """We are fenced: join again, unless that happened too often.

        Args:
            member: Which of our memberships; empty: one that was not given to us yet.
            why: What the broker said.

        Raises:
            DuplicateProcessorError: Another processor has our name.
        """
        with self._lock:
            if self._must_rejoin or (member and member == self._fenced):
                return
            now = self._clock.monotonic()
            while self._times and now - self._times[0] > WITHIN_SECONDS:
                self._times.popleft()
            if len(self._times) == ALLOWED:
                raise duplicate_processor(self._instance_id, why, ALLOWED)
            self._times.append(now)
            self._fenced = member
            self._must_rejoin = True
            times = len(self._times)
        self._log(
            f"the group knows a newer processor that is called {self._instance_id!r}: "
            f"joining again, {times} of {ALLOWED} times"
        )

    def take(self) -> bool:
        """Whether we were fenced since the last call."""
        with self._lock:
            taken, self._must_rejoin = self._must_rejoin, False
        return taken
