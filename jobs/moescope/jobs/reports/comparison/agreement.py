"""How far two routings of the same tokens agree, as sums that add up over any blocks of pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from moescope.jobs.reports.comparison.reading import NO_EXPERT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moescope.jobs.reports.comparison.pairing import Pairs
    from moescope.jobs.reports.comparison.reading import RouteShape

GROUPS: Final = 256
"""Requests are dealt into so many groups by a hash; intervals are over groups."""
POSITION_EDGES: Final = (0, 1, 4, 16, 64, 256, 1_024, 4_096, 16_384, 65_536)
MARGIN_EDGES: Final = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_PAIRS_AT_ONCE: Final = 1 << 22
"""Expert ids compared at once."""


class AgreementSums:
    """Sums over pairs of rows; all integers.

    Attributes:
        tokens, agreeing: int64 [G]: pairs, and those whose sets agree in all layers.
        common: int64 [G, L, k + 1]: pairs by |S ∩ T|.
        top1_known, top1_same: int64 [G, L].
        by_position: int64 [P, k + 1]: (pair, layer) by |S ∩ T|.
        position_tokens, position_agreeing: int64 [G, P].
        margin_known, margin_same: int64 [G, M]: (pair, layer) with a margin of side A, and those
            with equal sets.
        differing_layers: int64 [L + 1]: pairs by how many layers differ.
        first_differing: int64 [L]: pairs by the first layer that differs.
        counts_a, counts_b: int64 [L, E]: assignments of the pairs.
        requests: Hashes of side A's requests that have a pair.
    """

    def __init__(self, shape: RouteShape) -> None:
        layers, k = len(shape.layers), shape.top_k
        places, margins = len(POSITION_EDGES), len(MARGIN_EDGES)
        self._experts = shape.experts
        self.tokens = np.zeros(GROUPS, np.int64)
        self.agreeing = np.zeros(GROUPS, np.int64)
        self.common = np.zeros((GROUPS, layers, k + 1), np.int64)
        self.top1_known = np.zeros((GROUPS, layers), np.int64)
        self.top1_same = np.zeros((GROUPS, layers), np.int64)
        self.by_position = np.zeros((places, k + 1), np.int64)
        self.position_tokens = np.zeros((GROUPS, places), np.int64)
        self.position_agreeing = np.zeros((GROUPS, places), np.int64)
        self.margin_known = np.zeros((GROUPS, margins), np.int64)
        self.margin_same = np.zeros((GROUPS, margins), np.int64)
        self.differing_layers = np.zeros(layers + 1, np.int64)
        self.first_differing = np.zeros(layers, np.int64)
        self.counts_a = np.zeros((layers, shape.experts), np.int64)
        self.counts_b = np.zeros((layers, shape.experts), np.int64)
        self.requests = np.empty(0, np.uint64)

    def add(self, pairs: Pairs) -> None:
        """Add pairs of rows."""
        layers, width = self.common.shape[1:]
        step = max(1, _PAIRS_AT_ONCE // (layers * width))
        for first in range(0, len(pairs.a), step):
            piece = slice(first, first + step)
            self._add(type(pairs)(pairs.a[piece], pairs.b[piece]))

    def _add(self, pairs: Pairs) -> None:
        layers, width = self.common.shape[1:]
        group = (pairs.a["request"] % np.uint64(GROUPS)).astype(np.int64)
        place = np.searchsorted(POSITION_EDGES, pairs.a["position"], side="right") - 1
        common = common_experts(pairs.a["ids"], pairs.b["ids"])
        same = common == width - 1
        agreeing = same.all(axis=1)
        layer = np.arange(layers)
        cells = (group[:, None] * layers + layer) * width + common
        self.common += _counted(cells, self.common.shape)
        self.by_position += _counted(place[:, None] * width + common, self.by_position.shape)
        self.tokens += _counted(group, self.tokens.shape)
        self.agreeing += _counted(group[agreeing], self.agreeing.shape)
        places = group * len(POSITION_EDGES) + place
        self.position_tokens += _counted(places, self.position_tokens.shape)
        self.position_agreeing += _counted(places[agreeing], self.position_agreeing.shape)
        differing = layers - np.count_nonzero(same, axis=1)
        self.differing_layers += _counted(differing, self.differing_layers.shape)
        self.first_differing += _counted(same.argmin(axis=1)[~agreeing], self.first_differing.shape)
        self._add_top1(pairs, group)
        self._add_margins(pairs.a["margin"], same, group)
        experts = layer[:, None] * self._experts
        self.counts_a += _counted(pairs.a["ids"] + experts, self.counts_a.shape)
        self.counts_b += _counted(pairs.b["ids"] + experts, self.counts_b.shape)
        self.requests = np.union1d(self.requests, pairs.a["request"])

    def _add_top1(self, pairs: Pairs, group: NDArray[np.int64]) -> None:
        first_a, first_b = pairs.a["top1"], pairs.b["top1"]
        known = (first_a != NO_EXPERT) & (first_b != NO_EXPERT)
        layers = known.shape[1]
        cells = group[:, None] * layers + np.arange(layers)
        self.top1_known += _counted(cells[known], self.top1_known.shape)
        self.top1_same += _counted(cells[known & (first_a == first_b)], self.top1_same.shape)

    def _add_margins(
        self, margin: NDArray[np.float32], same: NDArray[np.bool_], group: NDArray[np.int64]
    ) -> None:
        known = np.isfinite(margin)
        close = np.maximum(np.where(known, margin, 0.0), 0.0)
        bucket = np.searchsorted(MARGIN_EDGES, close, side="right") - 1
        cells = group[:, None] * len(MARGIN_EDGES) + bucket
        self.margin_known += _counted(cells[known], self.margin_known.shape)
        self.margin_same += _counted(cells[known & same], self.margin_same.shape)


def common_experts(a: NDArray[np.uint16], b: NDArray[np.uint16]) -> NDArray[np.int64]:
    """Sizes of intersections |S ∩ T| [...] of id sets [..., k], each without repetition."""
    both = np.sort(np.concatenate([a, b], axis=-1), axis=-1)
    met: NDArray[np.int64] = np.count_nonzero(both[..., 1:] == both[..., :-1], axis=-1)
    return met


def _counted(cells: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.int64]:
    return np.bincount(cells.ravel(), minlength=int(np.prod(shape))).reshape(shape)
