"""What a shipper has done, as numbers and as metrics."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from moescope.core.batchlog import BatchLogError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moescope.core.self_metrics import SelfMetrics
    from moescope.producers.shipping.feed import NodeFeed


@dataclass(slots=True)
class ShippingTotals:
    """Since the shipper was made; each batch counts once, however often it was sent.

    Attributes:
        shipped_batches: A broker acknowledged them.
        shipped_bytes: Payload bytes of those.
        undeliverable_batches: Over the broker's limit, set aside.
        skipped_batches: The byte cap removed them before they could be sent.
        unreadable_batches: Lost to damage of the log.
        delivery_failures: Attempts that failed and were made again.
        client_rebuilds: Clients that were given up.
    """

    shipped_batches: int = 0
    shipped_bytes: int = 0
    undeliverable_batches: int = 0
    skipped_batches: int = 0
    unreadable_batches: int = 0
    delivery_failures: int = 0
    client_rebuilds: int = 0


class _Clock(Protocol):
    def now_us(self) -> int: ...


class ShippingReport:
    """Counts, and keeps the metrics of the process.

    Args:
        metrics: Of the process.
        clock: Wall clock.
    """

    def __init__(self, metrics: SelfMetrics, clock: _Clock) -> None:
        self.totals = ShippingTotals()
        self._metrics = metrics
        self._clock = clock
        self._dropped: dict[str, int] = {}
        self._past_skipped = 0
        self._past_unreadable = 0

    def discovered(self, feed: NodeFeed, *, is_new: bool) -> None:
        """A partition is served; what was dropped before this process began is not its doing.

        Raises:
            BatchLogError: Its ledger cannot be read.
        """
        if feed.node not in self._dropped:
            self._dropped[feed.node] = 0 if is_new else feed.dropped_batches()

    def shipped(self, node: str, size: int) -> None:
        """A batch was acknowledged for the first time."""
        self.totals.shipped_batches += 1
        self.totals.shipped_bytes += size
        self._metrics.add("moescope_agent_shipped_batches_total", node=node)
        self._metrics.add("moescope_agent_shipped_bytes_total", size, node=node)
        self._metrics.set(
            "moescope_agent_last_acknowledged_timestamp_seconds", self._clock.now_us() / 1e6
        )

    def set_aside(self, node: str) -> None:
        """A batch was kept beside the log."""
        self.totals.undeliverable_batches += 1
        self._metrics.add("moescope_agent_undeliverable_batches_total", node=node)

    def failed(self, reason: str) -> None:
        """Something was not delivered, and is tried again."""
        self.totals.delivery_failures += 1
        self._metrics.add("moescope_agent_delivery_failures_total", reason=reason)

    def gave_client_up(self) -> None:
        """A client is replaced."""
        self.totals.client_rebuilds += 1
        self._metrics.add("moescope_agent_client_rebuilds_total")

    def gone(self, feed: NodeFeed) -> None:
        """The partition is no longer served."""
        self._past_skipped += feed.skipped
        self._past_unreadable += feed.unreadable
        self._metrics.forget("moescope_agent_backlog_batches", node=feed.node)
        self._metrics.forget("moescope_agent_log_bytes", node=feed.node)

    def look_at(self, feeds: Iterable[NodeFeed]) -> None:
        """Take the gauges, and what the byte cap removed."""
        in_flight = 0
        skipped, unreadable = self._past_skipped, self._past_unreadable
        for feed in feeds:
            in_flight += feed.window.bytes
            skipped += feed.skipped
            unreadable += feed.unreadable
            with contextlib.suppress(BatchLogError, OSError):
                self._look_at(feed)
        self._metrics.set("moescope_agent_in_flight_bytes", in_flight)
        self.totals.skipped_batches = skipped
        self.totals.unreadable_batches = unreadable

    def _look_at(self, feed: NodeFeed) -> None:
        node = feed.node
        waiting = max(0, feed.end_offset() - feed.done_to)
        self._metrics.set("moescope_agent_backlog_batches", waiting, node=node)
        self._metrics.set("moescope_agent_log_bytes", feed.log_bytes(), node=node)
        dropped = feed.dropped_batches()
        grown = dropped - self._dropped.get(node, 0)
        if grown > 0:
            self._metrics.add("moescope_agent_dropped_batches_total", grown, node=node)
            self._dropped[node] = dropped
