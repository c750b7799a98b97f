"""What a forked child does with the recorders it inherits: the ring has one writer, the parent."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """Something that a fork copies although there may be only one."""

    def become_child(self) -> None:
        """Let go of what the parent goes on with; called in the child, at any point of a fork."""
        ...


_living: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch_forks(forkable: Forkable) -> None:
    """Call its `become_child` in each forked child, for as long as it lives."""
    _living.add(forkable)


def forget_forks(forkable: Forkable) -> None:
    """Do so no more."""
    _living.discard(forkable)


def _after_fork_in_child() -> None:
    # A child that kept the locks would pass for a living engine after its parent's death.
    for forkable in list(_living):
        forkable.become_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
