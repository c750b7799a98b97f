"""Passes that were computed and are not recorded: counted, told to the recorder, said once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moescope.producers.torch_probe.inputs import RefusedPassError

if TYPE_CHECKING:
    from moescope.producers.torch_probe.counters import Tally
    from moescope.producers.torch_probe.requests import RoutingSink, RunningBatch

ERRORS_ALLOWED: Final = 8
"""A probe with as many errors of its own switches itself off."""

GAVE_UP: Final = "the probe switched itself off"
_FAILED: Final = "an error of the probe"


class Unrecorded:
    """Tells of rows that the model computed and nobody recorded; never raises.

    Args:
        sink: The recorder.
        tally: The probe's counters.

    Attributes:
        is_off: Whether there were too many errors for the probe to go on.
    """

    def __init__(self, sink: RoutingSink, tally: Tally) -> None:
        self._sink = sink
        self._tally = tally
        self.is_off = False

    def tell(
        self, error: Exception, running: RunningBatch | None, rows: int, passes: int = 1
    ) -> None:
        """A pass was refused or failed, or several that were read together.

        Args:
            error: `RefusedPassError`, or an error of the probe's own.
            running: Whose rows it computed, where that is known.
            rows: Their number.
            passes: Of passes.
        """
        if self.is_off:
            self.miss(running, rows, GAVE_UP)
        elif isinstance(error, RefusedPassError):
            self._tally.add(refused_passes=passes)
            self._tally.say_once(error.reason, str(error))
            self.miss(running, rows, error.reason)
        else:
            self.note(error)
            self.miss(running, rows, _FAILED)

    def miss(self, running: RunningBatch | None, rows: int, reason: str) -> None:
        """Rows of these requests, where they are known, are not recorded."""
        if running is not None:
            running.miss_pass()
        try:
            self._sink.miss(rows, reason)
        except Exception as error:  # noqa: BLE001 - inference comes first
            self.note(error)

    def note(self, error: Exception) -> None:
        """The probe itself has failed."""
        if self.is_off:
            return
        self._tally.add(errors=1)
        self._tally.say_once(type(error).__name__, f"{type(error).__name__}: {error}")
        if self._tally.snapshot().errors >= ERRORS_ALLOWED:
            self.is_off = True
            self._tally.say_off(error)
