"""What keeps batches from being shipped: said once per change, and known to whoever asks."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from moescope.core.kafka import (
    BrokerRefusedError,
    BrokerUnreachableError,
    KafkaRecordTooLargeError,
    TopicMissingError,
)

if TYPE_CHECKING:
    from moescope.core.errors import MoescopeError

_REASONS: Final[dict[type[MoescopeError], str]] = {
    BrokerUnreachableError: "unreachable",
    BrokerRefusedError: "refused",
    TopicMissingError: "topic_missing",
    KafkaRecordTooLargeError: "too_large",
}

_log = logging.getLogger("moescope.producers")


def reason_of(error: MoescopeError) -> str:
    """One word for a metric's label."""
    return _REASONS.get(type(error), "other")


class Standing:
    """How shipping stands.

    Attributes:
        trouble: Why nothing can be shipped at the moment; None while it works, or is not known
            not to.
    """

    def __init__(self) -> None:
        self.trouble: MoescopeError | None = None
        self._since = 0.0
        self._took_none = False
        self._was_reached = False

    def not_opened(self, error: MoescopeError, now: float) -> None:
        """No client can be had."""
        self._took_none = False
        self._worsened(error, now)

    def not_delivered(self, error: MoescopeError, now: float) -> None:
        """A client was had, and delivered nothing."""
        self._took_none = True
        self._worsened(error, now)

    def opened(self, now: float) -> None:
        """A client can be had: good news, unless those before it delivered nothing."""
        if not self._took_none:
            self.delivered(now)
        if not self._was_reached:
            # A warning like all that is said of the broker: what is below that is shown nowhere.
            _log.warning("Kafka is reached.")
            self._was_reached = True

    def delivered(self, now: float) -> None:
        """A broker takes batches."""
        self._took_none = False
        if self.trouble is not None:
            self.trouble, self._was_reached = None, True
            _log.warning("Batches can be shipped again, after %.0f s.", now - self._since)

    def _worsened(self, error: MoescopeError, now: float) -> None:
        before, self.trouble = self.trouble, error
        if type(before) is type(error):
            return
        if before is None:
            self._since = now
        level = logging.ERROR if isinstance(error, BrokerRefusedError) else logging.WARNING
        _log.log(level, "Batches stay in the batch log, trying again: %s", error)
