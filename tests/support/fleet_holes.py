"""Rows that are missing, and whether the windows of their seconds say so."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from support.fleet_engine import REQUESTS

from moescope.core.wire import decode_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from support.fleet_engine import EngineReport
    from support.fleet_topic import Place

SECOND_US = 1_000_000


class Holes(NamedTuple):
    """Time windows of one size, of scope `all`.

    Attributes:
        size_s: Seconds of each.
        windows: That the store has.
        short: Those of which rows are missing. unmarked: Those of these that claim to be whole.
        beside: Windows that are marked although nothing of them is missing, but a loss is spread
            over their seconds. blamed: Those that are marked without any.
    """

    size_s: int
    windows: int
    short: int
    unmarked: int
    beside: int
    blamed: int


class Seconds:
    """What each node recorded in each second, and what of it was delivered.

    A step at a border may be counted one second later than it was called.

    Args:
        reports: Of the engines, by node.
        delivered: (node, second) → rows.
    """

    def __init__(
        self, reports: Mapping[str, EngineReport], delivered: Mapping[tuple[str, int], int]
    ) -> None:
        self._nodes = list(reports)
        self._delivered = delivered
        self._steps = Counter(
            (node, round(step.at * SECOND_US) // SECOND_US)
            for node, report in reports.items()
            for step in report.steps
        )

    def is_short(self, span: range) -> bool:
        """Whether rows of a node are missing in these seconds."""
        return any(self._off(node, span) < -REQUESTS for node in self._nodes)

    def is_whole(self, span: range) -> bool:
        """Whether no row of any node is missing."""
        return all(abs(self._off(node, span)) <= REQUESTS for node in self._nodes)

    def empty(self) -> set[tuple[str, int]]:
        """(node, second) of which every row is missing, and more than one step's."""
        return {
            each
            for each, steps in self._steps.items()
            if steps > 1 and not self._delivered.get(each)
        }

    def _off(self, node: str, span: range) -> int:
        return sum(
            self._delivered.get((node, second), 0) - self._steps[node, second] * REQUESTS
            for second in span
        )


def holes_of(
    windows: Iterable[tuple[int, int, bool]], seconds: Seconds, told: set[int]
) -> tuple[Holes, ...]:
    """Judge every window by the rows that are missing of it; by size.

    Args:
        windows: Size and start, µs, and whether the window claims to be whole.
        seconds: What was recorded and delivered.
        told: Seconds over which losses are spread.
    """
    found: dict[int, Counter[str]] = {}
    for size, start, claims in windows:
        span = range(start // SECOND_US, (start + size) // SECOND_US)
        counts = found.setdefault(size // SECOND_US, Counter())
        counts["windows"] += 1
        if seconds.is_short(span):
            counts["short"] += 1
            counts["unmarked"] += claims
        elif not claims and seconds.is_whole(span):
            counts["blamed" if told.isdisjoint(span) else "beside"] += 1
    names = Holes._fields[1:]
    return tuple(Holes(size, *(found[size][name] for name in names)) for size in sorted(found))


def seconds_of_losses(topic: Mapping[int, Sequence[Place]]) -> set[int]:
    """Seconds over which losses are spread: from the watermark before one to the first row after.

    Each node's first record of a batch counts, in the order of the topic.
    """
    last: dict[str, tuple[int, int]] = {}
    found: set[int] = set()
    for batch in (decode_batch(one.value) for places in topic.values() for one in places):
        header, tokens = batch.header, batch.tokens
        sequence, watermark = last.get(header.node, (-1, header.watermark_us))
        if header.sequence <= sequence:
            continue
        if header.drops.lost_rows or header.sequence > sequence + 1:
            times = None if tokens is None else tokens.event_time_us
            end = header.watermark_us if times is None or not len(times) else int(times.min())
            # The first row may be one that is repeated from before, as context.
            begin = min(watermark, end)
            found |= set(range(begin // SECOND_US, end // SECOND_US + 1))
        last[header.node] = (header.sequence, max(watermark, header.watermark_us))
    return found
