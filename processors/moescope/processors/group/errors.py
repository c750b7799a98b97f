"""What ends a processor of a group."""

from __future__ import annotations

from moescope.core.errors import MoescopeError


class DuplicateProcessorError(MoescopeError):
    """Two processors run under one name, or a broker died while this one joined under its name.

    A broker that is killed between taking a member back and saying so knows a newer member of the
    name than the one that asks: to that one it looks like a double. Started again, it joins anew;
    so whoever restarts processes may restart this one.
    """

    exit_code = 3


def duplicate_processor(instance_id: str, why: str) -> DuplicateProcessorError:
    """The error of a processor whose name somebody else has taken."""
    return DuplicateProcessorError(
        f"The group knows a newer processor that is called {instance_id!r}.",
        why=f"{why}: another one runs under this name, or a broker died while this one joined.",
        next_step="Start it again; if that repeats, give each processor a kafka.instance_id of "
        "its own.",
    )
