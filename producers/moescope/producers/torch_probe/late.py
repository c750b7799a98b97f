"""Decode steps that no further step came for: read by a thread of their own."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from moescope.producers.torch_probe.probe import Probe

_LOOKS_FOR_A_PROBE: Final = 30.0
"""Seconds after which a thread without work looks whether its probe is still there."""


class LateSteps:
    """Has a probe read the steps that have waited long enough.

    Args:
        probe: Whose; not kept alive.
        seconds: How long steps wait.
    """

    def __init__(self, probe: Probe, seconds: float) -> None:
        self._probe = weakref.ref(probe)
        self._seconds = seconds
        self._waiting = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_over = False

    def expect(self) -> None:
        """Steps wait from now on."""
        if self._waiting.is_set():
            return
        self._waiting.set()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="moescope-late-steps", daemon=True
            )
            self._thread.start()

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
