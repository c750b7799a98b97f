"""What ends a processor of a group."""

from __future__ import annotations

from moescope.core.errors import MoescopeError


class DuplicateProcessorError(MoescopeError):
    """Two processors run under one name.

    A broker that is killed between taking a member back and saying so knows a newer member of the
    name than the one that asks: to that one it looks like a double. So a processor joins again a
    few times before it believes in one.
    """

    exit_code = 3


def duplicate_processor(instance_id: str, why: str, times: int) -> DuplicateProcessorError:
    """The error of a processor whose name somebody else has taken again and again."""
    return DuplicateProcessorError(
        f"Another processor runs under the name {instance_id!r}.",
        why=f"{why.rstrip('.')}: it took this one's place again after {times} times of joining.",
        next_step="Give each processor a kafka.instance_id of its own, or none.",
    )
