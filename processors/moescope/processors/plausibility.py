"""Batches that decode but hold numbers which no window or table can: dead letters, not crashes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moescope.core.clock import END_OF_TIME, NO_TIME

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from moescope.core.batch import RoutingBatch

LATEST_US = 2**53
"""The year 2255: every later time is a mistake of units."""
LARGEST_STEP = 2**53
LARGEST_DROPS = 2**53
LARGEST_LANE = 2**20
"""Layers x experts of a lane: what each open window of each request has to count."""


def implausible(batch: RoutingBatch) -> str:
    """Why a batch cannot be rolled up; empty when it can."""
    return next((what for what, is_wrong in _checks(batch) if is_wrong), "")


def _checks(batch: RoutingBatch) -> Iterator[tuple[str, bool]]:
    header, drops = batch.header, batch.header.drops
    width = len(header.layers) * header.experts
    most = max(
        drops.ring_rows, drops.log_rows, drops.log_batches, drops.rejected_rows, drops.unseen_rows
    )
    yield f"layers x experts is {width}, at most {LARGEST_LANE}", width > LARGEST_LANE
    yield f"watermark {header.watermark_us}", not _is_time(header.watermark_us)
    yield f"encoding time {header.encoded_at_us}", not _is_time(header.encoded_at_us)
    yield f"drop counter {most}", most > LARGEST_DROPS
    if batch.tokens is not None:
        yield "an event time", _is_outside(batch.tokens.event_time_us, LATEST_US)
        yield "a step", _is_outside(batch.tokens.step, LARGEST_STEP)
    if batch.token_blocks is not None:
        yield "a first time", _is_outside(batch.token_blocks.first_time_us, LATEST_US)
        yield "a last time", _is_outside(batch.token_blocks.last_time_us, LATEST_US)
        yield "a step", _is_outside(batch.token_blocks.step, LARGEST_STEP)
    if batch.time_blocks is not None:
        yield "a second", _is_outside(batch.time_blocks.second_us, LATEST_US)
        yield "a second's tokens", _is_outside(batch.time_blocks.tokens, LARGEST_STEP)


def _is_time(time_us: int) -> bool:
    return time_us in {NO_TIME, END_OF_TIME} or 0 <= time_us <= LATEST_US


def _is_outside(values: NDArray[np.integer[Any]] | None, largest: int) -> bool:
    if values is None or not len(values):
        return False
    return bool(values.min() < 0 or values.max() > largest)
