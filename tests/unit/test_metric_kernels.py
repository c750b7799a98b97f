from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from moescope.core.errors import InputError
from moescope.core.histograms import NO_SLOT, SLOTS, bin_index
from moescope.core.metrics import DROPS_UNKNOWN, HISTOGRAM_METRICS, METRIC_NAMES
from moescope.core.thresholds import BaselineReference
from moescope.processors.finish_kernel import finish_counts, layer_references
from moescope.processors.finish_rows import KERNEL_ORDER
from moescope.processors.histogram_kernel import (
    NO_HISTOGRAM,
    add_to_histograms,
    empty_histograms,
)
from moescope.processors.metrics import DistinctMixes, baseline_loads, distinct_mixes, metric_values

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Counts = NDArray[np.unsignedinteger[Any]]

INTEGER_METRICS = [
    METRIC_NAMES.index(name) for name in ("hot_expert_share", "cold_expert_share", "working_set")
]


def _windows(windows: int, layers: int, experts: int, scale: int, dtype: Any) -> Counts:
    rng = np.random.default_rng(experts)
    shares = rng.dirichlet(np.full(experts, 0.5), size=(windows, layers))
    return (shares * scale).astype(dtype)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
@pytest.mark.parametrize("scale", [40, 1_000, 60_000])
def test_kernel_equals_numpy(dtype: Any, scale: int) -> None:
    """Compiled and vectorised arithmetic agree, for small counts and for large ones."""
    counts = _windows(9, 4, 48, scale, dtype)
    reference = counts.sum(axis=0).astype(np.int64)
    dropped = (counts.sum(axis=-1) // 5).astype(np.uint64)
    baseline = BaselineReference(
        scenes={"a": reference, "b": reference[::-1]}, tokens={"a": 1, "b": 0}
    )
    scenes = [{"a": 1}, {"b": 2}, {"a": 1, "b": 1}, {"c": 1}, {}] * 2
    expected = metric_values(
        counts, 6, dropped=dropped, trailing=reference, baseline=baseline, scene_tokens=scenes[:9]
    )
    expected[..., METRIC_NAMES.index("mix_shift")] = np.nan
    actual = finish_counts(
        counts,
        6,
        dropped=dropped,
        trailing=layer_references(reference, 6),
        mixes=distinct_mixes(baseline_loads(baseline), scenes[:9]),
    )
    shift = actual[..., METRIC_NAMES.index("routing_shift")]
    assert np.isnan(shift[:, 0]).tolist() == [not each or "c" in each for each in scenes[:9]]
    assert actual.shape == (9, 4, len(METRIC_NAMES))
    assert np.allclose(actual, expected, rtol=1e-12, atol=1e-15, equal_nan=True)
    assert np.array_equal(actual[..., INTEGER_METRICS], expected[..., INTEGER_METRICS])


def test_kernel_equals_numpy_at_the_largest_window() -> None:
    """Integer arithmetic does not overflow at 2^46 assignments."""
    counts = np.array([[[2**45, 2**44, 2**44 - 2, 1, 1]]], np.uint64)
    expected = metric_values(counts, 1)
    assert np.allclose(finish_counts(counts, 1), expected, rtol=1e-12, equal_nan=True)


def test_missing_parts_are_null() -> None:
    """Empty windows, unknown drops and layers without a reference give NaN, and nothing else."""
    counts = np.array([[[4, 4, 4, 4], [8, 8, 0, 0]], [[0, 0, 0, 0], [5, 3, 4, 4]]], np.uint32)
    reference = layer_references(np.array([[1, 2, 3, 4], [0, 0, 0, 0]]), 2)
    dropped = np.array([[1, DROPS_UNKNOWN], [0, 17]], np.uint64)
    values = finish_counts(counts, 2, dropped=dropped, trailing=reference)
    null = {
        (w, layer): {METRIC_NAMES[m] for m in np.flatnonzero(np.isnan(values[w, layer]))}
        for w in range(2)
        for layer in range(2)
    }
    trailing = {"js_trailing", "kl_trailing", "js_trailing_floor", "kl_trailing_floor"}
    elsewhere = set(METRIC_NAMES) - set(KERNEL_ORDER) | {"routing_shift"}
    assert null[0, 0] == elsewhere
    assert null[0, 1] == elsewhere | trailing | {"drop_rate"}
    assert null[1, 0] == set(METRIC_NAMES)
    assert null[1, 1] == elsewhere | trailing | {"drop_rate"}
    assert values[0, 0, METRIC_NAMES.index("drop_rate")] == 1 / 16


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    """Windows finish to the same bits alone, in any group, and from several threads."""
    counts = _windows(12, 3, 32, 500, np.uint32)
    reference = layer_references(counts.sum(axis=0).astype(np.int64), 4)
    together = finish_counts(counts, 4, trailing=reference)
    with ThreadPoolExecutor(2) as pool:
        alone = list(
            pool.map(lambda w: finish_counts(counts[w : w + 1], 4, trailing=reference), range(12))
        )
    assert np.array_equal(np.concatenate(alone), together, equal_nan=True)
    strided = finish_counts(counts[::2], 4, trailing=reference)
    assert np.array_equal(strided, together[::2], equal_nan=True)


def test_no_windows() -> None:
    """A group may be empty."""
    assert finish_counts(np.zeros((0, 2, 8), np.uint32), 2).shape == (0, 2, len(METRIC_NAMES))


@pytest.mark.parametrize(
    ("counts", "arguments", "message"),
    [
        (np.zeros((2, 8), np.uint32), {}, "windows, layers, experts"),
        (np.zeros((1, 2, 8), np.int64), {}, "uint16, uint32 or uint64"),
        (np.zeros((1, 2, 8), np.uint32), {"top_k": 9}, "between 1 and E = 8"),
        (np.zeros((1, 2, 8), np.uint32), {"dropped": np.zeros((2, 1), np.uint64)}, "windows, lay"),
        (np.zeros((1, 2, 8), np.uint32), {"dropped": np.zeros((1, 2), np.int64)}, "uint64"),
        (
            np.zeros((1, 2, 8), np.uint32),
            {"trailing": layer_references(np.ones((3, 8), np.int64), 2)},
            "layers and experts",
        ),
        (
            np.zeros((1, 2, 8), np.uint32),
            {"mixes": DistinctMixes(np.zeros(2, np.int64), np.ones((1, 2, 8)))},
            "windows, layers and experts",
        ),
        (
            np.zeros((1, 2, 8), np.uint32),
            {"mixes": DistinctMixes(np.zeros(1, np.int64), np.ones((1, 3, 8)))},
            "windows, layers and experts",
        ),
        (
            np.zeros((1, 2, 8), np.uint32),
            {"mixes": DistinctMixes(np.ones(1, np.int64), np.ones((1, 2, 8)))},
            "has mix 1",
        ),
    ],
)
def test_misfits_are_refused(counts: Any, arguments: dict[str, Any], message: str) -> None:
    """Compiled code reads memory unchecked, so shapes and types are checked before."""
    with pytest.raises(InputError, match=message):
        finish_counts(counts, **{"top_k": 2, **arguments})


def test_histograms_equal_the_bins_of_each_value() -> None:
    """The compiled pass puts every value where `bin_index` says, into its window's histogram."""
    counts = _windows(30, 2, 16, 300, np.uint32)
    counts[3] = 0
    values = finish_counts(
        counts, 2, trailing=layer_references(counts.sum(axis=0).astype(np.int64), 2)
    )
    values[5, 0, :] = 1e9
    values[6, 1, :] = -1.0
    histogram = np.arange(30) % 3 - 1
    assert NO_HISTOGRAM in histogram
    increments = empty_histograms(2, layers=2)
    add_to_histograms(increments, values, histogram, 16, 2)
    expected = np.zeros_like(increments)
    for h, metric in enumerate(HISTOGRAM_METRICS):
        slots = bin_index(metric, values[..., METRIC_NAMES.index(metric.name)], 16, 2)
        for window, layer in np.argwhere(slots != NO_SLOT):
            if histogram[window] != NO_HISTOGRAM:
                expected[histogram[window], h, layer, slots[window, layer]] += 1
    assert np.array_equal(increments, expected)
    assert increments.sum() > 0


def test_a_correction_takes_back_what_was_added() -> None:
    """A window that finishes again leaves no trace of its first values."""
    values = finish_counts(_windows(4, 2, 16, 300, np.uint32), 2)
    increments = empty_histograms(1, layers=2)
    add_to_histograms(increments, values, np.zeros(4, np.int64), 16, 2)
    add_to_histograms(increments, values, np.zeros(4, np.int64), 16, 2, weight=-1)
    assert not increments.any()


@pytest.mark.parametrize(
    ("increments", "histogram"),
    [
        (np.zeros((1, 3, 2, SLOTS), np.int64), [0, 0]),
        (empty_histograms(1, layers=1), [0, 0]),
        (empty_histograms(1, layers=2), [0]),
        (empty_histograms(1, layers=2), [0, 1]),
        (empty_histograms(1, layers=2), [0, -2]),
    ],
)
def test_misfitting_histograms_are_refused(
    increments: NDArray[np.int64], histogram: list[int]
) -> None:
    """Compiled code writes memory unchecked, so shapes and indices are checked before."""
    values = np.zeros((2, 2, len(METRIC_NAMES)))
    with pytest.raises(InputError, match=r"do not fit|not between"):
        add_to_histograms(increments, values, np.array(histogram), 16, 2)


def test_kernels_compile_where_nothing_can_be_cached(tmp_path: Path) -> None:
    """A read-only install without a home directory is slower to start, not broken."""
    script = tmp_path / "uncached.py"
    script.write_text(
        "from moescope.processors.compilation import compiled\n"
        "@compiled\n"
        "def twice(x):\n"
        "    return 2 * x\n"
        "print(twice(21), twice.stats.cache_path)\n"
    )
    # This locator serves notebooks only, so none is left for a plain file.
    environment = {**os.environ, "NUMBA_CACHE_LOCATOR_CLASSES": "IPythonCacheLocator"}
    answer = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, env=environment
    )
    assert answer.stdout.split() == ["42", "None"]
