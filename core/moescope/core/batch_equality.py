"""Whether two batches say the same, however their expert ids are laid out."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moescope.core.batch import Quantised, Routes, RoutingBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class _CanonicalRoutes:
    columns: NDArray[np.uint32]
    has_dropped: bool
    weight_bits: int
    top1: NDArray[np.uint16] | None
    entropy: Quantised | None
    margin: Quantised | None


def batches_equal(first: RoutingBatch, second: RoutingBatch) -> bool:
    """Compare two batches field by field.

    Routes are compared by their expert ids in ascending order, with the weight and the dropped
    bit of each, so neither the relabelling nor the order of popularity ranks matters.
    """
    parts = ("header", "requests", "tokens", "token_blocks", "time_blocks")
    return all(
        _same(getattr(first, part), getattr(second, part)) for part in parts
    ) and _same_routes(first.routes, second.routes)


def _same(first: Any, second: Any) -> bool:  # noqa: ANN401 - parts of every type
    if type(first) is not type(second):
        return False
    if isinstance(first, np.ndarray):
        return first.dtype == second.dtype and np.array_equal(first, second)
    if hasattr(first, "__dataclass_fields__"):
        return all(
            _same(getattr(first, field.name), getattr(second, field.name))
            for field in fields(first)
        )
    return bool(first == second)


def _same_routes(first: Routes | None, second: Routes | None) -> bool:
    if first is None or second is None:
        return first is second
    return first.shape == second.shape and _same(_canonical(first), _canonical(second))


def _canonical(routes: Routes) -> _CanonicalRoutes:
    ids = routes.expert_ids
    columns = [ids.astype(np.uint32)]
    if routes.weights is not None:
        columns.append(_rows(routes.weights.codes).astype(np.uint32))
    if routes.dropped is not None:
        columns.append(_rows(routes.dropped).astype(np.uint32))
    order = np.lexsort(tuple(reversed(columns)), axis=-1)
    top1 = None
    if routes.top1 is not None:
        top1 = np.take_along_axis(ids, routes.top1.T[:, :, None].astype(np.intp), axis=2)
    return _CanonicalRoutes(
        columns=np.stack([np.take_along_axis(column, order, axis=2) for column in columns]),
        weight_bits=0 if routes.weights is None else routes.weights.bits,
        has_dropped=routes.dropped is not None,
        top1=top1,
        entropy=routes.entropy,
        margin=routes.margin,
    )


def _rows(planes: NDArray[Any]) -> NDArray[Any]:
    """Planes [k, L, T] as rows [T, L, k]."""
    return planes.transpose(2, 1, 0)
