"""What can go wrong with a ring file."""

from __future__ import annotations

from typing import ClassVar

from moescope.core.errors import InputError, MoescopeError


class RingError(MoescopeError):
    """Root of every error of the ring."""


class RingSettingsError(RingError, InputError):
    """A ring cannot be laid out as asked."""


class RingCreateError(RingError):
    """The file system refused to hold the ring: full, read-only, or without permission."""

    retriable: ClassVar[bool] = True
    exit_code: ClassVar[int] = 3


class RingFormatError(RingError, InputError):
    """A file is no ring, or of a version that this release cannot read."""
