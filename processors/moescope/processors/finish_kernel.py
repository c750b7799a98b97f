"""All metrics of closed windows that follow from their counts, in one compiled pass.

Gives what `moescope.processors.metrics.metric_values` gives (to rounding), for the path that
finishes every window of a fleet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from moescope.core.errors import InputError
from moescope.core.metrics import METRIC_NAMES
from moescope.processors.finish_rows import KERNEL_ORDER, finish_rows
from moescope.processors.metrics import (
    FLOOR_TOKENS,
    UNKNOWN_MIX,
    DistinctMixes,
    noise_floor_table,
    smoothed_reference,
    uniform_floor_table,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Handed to the kernel as data: cached machine code would not notice a changed registry.
_COLUMNS = np.array([METRIC_NAMES.index(name) for name in KERNEL_ORDER], np.int64)


class LayerReferences(NamedTuple):
    """A reference of each of L layers, made ready for `finish_counts`.

    Attributes:
        q: float64 [L, E]; NaN throughout for layers without a reference.
        js_floor, kl_floor: float64 [L, G], noise floors at `FLOOR_TOKENS`.
    """

    q: NDArray[np.float64]
    js_floor: NDArray[np.float64]
    kl_floor: NDArray[np.float64]


def layer_references(counts: NDArray[np.integer[Any]], top_k: int) -> LayerReferences:
    """Prepare the counts of a reference; worth keeping, since it tabulates noise floors.

    Args:
        counts: Integers [L, E]; a layer without assignments has no reference.
        top_k: k.

    Raises:
        InputError: As `moescope.processors.metrics.smoothed_reference`.
    """
    q = smoothed_reference(counts)
    floors = noise_floor_table(q, top_k)
    return LayerReferences(*(np.ascontiguousarray(part) for part in (q, floors.js, floors.kl)))


def finish_counts(
    counts: NDArray[np.unsignedinteger[Any]],
    top_k: int,
    *,
    dropped: NDArray[np.uint64] | None = None,
    trailing: LayerReferences | None = None,
    mixes: DistinctMixes | None = None,
) -> NDArray[np.float64]:
    """Every registry metric of every window and layer that needs counts and references only.

    A row's values depend on that row alone, and are the same however rows are grouped.

    Args:
        counts: uint16, uint32 or uint64 [W, L, E]; at most 2^46 assignments per row.
        top_k: k.
        dropped: uint64 [W, L]; values over the row's assignments, `DROPS_UNKNOWN` above all,
            give a null drop rate. None: unknown everywhere.
        trailing: The trailing reference of the L layers. None: its metrics are null.
        mixes: What the baseline expects of each window's traffic. None: routing shift is null.

    Returns:
        float64 [W, L, M] in the order of `moescope.core.metrics.METRICS`; NaN is null. Columns
        of metrics that need more than that are left null.

    Raises:
        InputError: Shapes or types do not fit together, or k is not in 1 … E.
    """
    if counts.ndim != 3 or counts.dtype.kind != "u" or counts.dtype.itemsize == 1:  # noqa: PLR2004 - windows, layers, experts
        raise InputError(
            "Counts must be uint16, uint32 or uint64 [windows, layers, experts].",
            why=f"They are {counts.dtype} {counts.shape}.",
        )
    windows, layers, experts = counts.shape
    if not 1 <= top_k <= experts:
        raise InputError(
            f"top_k is {top_k}, but a token selects between 1 and E = {experts} experts."
        )
    if dropped is None:
        dropped = np.empty((0, layers), np.uint64)
    elif dropped.shape != (windows, layers) or dropped.dtype != np.uint64:
        raise InputError(
            "Dropped assignments must be uint64 [windows, layers].",
            why=f"They are {dropped.dtype} {dropped.shape}, the counts {counts.shape}.",
        )
    if trailing is None:
        none = np.empty((0, len(FLOOR_TOKENS)))
        trailing = LayerReferences(np.empty((0, experts)), none, none)
    elif trailing.q.shape != (layers, experts):
        raise InputError(
            "The trailing reference must have the layers and experts of the counts.",
            why=f"It is {trailing.q.shape}, the counts {counts.shape}.",
        )
    if mixes is None:
        mixes = DistinctMixes(
            np.full(windows, UNKNOWN_MIX, np.int64), np.empty((0, layers, experts))
        )
    elif mixes.place.shape != (windows,) or mixes.q.shape[1:] != (layers, experts):
        raise InputError(
            "Mixes must have the windows, layers and experts of the counts.",
            why=f"They are {mixes.place.shape} and {mixes.q.shape}, the counts {counts.shape}.",
        )
    elif windows and mixes.place.max() >= len(mixes.q):
        raise InputError(f"A window has mix {mixes.place.max()}, but there are {len(mixes.q)}.")
    uniform = uniform_floor_table(experts, top_k)
    values = np.full((windows, layers, len(METRIC_NAMES)), np.nan)
    finish_rows(
        np.ascontiguousarray(counts),
        top_k,
        np.ascontiguousarray(dropped),
        trailing.q,
        trailing.js_floor,
        trailing.kl_floor,
        # A copy: the cached table is read-only, which would be another type to compile for.
        uniform.js.copy(),
        uniform.kl.copy(),
        np.ascontiguousarray(mixes.q),
        np.ascontiguousarray(mixes.place, np.int64),
        _COLUMNS,
        values,
    )
    return values
