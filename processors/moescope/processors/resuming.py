"""Where a pipeline goes on with a partition, and what it does when a commit was refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from moescope.core.errors import InternalError, MoescopeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moescope.core.accounts import PartitionProgress


class CommitRefusedError(MoescopeError):
    """A commit was refused, or nobody knows what became of it: its input is read again."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where to go on.

    Attributes:
        progress: Of the last commit; None: from the beginning. Without `state` its memory is lost,
            and the partition goes on at `emitted_to` with none.
        loss: What was lost, in words, or None.
    """

    progress: PartitionProgress | None
    loss: str | None = None


class Resuming(Protocol):
    """Knows the last commit of each partition."""

    def resume(self, partition: str) -> Resumed:
        """Where the last commit left a partition that the source gives."""
        ...

    def start_over(self) -> None:
        """A commit was refused, and all memory is gone: everything is resumed again."""
        ...


class LoadedOnce:
    """Progress as it was when the store was opened: nobody else writes to it."""

    def __init__(self, progress: Mapping[str, PartitionProgress]) -> None:
        self._progress = progress

    def resume(self, partition: str) -> Resumed:
        """The progress that was loaded."""
        return Resumed(self._progress.get(partition))

    def start_over(self) -> None:
        """A store of our own refuses nothing."""
        raise InternalError("A store that has one writer refused a commit.")
