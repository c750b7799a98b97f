"""Whether an emission agrees with itself: what no types say, and the tables rely on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moescope.core.router_sums import LAGS, ROUTER_SUMS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from moescope.core.emission import (
        Emission,
        FinishedWindows,
        Judgement,
        LaneKey,
        PlacementNotice,
        SharedDelta,
        WindowGroup,
    )
    from moescope.core.router_sums import LagSums, PassSums, PositionCounts, SimilaritySums


def objection(emission: Emission) -> str | None:
    """What is wrong with an emission by itself, whatever is stored; None: nothing."""
    return _misplaced(emission) or next(_misshapen(emission), None)


def _misplaced(emission: Emission) -> str | None:
    """What does not belong to the progress that the emission makes."""
    reached = {each.partition: each.emitted_to for each in emission.progress}
    if len(reached) < len(emission.progress):
        return "it makes progress twice in one partition"
    output = (
        emission.windows, emission.histograms, emission.deltas, emission.references,
        emission.placements,
    )  # fmt: skip
    if not reached and any(output):
        return "it has output, and no progress that the output belongs to"
    places = [
        *((each.partition, each.offset) for each in emission.batches),
        *((each.partition, each.offset) for each in emission.dead_letters),
    ]
    for partition, offset in places:
        if offset >= reached.get(partition, offset):
            return f"it has record {offset} of {partition} beyond its progress"
    return None


def _misshapen(emission: Emission) -> Iterator[str]:
    """Arrays whose shapes do not follow from what they belong to."""
    if not all(map(_fits_delta, emission.deltas)):
        yield "a delta's arrays do not have the shape of its layers and experts"
    if not all(map(_fits_windows, emission.windows)):
        yield "the arrays of windows do not have the shape of their layers and experts"
    for reference in emission.references:
        if reference.counts.shape != _shape(reference.lane):
            yield "a reference's counts do not have the shape of its layers and experts"
    if not all(map(_fits_placement, emission.placements)):
        yield "a placement does not have the shape of its layers and experts"
    for key, bins in emission.histograms.items():
        if bins.shape[1:-1] != (len(key.lane.layers),):
            yield "a histogram does not have the shape of its layers"


def _shape(lane: LaneKey) -> tuple[int, int]:
    return len(lane.layers), lane.experts


def _is(array: NDArray[np.generic] | None, *shape: int) -> bool:
    return array is None or array.shape == shape


def _fits_delta(delta: SharedDelta) -> bool:
    layers, experts = _shape(delta.lane)
    return (
        delta.counts.shape == (layers, experts)
        and delta.dropped.shape == (layers,)
        and delta.request_gaps.ndim == 1
        and _is(delta.router, layers, ROUTER_SUMS)
        and _fits_positions(delta.positions)
        and _fits_similarity(delta.similarity, layers, experts)
        and _fits_lags(delta.lags, layers)
        and _fits_passes(delta.passes, layers)
    )


def _fits_positions(positions: PositionCounts | None) -> bool:
    return positions is None or (
        positions.index.ndim == 1 and positions.index.shape == positions.count.shape
    )


def _fits_similarity(similarity: SimilaritySums | None, layers: int, experts: int) -> bool:
    return similarity is None or (
        similarity.weighted.shape == (layers, experts)
        and similarity.squares.shape == (layers,)
        and similarity.requests.shape == (layers,)
        and similarity.left_out.shape == (layers,)
    )


def _fits_lags(lags: LagSums | None, layers: int) -> bool:
    return lags is None or lags.overlap.shape == lags.pairs.shape == (layers, LAGS)


def _fits_passes(passes: PassSums | None, layers: int) -> bool:
    return passes is None or (
        passes.passes.shape == passes.imbalance.shape == passes.largest.shape == (layers,)
    )


def _fits_placement(notice: PlacementNotice) -> bool:
    placement = notice.placement
    return (
        placement.rank_of.shape == _shape(notice.lane)
        and placement.rank_of.dtype == np.uint16
        and placement.ranks >= 1
    )


def _fits_windows(finished: FinishedWindows) -> bool:
    group = finished.group
    windows, layers = group.start.size, len(group.lane.layers)
    return (
        _fits_group(group)
        and finished.values.shape[:-1] == (windows, layers)
        and finished.tokens.shape == (windows, layers)
        and _is(finished.lag_overlap, windows, layers, LAGS)
        and _fits_judgement(finished.judgement, windows, layers)
    )


def _fits_group(group: WindowGroup) -> bool:
    windows, (layers, experts) = group.start.size, _shape(group.lane)
    singles = (
        group.start, group.first_time_us, group.last_time_us, group.close_time_us, group.seen,
        group.expected, group.lost, group.unknown_gap, group.requests, group.complete,
        group.weight, group.row_version,
    )  # fmt: skip
    names = (group.request, group.task, group.scene, group.node, group.close_reason)
    optional = (
        group.scene_tokens, group.positions, group.similarity, group.lags, group.passes,
    )  # fmt: skip
    return (
        all(each.shape == (windows,) for each in singles)
        and all(len(each) == windows for each in names)
        and all(len(each) in (0, windows) for each in optional)
        and group.counts.shape == (windows, layers, experts)
        and group.dropped.shape == (windows, layers)
        and _is(group.trailing, layers, experts)
        and _is(group.router, windows, layers, ROUTER_SUMS)
    )


def _fits_judgement(judgement: Judgement | None, windows: int, layers: int) -> bool:
    return judgement is None or (
        len(judgement.version) == windows
        and all(
            each.shape == (windows, layers)
            for each in (judgement.judged, judgement.warn, judgement.red)
        )
    )
