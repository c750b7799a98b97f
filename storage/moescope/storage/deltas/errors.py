"""What stops the owner from going on with the deltas topic."""

from __future__ import annotations

from moescope.core.errors import InputError


class DeltasRewoundError(InputError):
    """The deltas topic ends before the place up to which the store has applied it."""


class ProcessorsDivergedError(InputError):
    """Processors read records again that the store has, and went past them in one emission."""
