"""The partitions that are shipped: found, complained about, and let go of."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from moescope.core.batchlog import (
    LIVE_DOMAIN,
    BatchLogError,
    BatchLogReader,
    partition_names,
)
from moescope.core.errors import MoescopeError
from moescope.producers.shipping.feed import NodeFeed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from moescope.producers.shipping.totals import ShippingReport
    from moescope.producers.shipping.waiting import BackOff

_log = logging.getLogger("moescope.producers")


class NodeFeeds:
    """The live partitions under a log root.

    Args:
        root: Log root; need not exist yet.
        report: Hears of nodes that come and go.
        new_back_off: Pauses of a node.
    """

    def __init__(
        self, root: Path, report: ShippingReport, new_back_off: Callable[[], BackOff]
    ) -> None:
        self._root = root
        self._report = report
        self._new_back_off = new_back_off
        self._feeds: dict[str, NodeFeed] = {}
        self._left_alone: set[str] = set()
        self._complaints: dict[str, str] = {}
        self._turn = ""
        self._has_looked = False

    def __iter__(self) -> Iterator[NodeFeed]:
        """All of them."""
        return iter(self._feeds.values())

    def get(self, node: str) -> NodeFeed | None:
        """That of a node, if it is served."""
        return self._feeds.get(node)

    def discover(self) -> None:
        """Serve partitions that are new, and no longer those that are sealed and have arrived.

        A new one's cursor is registered at once: from then on the byte cap knows what is unread.
        """
        try:
            names = partition_names(self._root)
        except BatchLogError as error:
            self.complain("", error)
            return
        for name in names:
            if name not in self._feeds and name not in self._left_alone:
                self._begin(name)
        self._has_looked = True
        for feed in list(self._feeds.values()):
            try:
                if feed.node not in names:
                    _log.warning("Node %s: its batch log is gone.", feed.node)
                    self._end(feed)
                elif feed.is_over():
                    self.save(feed)
                    self._end(feed)
                    self._left_alone.add(feed.node)
            except BatchLogError as error:
                self.complain(feed.node, error)

    def in_turn(self) -> list[NodeFeed]:
        """All of them, another one first each time."""
        names = sorted(self._feeds)
        after = [name for name in names if name > self._turn]
        order = after + names[: len(names) - len(after)]
        if order:
            self._turn = order[0]
        return [self._feeds[name] for name in order]

    def ends(self) -> dict[str, int]:
        """Offset after the last record of each, as it is now."""
        ends = {}
        for feed in self:
            feed.look_again()
            try:
                ends[feed.node] = feed.end_offset()
            except BatchLogError as error:
                self.complain(feed.node, error)
        return ends

    def left(self, ends: dict[str, int]) -> int:
        """How many records below these offsets have not arrived."""
        return sum(max(0, ends.get(feed.node, 0) - feed.done_to) for feed in self)

    def complain(self, node: str, error: Exception) -> None:
        """Say what concerns one node, once while it lasts."""
        kind = error.what if isinstance(error, MoescopeError) else type(error).__name__
        if self._complaints.get(node) != kind:
            self._complaints[node] = kind
            _log.error("Node %s cannot ship for now: %s", node or "(all)", error)

    def is_well(self, node: str) -> None:
        """There is nothing to complain about any more."""
        self._complaints.pop(node, None)

    def save_all(self) -> None:
        """Move the cursors to what has arrived."""
        for feed in self:
            self.save(feed)

    def save(self, feed: NodeFeed) -> None:
        """Move the cursor of one; where the disk refuses, a later call does."""
        try:
            feed.save()
        except BatchLogError as error:
            self.complain(feed.node, error)

    def close(self) -> None:
        """Let go of all of them."""
        for feed in self:
            feed.close()
        self._feeds.clear()

    def _begin(self, name: str) -> None:
        try:
            with BatchLogReader(self._root, name) as reader:
                is_live = reader.meta.domain == LIVE_DOMAIN
            if not is_live:
                self._left_alone.add(name)
                return
            feed = NodeFeed(self._root, name, self._new_back_off())
            self._report.discovered(feed, is_new=self._has_looked)
        except BatchLogError as error:
            self.complain(name, error)
        else:
            self._feeds[name] = feed

    def _end(self, feed: NodeFeed) -> None:
        feed.close()
        del self._feeds[feed.node]
        self._complaints.pop(feed.node, None)
        self._report.gone(feed)
