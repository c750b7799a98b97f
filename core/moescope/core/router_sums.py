"""Additive sums beside the expert counts: what a window knows about scores, pairs and requests.

All are integers, so that windows do not depend on how records were cut into commits. Fixed-point
values are multiples of 2^−20.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FIXED_POINT = 1 << 20


class RouterSum(IntEnum):
    """Columns of a router-sum array int64 [..., L, ROUTER_SUMS].

    Rows are accepted, not suspicious at the layer. A pair is two accepted rows (or a context row
    and an accepted one) of one request at consecutive positions; it belongs to the later one.
    """

    ENTROPY_ROWS = 0
    """Rows with a score entropy."""
    ENTROPY = 1
    """Σ entropy / ln E, fixed-point."""
    MARGIN_ROWS = 2
    """Rows with a margin."""
    MARGIN = 3
    """Σ margin, fixed-point."""
    PAIRS = 4
    """Pairs of which both rows are sound at the layer."""
    OVERLAP = 5
    """Σ over pairs of |S_t ∩ S_{t−1}|."""
    RANKED_PAIRS = 6
    """Pairs whose rank order is known."""
    TOP1_SWITCHES = 7
    """Pairs whose first-ranked experts differ."""


ROUTER_SUMS = len(RouterSum)

POSITIONS = (
    16, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512, 768, 1024, 2048,
)  # fmt: skip
"""Positions at which different requests are compared. In prefill they are positions of the
request, in other phases they count from the start of the phase."""

LAGS = 64
"""Lags 1 … 64 of the lag overlap."""

SIMILARITY_REQUESTS = 512
"""Requests of smallest hash per partition and pane that enter request similarity."""

SIMILARITY_TOKENS = 32
"""Fewest tokens of a request in a pane that enter request similarity."""

SIMILARITY_PANE_US = {"prefill": 1_000_000, "decode": 5_000_000}
"""Length of a similarity pane by phase; other phases have none."""


@dataclass(frozen=True, slots=True)
class PositionCounts:
    """Sparse counts at sampled positions.

    Attributes:
        index: int64 [N], ascending and distinct flat indices into [positions, L, E].
        count: int64 [N], at least 1.
    """

    index: NDArray[np.int64]
    count: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SimilaritySums:
    """Sums over requests of one similarity pane; partitions add.

    With w = c / √((‖c‖² − kT) T / (T − 1)) per request and layer, c its counts in the pane and T
    its tokens.

    Attributes:
        start_us: Start of the similarity pane.
        size_us: Its length.
        weighted: int64 [L, E], Σw, fixed-point.
        squares: int64 [L], Σ‖w‖² of the fixed-point w: multiples of 2^−40.
        requests: int64 [L], R: requests in the sums.
        left_out: int64 [L], requests whose denominator is not positive.
    """

    start_us: int
    size_us: int
    weighted: NDArray[np.int64]
    squares: NDArray[np.int64]
    requests: NDArray[np.int64]
    left_out: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PassSums:
    """How unevenly a pane's passes load the experts; passes and imbalance add up.

    A pass is what one node computed together: its rows with one pass id and one event time. Its
    imbalance at a layer is E · max(c) / Σ c, with c its rows per expert there. It is counted in
    the pane of that time, once in each phase that it has accepted rows of.

    Attributes:
        passes: int64 [L], passes with a sound row at the layer.
        imbalance: int64 [L], Σ over them of their imbalance, fixed-point.
        largest: int64 [L], the greatest of them, fixed-point.
    """

    passes: NDArray[np.int64]
    imbalance: NDArray[np.int64]
    largest: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LagSums:
    """Overlap at lags 1 … 64 over sampled requests.

    Attributes:
        overlap: int64 [L, LAGS], Σ |S_t ∩ S_{t−d}|.
        pairs: int64 [L, LAGS].
    """

    overlap: NDArray[np.int64]
    pairs: NDArray[np.int64]
