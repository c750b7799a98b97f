"""All metrics of closed windows in one compiled pass.

Gives what `moescope.processors.metrics.metric_values` gives (to rounding), for the path that
finishes every window of a fleet. Everything but the divergence from a layer's own reference
depends on an expert's count alone, so it is computed once per *distinct* count of a window.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from moescope.core.errors import InputError
from moescope.core.metrics import METRIC_NAMES
from moescope.processors.compilation import compiled
from moescope.processors.metrics import (
    FLOOR_TOKENS,
    noise_floor_table,
    smoothed_reference,
    uniform_floor_table,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_KERNEL_ORDER = (
    "hot_load_share",
    "topk_load_share",
    "hot_expert_share",
    "cold_expert_share",
    "load_entropy",
    "utilization_cv",
    "jain_index",
    "max_violation",
    "gini",
    "working_set",
    "drop_rate",
    "js_uniform",
    "kl_uniform",
    "js_trailing",
    "kl_trailing",
    "js_uniform_floor",
    "kl_uniform_floor",
    "js_trailing_floor",
    "kl_trailing_floor",
)
# Handed to the kernel as data: cached machine code would not notice a changed registry.
_COLUMNS = np.array([METRIC_NAMES.index(name) for name in _KERNEL_ORDER], np.int64)

_NEAR = 0.5
_BUCKETS = 256
_DIGIT_BITS = 8
_DIGIT_MASK = _BUCKETS - 1
_COUNTING_LIMIT = 1024


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
) -> NDArray[np.float64]:
    """Every registry metric of every window and layer.

    A row's values depend on that row alone, and are the same however rows are grouped.

    Args:
        counts: uint16, uint32 or uint64 [W, L, E]; at most 2^46 assignments per row.
        top_k: k.
        dropped: uint64 [W, L]; values over the row's assignments, `DROPS_UNKNOWN` above all,
            give a null drop rate. None: unknown everywhere.
        trailing: The trailing reference of the L layers. None: its metrics are null.

    Returns:
        float64 [W, L, M] in the order of `moescope.core.metrics.METRICS`; NaN is null.

    Raises:
        InputError: Shapes or types do not fit together, or k is not in 1 … E.
    """
    if counts.ndim != 3 or counts.dtype.kind != "u" or counts.dtype.itemsize == 1:  # noqa: PLR2004
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
    uniform = uniform_floor_table(experts, top_k)
    values = np.full((windows, layers, len(METRIC_NAMES)), np.nan)
    _finish(
        np.ascontiguousarray(counts),
        top_k,
        np.ascontiguousarray(dropped),
        trailing.q,
        trailing.js_floor,
        trailing.kl_floor,
        # A copy: the cached table is read-only, which would be another type to compile for.
        uniform.js.copy(),
        uniform.kl.copy(),
        _COLUMNS,
        values,
    )
    return values


@compiled
def _finish(  # noqa: PLR0917 (compiled code is called by position)
    counts: NDArray[np.unsignedinteger[Any]],
    top_k: int,
    dropped: NDArray[np.uint64],
    q: NDArray[np.float64],
    js_floor: NDArray[np.float64],
    kl_floor: NDArray[np.float64],
    js_uniform_floor: NDArray[np.float64],
    kl_uniform_floor: NDArray[np.float64],
    columns: NDArray[np.int64],
    values: NDArray[np.float64],
) -> None:
    windows, layers, experts = counts.shape
    row = np.empty(experts, np.int64)
    distinct = np.empty(experts, np.int64)
    times = np.empty(experts, np.int64)
    spare = np.empty(experts, np.int64)
    buckets = np.empty(_COUNTING_LIMIT, np.int64)
    result = np.empty(columns.shape[0])
    for window in range(windows):
        for layer in range(layers):
            n = np.int64(0)
            most = np.int64(0)
            for expert in range(experts):
                count = np.int64(counts[window, layer, expert])
                row[expert] = count
                n += count
                most = max(most, count)
            if n == 0:
                continue
            runs = _distinct_counts(row, most, distinct, times, spare, buckets)
            for metric in range(columns.shape[0]):
                result[metric] = np.nan
            _load_and_uniform(distinct, times, runs, experts, n, top_k, result)
            if dropped.shape[0] > 0 and dropped[window, layer] <= np.uint64(n):
                result[10] = np.float64(dropped[window, layer]) / n
            tokens = n / top_k
            result[15] = _floor_at(js_uniform_floor, tokens)
            result[16] = _floor_at(kl_uniform_floor, tokens)
            if q.shape[0] > 0 and not np.isnan(q[layer, 0]):
                _from_reference(row, q[layer], n, result)
                result[17] = _floor_at(js_floor[layer], tokens)
                result[18] = _floor_at(kl_floor[layer], tokens)
            for metric in range(columns.shape[0]):
                values[window, layer, columns[metric]] = result[metric]


@compiled
def _distinct_counts(  # noqa: PLR0917 (as above)
    row: NDArray[np.int64],
    most: np.int64,
    distinct: NDArray[np.int64],
    times: NDArray[np.int64],
    spare: NDArray[np.int64],
    buckets: NDArray[np.int64],
) -> int:
    """Distinct counts of a row, ascending, and how often each occurs; returns how many."""
    runs = 0
    experts = row.shape[0]
    if most < _COUNTING_LIMIT and most < 4 * experts + 64:
        for count in range(most + 1):
            buckets[count] = 0
        for expert in range(experts):
            buckets[row[expert]] += 1
        for count in range(most + 1):
            # Written always, kept only if it occurs: no branch to mispredict.
            distinct[min(runs, experts - 1)] = count
            times[min(runs, experts - 1)] = buckets[count]
            runs += buckets[count] > 0
        return runs
    _sort(row, most, distinct, spare, buckets)
    previous = np.int64(-1)
    for index in range(experts):
        count = spare[index]
        if count == previous:
            times[runs - 1] += 1
        else:
            distinct[runs] = count
            times[runs] = 1
            runs += 1
            previous = count
    return runs


@compiled
def _sort(
    row: NDArray[np.int64],
    most: np.int64,
    work: NDArray[np.int64],
    ascending: NDArray[np.int64],
    buckets: NDArray[np.int64],
) -> None:
    """Sort counts into `ascending`, digit by digit from the lowest; `work` is overwritten."""
    experts = row.shape[0]
    for index in range(experts):
        ascending[index] = row[index]
    shift = 0
    while most >> shift > 0:
        for digit in range(_BUCKETS):
            buckets[digit] = 0
        for index in range(experts):
            work[index] = ascending[index]
            buckets[(work[index] >> shift) & _DIGIT_MASK] += 1
        place = np.int64(0)
        for digit in range(_BUCKETS):
            size = buckets[digit]
            buckets[digit] = place
            place += size
        for index in range(experts):
            digit = (work[index] >> shift) & _DIGIT_MASK
            ascending[buckets[digit]] = work[index]
            buckets[digit] += 1
        shift += _DIGIT_BITS


@compiled
def _load_and_uniform(  # noqa: PLR0917 (as above)
    distinct: NDArray[np.int64],
    times: NDArray[np.int64],
    runs: int,
    experts: int,
    n: np.int64,
    top_k: int,
    result: NDArray[np.float64],
) -> None:
    """Everything that follows from how many experts have which count."""
    hot_above = 2 * n // experts
    cold_up_to = (n - 1) // (10 * experts)
    hot_load = hot = cold = topk_load = inequality = below = 0
    squares = entropy = js = kl = 0.0
    q = 1.0 / experts
    for run in range(runs):
        count = distinct[run]
        repeated = times[run]
        if count > hot_above:
            hot_load += count * repeated
            hot += repeated
        if count <= cold_up_to:
            cold += repeated
        inequality += count * repeated * (2 * below + repeated - experts)
        below += repeated
        topk_load += count * max(0, min(repeated, below - (experts - top_k)))
        above_mean = np.float64(count * experts - n)
        squares += repeated * (above_mean * above_mean)
        p = count / n
        if count > 0:
            entropy -= repeated * (p * math.log(p))
        p = (count + 0.5) / (n + 0.5 * experts)
        js_part, kl_part = _divergence_terms(p, q)
        js += repeated * js_part
        kl += repeated * kl_part
    cv_squared = squares / experts / (np.float64(n) * np.float64(n))
    result[0] = hot_load / n
    result[1] = topk_load / n
    result[2] = hot / experts
    result[3] = cold / experts
    if experts > 1:
        result[4] = min(entropy / math.log(experts), 1.0)
    result[5] = math.sqrt(cv_squared)
    result[6] = 1.0 / (1.0 + cv_squared)
    result[7] = (distinct[runs - 1] * experts - n) / n
    result[8] = inequality / (np.float64(experts) * n)
    result[9] = experts - (times[0] if distinct[0] == 0 else 0)
    result[11] = js
    result[12] = kl


@compiled
def _from_reference(
    row: NDArray[np.int64], q: NDArray[np.float64], n: np.int64, result: NDArray[np.float64]
) -> None:
    experts = row.shape[0]
    half = 0.5 * experts
    total = n + half
    js = 0.0
    kl = 0.0
    for expert in range(experts):
        js_part, kl_part = _divergence_terms((row[expert] + half * q[expert]) / total, q[expert])
        js += js_part
        kl += kl_part
    result[13] = js
    result[14] = kl


@compiled
def _divergence_terms(p: float, q: float) -> tuple[float, float]:
    """As `moescope.processors.metrics.divergence.divergence_terms`, for one expert."""
    a = 0.5 * (p + q)
    x = (p - q) / (p + q)
    if abs(x) < _NEAR:
        above = math.log1p(x)
        below = math.log1p(-x)
    else:
        above = math.log(p / a)
        below = math.log(q / a)
    js = (0.5 / math.log(2.0)) * a * ((1.0 + x) * above + (1.0 - x) * below)
    kl = p * (above - below) - (p - q)
    return max(js, 0.0), max(kl, 0.0)


@compiled
def _floor_at(floors: NDArray[np.float64], tokens: float) -> float:
    """As `moescope.processors.metrics.noise.noise_floor`, for one window."""
    last = floors.shape[0] - 1
    most = float(1 << last)
    if tokens >= most:
        return float(floors[last] * (most / tokens))
    place = math.log2(max(tokens, 1.0))
    before = int(place)
    part = place - before
    low = float(floors[before])
    if part == 0.0:
        return low
    high = float(floors[before + 1])
    if low <= 0.0 or high <= 0.0:
        return 0.0
    return math.exp(math.log(low) * (1.0 - part) + math.log(high) * part)
