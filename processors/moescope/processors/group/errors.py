"""What can go wrong in a group of processors that no retry mends."""

from __future__ import annotations

from moescope.core.errors import InputError


class DuplicateProcessorError(InputError):
    """Two processors run under one name."""


def duplicate_processor(instance_id: str, why: str) -> DuplicateProcessorError:
    """The error of a processor whose name somebody else has taken."""
    return DuplicateProcessorError(
        f"Another processor runs as {instance_id!r} in this group.",
        why=why,
        next_step="Give each processor a kafka.instance_id of its own, or none.",
    )
