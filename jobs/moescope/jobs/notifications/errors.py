"""What can go wrong when a notification is delivered."""

from __future__ import annotations

from moescope.core.errors import DependencyUnreachableError


class DeliveryError(DependencyUnreachableError):
    """A receiver did not take a notification."""
