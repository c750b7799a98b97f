"""The compiled part of finishing windows.

One module, since code cached on disk is compiled anew only when its own file changes.

Everything but the divergence from a layer's own reference depends on an expert's count alone, so
it is computed once per *distinct* count of a window.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.processors.compilation import compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Workspace = tuple[
        NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]
    ]

KERNEL_ORDER = (
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
    "overlap_chance",
    "routing_shift",
)
"""Metrics in the order in which a row's result holds them."""

_SERIES_LIMIT = 1.0 / 9.0
"""x² of p = 2q: up to there the series are used, and 16 terms leave an error below 1e-16."""
_SERIES_TERMS = 16
_BUCKETS = 256
_DIGIT_BITS = 8
_DIGIT_MASK = _BUCKETS - 1
_COUNTING_LIMIT = 1024


@compiled
def finish_rows(  # noqa: PLR0917 (compiled code is called by position)
    counts: NDArray[np.unsignedinteger[Any]],
    top_k: int,
    dropped: NDArray[np.uint64],
    q: NDArray[np.float64],
    js_floor: NDArray[np.float64],
    kl_floor: NDArray[np.float64],
    js_uniform_floor: NDArray[np.float64],
    kl_uniform_floor: NDArray[np.float64],
    mixes: NDArray[np.float64],
    mix_of: NDArray[np.int64],
    columns: NDArray[np.int64],
    values: NDArray[np.float64],
) -> None:
    """Fill `values` [W, L, M]; rows without assignments are left as they are.

    Args:
        counts: [W, L, E]; checked by the caller, like everything else.
        top_k: k.
        dropped: uint64 [W, L], or [0, L] where unknown.
        q: float64 [L, E] trailing reference, or [0, E] where there is none.
        js_floor: float64 [L, G] its noise floors.
        kl_floor: float64 [L, G].
        js_uniform_floor: float64 [G] noise floors of the uniform reference.
        kl_uniform_floor: float64 [G].
        mixes: float64 [D, L, E] loads that the baseline expects of the windows' traffic.
        mix_of: int64 [W] the mix of each window, negative where there is none.
        columns: int64, the column in `values` of each metric of `KERNEL_ORDER`.
        values: float64 [W, L, M].
    """
    windows, layers, experts = counts.shape
    row = np.empty(experts, np.int64)
    distinct = np.empty(experts, np.int64)
    times = np.empty(experts, np.int64)
    spare = np.empty(experts, np.int64)
    buckets = np.empty(_COUNTING_LIMIT, np.int64)
    once = np.ones(experts, np.int64)
    uniform = np.full(experts, 1.0 / experts)
    p = np.empty(experts)
    work = (np.empty(experts), np.empty(experts), np.empty(experts), np.empty(experts))
    result = np.empty(columns.shape[0])
    for window in range(windows):
        for layer in range(layers):
            n, most = _read_row(counts, window, layer, row)
            if n == 0:
                continue
            runs = _distinct_counts(row, most, distinct, times, spare, buckets)
            result[:] = np.nan
            _load(distinct, times, runs, experts, n, top_k, result)
            if dropped.shape[0] > 0 and dropped[window, layer] <= np.uint64(n):
                result[10] = np.float64(dropped[window, layer]) / n
            total = n + 0.5 * experts
            for run in range(runs):
                p[run] = (distinct[run] + 0.5) / total
            result[11], result[12] = _divergences(p, uniform, times, runs, work)
            tokens = n / top_k
            result[15] = _floor_at(js_uniform_floor, tokens)
            result[16] = _floor_at(kl_uniform_floor, tokens)
            if q.shape[0] > 0 and not np.isnan(q[layer, 0]):
                for expert in range(experts):
                    p[expert] = (row[expert] + 0.5 * experts * q[layer, expert]) / total
                result[13], result[14] = _divergences(p, q[layer], once, experts, work)
                result[17] = _floor_at(js_floor[layer], tokens)
                result[18] = _floor_at(kl_floor[layer], tokens)
            if mix_of[window] >= 0:
                result[20] = _shift(row, n, mixes[mix_of[window], layer], p, work)
            for metric in range(columns.shape[0]):
                values[window, layer, columns[metric]] = result[metric]


@compiled
def _read_row(
    counts: NDArray[np.unsignedinteger[Any]], window: int, layer: int, row: NDArray[np.int64]
) -> tuple[np.int64, np.int64]:
    """Copy a row; returns its sum and its largest count."""
    n = np.int64(0)
    most = np.int64(0)
    for expert in range(row.shape[0]):
        count = np.int64(counts[window, layer, expert])
        row[expert] = count
        n += count
        most = max(most, count)
    return n, most


@compiled
def _distinct_counts(  # noqa: PLR0917 (compiled code is called by position)
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
def _load(  # noqa: PLR0917 (compiled code is called by position)
    distinct: NDArray[np.int64],
    times: NDArray[np.int64],
    runs: int,
    experts: int,
    n: np.int64,
    top_k: int,
    result: NDArray[np.float64],
) -> None:
    """Everything that follows from how many experts have which count, but divergences."""
    hot_above = 2 * n // experts
    cold_up_to = (n - 1) // (10 * experts)
    hot_load = hot = cold = topk_load = inequality = below = 0
    squares = entropy = 0.0
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
        if count > 0:
            p = count / n
            entropy -= repeated * (p * math.log(p))
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
    # E Σ p² = 1 + cv².
    result[19] = top_k * (1.0 + cv_squared) / experts


@compiled
def _divergences(
    p: NDArray[np.float64],
    q: NDArray[np.float64],
    times: NDArray[np.int64],
    size: int,
    work: Workspace,
) -> tuple[float, float]:
    """Jensen-Shannon (bits) and Kullback-Leibler (nats) divergence of p from q.

    With a = (p + q)/2, x = (p − q)/(p + q) and s = x², the logarithms of
    `moescope.processors.metrics.divergence.divergence_terms` become power series,
    js = a·s/(2 ln 2) · Σ sⁱ / ((2i + 1)(i + 1)) and kl = 2a·s · (1 + x(1 + x) · Σ sⁱ / (2i + 3)),
    which lose no digits at p ≈ q and take a few instructions for several experts at once. Where
    p and q differ by more than a factor of two, the logarithms themselves are taken.

    Args:
        p: float64; the first `size` entries are used.
        q: float64, likewise.
        times: int64, how often each entry counts.
        size: Number of entries.
        work: Overwritten.
    """
    x, s, js_series, kl_series = work
    for index in range(size):
        x[index] = (p[index] - q[index]) / (p[index] + q[index])
        s[index] = x[index] * x[index]
    for index in range(size):
        js_series[index] = 0.0
        kl_series[index] = 0.0
    for term in range(_SERIES_TERMS - 1, -1, -1):
        js_factor = 1.0 / ((2 * term + 1) * (term + 1))
        kl_factor = 1.0 / (2 * term + 3)
        for index in range(size):
            js_series[index] = js_series[index] * s[index] + js_factor
            kl_series[index] = kl_series[index] * s[index] + kl_factor
    js = 0.0
    kl = 0.0
    for index in range(size):
        a = 0.5 * (p[index] + q[index])
        ratio = x[index]
        if s[index] < _SERIES_LIMIT:
            js_part = a * s[index] * js_series[index]
            kl_part = 2.0 * a * s[index] * (1.0 + ratio * (1.0 + ratio) * kl_series[index])
        else:
            above = math.log(p[index] / a)
            below = math.log(q[index] / a)
            js_part = p[index] * above + q[index] * below
            kl_part = p[index] * (above - below) - (p[index] - q[index])
        js += times[index] * js_part
        kl += times[index] * kl_part
    return js * (0.5 / math.log(2.0)), kl


@compiled
def _shift(
    row: NDArray[np.int64],
    n: np.int64,
    q: NDArray[np.float64],
    p: NDArray[np.float64],
    work: Workspace,
) -> float:
    """Jensen-Shannon divergence of a row from q alone, as `_divergences`; `p` is overwritten."""
    experts = row.shape[0]
    if np.isnan(q[0]):
        return math.nan
    total = n + 0.5 * experts
    x, s, series, _ = work
    for expert in range(experts):
        p[expert] = (row[expert] + 0.5 * experts * q[expert]) / total
        x[expert] = (p[expert] - q[expert]) / (p[expert] + q[expert])
        s[expert] = x[expert] * x[expert]
        series[expert] = 0.0
    for term in range(_SERIES_TERMS - 1, -1, -1):
        factor = 1.0 / ((2 * term + 1) * (term + 1))
        for expert in range(experts):
            series[expert] = series[expert] * s[expert] + factor
    js = 0.0
    for expert in range(experts):
        a = 0.5 * (p[expert] + q[expert])
        if s[expert] < _SERIES_LIMIT:
            js += a * s[expert] * series[expert]
        else:
            js += p[expert] * math.log(p[expert] / a) + q[expert] * math.log(q[expert] / a)
    return js * (0.5 / math.log(2.0))


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
