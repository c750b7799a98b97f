"""What can go wrong with the export."""

from __future__ import annotations

from moescope.core.errors import DependencyUnreachableError


class ExportError(DependencyUnreachableError):
    """The export cannot be written or read now; the last manifest stays valid."""
