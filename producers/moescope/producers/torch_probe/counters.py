"""What a probe counts, and the one log line that says why something was left out."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace
from typing import Final

_log = logging.getLogger("moescope.producers")

REASONS_SAID: Final = 32
"""Different reasons that are logged; later ones are only counted."""


@dataclass(slots=True)
class ProbeCounters:
    """What a probe did so far, in rows (tokens) unless said otherwise.

    Attributes:
        passed_rows: Given to the recorder (which has counters of its own).
        padding_rows: Left out: padding, and what `generate` feeds behind a request's end.
        unattributed_rows: Left out: computed outside of `request()` and `batch()`,
            padding included. Told as unseen where a request was open elsewhere.
        invalid_rows: Left out: scores or weights that are no finite numbers, or expert ids that the
            model does not have.
        doubtful_rows: Left out: behind a token that may, or may not, have ended their generation.
        incomplete_passes: Left out, in passes: not every router ran exactly once.
        refused_passes: Left out, in passes: what their rows are cannot be known for certain.
        errors: Of the probe itself; steps that were read together count once.
    """

    passed_rows: int = 0
    padding_rows: int = 0
    unattributed_rows: int = 0
    invalid_rows: int = 0
    doubtful_rows: int = 0
    incomplete_passes: int = 0
    refused_passes: int = 0
    errors: int = 0


class Tally:
    """Counters that several threads add to, and reasons that are said once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters = ProbeCounters()
        self._reasons: set[str] = set()

    def add(self, **counts: int) -> None:
        """Add to the counters of these names."""
        with self._lock:
            for name, count in counts.items():
                setattr(self._counters, name, getattr(self._counters, name) + count)

    def say_once(self, reason: str, detail: str = "") -> None:
        """Log why something is left out, unless this reason was said before."""
        with self._lock:
            if reason in self._reasons or len(self._reasons) >= REASONS_SAID:
                return
            self._reasons.add(reason)
        _log.warning("Not recorded (said once, then only counted): %s", detail or reason)

    def say_off(self, error: BaseException) -> None:
        """Log that the probe gives up."""
        _log.error("The probe is switched off after repeated errors.", exc_info=error)

    def snapshot(self) -> ProbeCounters:
        """A copy of the counters."""
        with self._lock:
            return replace(self._counters)
