"""What can go wrong in the batch log, and whether trying again can help."""

from __future__ import annotations

from typing import ClassVar

from moescope.core.errors import DependencyUnreachableError, InputError, MoescopeError


class BatchLogError(MoescopeError):
    """Root of every error of the batch log."""


class BatchLogUsageError(BatchLogError, InputError):
    """A call or a setting that the batch log cannot accept."""


class PayloadTooLargeError(BatchLogUsageError):
    """A payload exceeds the configured maximum; nothing was written."""


class BatchLogSealedError(BatchLogUsageError):
    """The partition is sealed: nothing can be appended to it any more."""


class PartitionNotFoundError(BatchLogUsageError):
    """There is no such partition under the log root."""


class BatchLogFormatError(BatchLogError, InputError):
    """A metadata file of the log is damaged, or of a version that this release cannot read."""


class BatchLogLockedError(BatchLogError, DependencyUnreachableError):
    """Another writer holds the partition."""


class BatchLogReadError(BatchLogError):
    """The operating system refused to read the log."""

    retriable: ClassVar[bool] = True
    exit_code: ClassVar[int] = 3


class BatchLogAppendError(BatchLogError):
    """Some records of a call could not be appended.

    The records before them are in the log, with their offsets; the caller retries the rest.

    Attributes:
        appended: How many records of the failed call are in the log.
    """

    exit_code: ClassVar[int] = 3

    def __init__(self, what: str, *, why: str = "", next_step: str = "", appended: int = 0) -> None:
        super().__init__(what, why=why, next_step=next_step)
        self.appended = appended

    def __reduce__(self) -> tuple[object, ...]:
        """Keep `appended` when the error crosses a process boundary."""
        return (*super().__reduce__(), {"appended": self.appended})


class BatchLogFullError(BatchLogAppendError):
    """The byte cap is reached and the policy forbids dropping unread records."""

    retriable: ClassVar[bool] = True


class BatchLogWriteError(BatchLogAppendError):
    """The disk is full, or the operating system refused a write; the log itself stays valid."""

    retriable: ClassVar[bool] = True


class BatchLogSyncError(BatchLogError):
    """Records are in the log, but the disk did not confirm them.

    Never retried on the same writer: after a failed sync the kernel may report success for data
    that it has discarded.
    """

    exit_code: ClassVar[int] = 3
