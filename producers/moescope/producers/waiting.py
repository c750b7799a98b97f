"""Small passes that wait for each other, to be recorded together: how long, and what ends it."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

HELD_PASSES: Final = 16
"""Passes that wait for each other, by default: they cost little more than two by themselves."""

HELD_SECONDS: Final = 0.25
"""Passes wait no longer: their rows' event time is when they are recorded."""

CLOSE_SECONDS: Final = 0.1
"""Passes further apart do not wait: a hundredth of such a pass pays for recording it."""

_LOOKS_FOR_A_PROBE: Final = 30.0
"""Seconds after which a thread without work looks whether its probe is still there."""


class Waits(Protocol):
    """A probe whose passes wait."""

    def read_late(self) -> bool:
        """Record what no further pass came for; whether other passes wait still."""
        ...


class LateReader:
    """Has a probe record, in a thread of its own, the passes that no further pass came for.

    Args:
        probe: Whose; not kept alive.
        seconds: How long passes wait.
    """

    def __init__(self, probe: Waits, seconds: float = HELD_SECONDS) -> None:
        self._probe: Callable[[], Waits | None] = weakref.ref(probe)
        self._seconds = seconds
        self._waiting = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_over = False

    def expect(self) -> None:
        """Passes wait from now on; never raises."""
        if self._waiting.is_set():
            return
        self._waiting.set()
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="moescope-late-passes", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # there are too many, or the process ends: the next pass does it
                return
            self._thread = thread

    def stop(self) -> None:
        """The probe is detached."""
        self._is_over = True
        self._waiting.set()

    def _run(self) -> None:
        pause = threading.Event()
        while not self._is_over:
            if not self._waiting.wait(_LOOKS_FOR_A_PROBE):
                if self._probe() is None:
                    return
                continue
            pause.wait(self._seconds)
            self._waiting.clear()
            probe = self._probe()
            if probe is None:
                return
            if probe.read_late() and not self._is_over:
                self._waiting.set()
            del probe
