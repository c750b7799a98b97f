"""Deltas of one pane, from any number of partitions, made one before they are stored."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from moescope.core.clock import NO_TIME
from moescope.core.metrics import DROPS_UNKNOWN
from moescope.processors.pane_profiles import add_lag_sums, add_position_counts
from moescope.processors.passes import add_pass_sums
from moescope.processors.similarity import add_similarity_sums
from moescope.processors.sums import sum_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from moescope.core.emission import SharedDelta

T = TypeVar("T")
_UNKNOWN = np.uint64(DROPS_UNKNOWN)


def merge_deltas(deltas: Iterable[SharedDelta]) -> list[SharedDelta]:
    """Add up deltas with the same lane, phase, kind, scope, task and pane.

    All of their values are sums, extremes or "any of", so the store sees no difference.
    """
    together: dict[tuple[object, ...], list[SharedDelta]] = {}
    for delta in deltas:
        key = (
            delta.lane, delta.phase, delta.kind, delta.scope_kind, delta.scope_value, delta.task,
            delta.pane,
        )  # fmt: skip
        together.setdefault(key, []).append(delta)
    return [parts[0] if len(parts) == 1 else _sum(parts) for parts in together.values()]


def _sum(parts: list[SharedDelta]) -> SharedDelta:
    first, second, *others = parts
    counts = np.add(first.counts, second.counts, dtype=np.uint64)
    dropped = first.dropped + second.dropped
    largest = np.maximum(first.dropped, second.dropped)
    gaps = first.request_gaps + second.request_gaps
    for part in others:
        counts += part.counts
        dropped += part.dropped
        np.maximum(largest, part.dropped, out=largest)
        gaps += part.request_gaps
    # The largest number of all: who has it as a part does not tell.
    dropped[largest == _UNKNOWN] = _UNKNOWN
    scene_tokens: dict[str, int] = dict(first.scene_tokens)
    for part in parts[1:]:
        for scene, tokens in part.scene_tokens.items():
            scene_tokens[scene] = scene_tokens.get(scene, 0) + tokens
    return replace(
        first,
        counts=counts,
        dropped=dropped,
        request_gaps=gaps,
        scene_tokens=scene_tokens,
        seen=sum(part.seen for part in parts),
        lost=sum(part.lost for part in parts),
        unknown_gap=any(part.unknown_gap for part in parts),
        first_time_us=min(
            (part.first_time_us for part in parts if part.first_time_us != NO_TIME),
            default=NO_TIME,
        ),
        last_time_us=max(part.last_time_us for part in parts),
        requests=sum(part.requests for part in parts),
        last_of_task=any(part.last_of_task for part in parts),
        router=_added(_known(part.router for part in parts), sum_of),
        positions=_added(_known(part.positions for part in parts), add_position_counts),
        similarity=_added(_known(part.similarity for part in parts), add_similarity_sums),
        lags=_added(_known(part.lags for part in parts), add_lag_sums),
        passes=_added(_known(part.passes for part in parts), add_pass_sums),
    )


def _known(parts: Iterable[T | None]) -> list[T]:
    return [part for part in parts if part is not None]


def _added(parts: list[T], add: Callable[[list[T]], T]) -> T | None:
    return add(parts) if parts else None
