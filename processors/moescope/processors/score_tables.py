"""Score codes as whole numbers, so that sums of them do not depend on their order."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.batch import Quantised
from moescope.core.quantise import HALF_PRECISION_BITS, entropies_of, margins_of
from moescope.core.router_sums import FIXED_POINT
from moescope.processors.kernels.router import NOT_A_SCORE, RouterPlanes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moescope.core.batch import Routes

_NO_TABLE = np.zeros(0, np.int64)


@cache
def margin_table(bits: int) -> NDArray[np.int64]:
    """Margins by code, fixed-point."""
    return _fixed_point(margins_of(_every_code(bits)), 1.0)


@cache
def entropy_table(bits: int, experts: int) -> NDArray[np.int64]:
    """Entropies / ln E by code, fixed-point; with one expert there is none."""
    return _fixed_point(entropies_of(_every_code(bits), experts), float(np.log(experts)))


def router_planes(routes: Routes, experts: int) -> RouterPlanes:
    """What the kernels read of a batch's routes besides the ids."""
    top1 = np.zeros((0, 0), np.uint8) if routes.top1 is None else routes.top1
    entropy, margin = routes.entropy, routes.margin
    return RouterPlanes(
        top1,
        _codes(entropy),
        _codes(margin),
        _NO_TABLE if entropy is None else entropy_table(entropy.bits, experts),
        _NO_TABLE if margin is None else margin_table(margin.bits),
    )


def _codes(quantised: Quantised | None) -> NDArray[np.unsignedinteger[Any]]:
    return np.zeros((0, 0), np.uint8) if quantised is None else quantised.codes


def _every_code(bits: int) -> Quantised:
    if bits == HALF_PRECISION_BITS:
        return Quantised(codes=np.arange(1 << bits, dtype=np.uint16), bits=bits)
    return Quantised(codes=np.arange(1 << bits, dtype=np.uint8), bits=bits)


def _fixed_point(values: NDArray[np.float32], unit: float) -> NDArray[np.int64]:
    known = np.isfinite(values) & (values >= 0) & (unit > 0)
    shares = np.where(known, values, 0).astype(np.float64) / (unit or 1.0)
    return np.where(known, np.rint(shares * FIXED_POINT).astype(np.int64), NOT_A_SCORE)
