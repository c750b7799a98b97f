"""Errors of the store file and its owner."""

from __future__ import annotations

from moescope.core.errors import (
    DependencyUnreachableError,
    InputError,
    InternalError,
    MoescopeError,
)


class StoreInUseError(DependencyUnreachableError):
    """Another process owns the store file."""


class StoreUnreadableError(MoescopeError):
    """The store file cannot be opened: it is damaged, or something else."""


class SchemaTooNewError(InputError):
    """A newer moescope has changed the store file."""


class StoreWriteError(MoescopeError):
    """The store file could not be written; nothing of the transaction was kept."""

    retriable = True
    exit_code = 3


class EmissionRefusedError(InternalError):
    """An emission does not continue what is stored: it was applied before, or one is missing."""


class LogReplacedError(InputError):
    """Records come from another log than those of the same partition that are stored."""


class FencedError(InternalError):
    """Another owner took over this file."""
