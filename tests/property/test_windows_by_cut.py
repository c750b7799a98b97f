from __future__ import annotations

import math
from random import Random
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.expected import Expected, expected_outcome, expected_panes, expected_values
from support.rolled_up import Outcome, roll_up
from support.streams import (
    LARGEST,
    NATURAL,
    ONE_ROW,
    Cut,
    Plan,
    cut_stream,
    make_stream,
    plans,
    source_records,
)

from moescope.core.histograms import SLOTS, bin_edges
from moescope.core.metrics import HISTOGRAM_METRICS, METRIC_NAMES
from moescope.processors.config import WindowConfig

CONFIG = WindowConfig(
    token=((4, 4), (8, 8), (16, 8)),
    time=((1_000_000, 1_000_000), (3_000_000, 3_000_000), (6_000_000, 2_000_000)),
    step=((2, 2), (4, 2)),
    row_budget=6,
    lag_ratio=0.6,
    similarity_requests=2,
    similarity_tokens=3,
)
MINUTE_US = 60_000_000


@given(plans())
@settings(max_examples=12)
def test_windows_do_not_depend_on_the_cut(plan: Plan) -> None:
    """The same rows cut three ways give the same windows, histograms, weights, references."""
    stream = make_stream(plan)
    first, *others = (
        roll_up(source_records(cut_stream(stream, cut)), CONFIG)
        for cut in (NATURAL, ONE_ROW, LARGEST)
    )
    for other in others:
        assert other.token == first.token
        assert other.values == first.values
        assert other.panes == first.panes
        assert other.positions == first.positions
        assert other.lags == first.lags
        assert other.similarity == first.similarity
        assert other.passes == first.passes
        assert other.histograms == first.histograms
        assert other.references == first.references


@given(plans(lagging=True), st.sampled_from([ONE_ROW, NATURAL, LARGEST, Cut(3, repeat=4)]))
@settings(max_examples=14)
def test_windows_equal_the_plain_roll_up(plan: Plan, cut: Cut) -> None:
    """Token windows, panes, accounts and metric values are what the plain-Python oracle says."""
    records = cut_stream(make_stream(plan), cut)
    found = roll_up(source_records(records), CONFIG)
    expected = expected_outcome(records, CONFIG)
    assert found.token == expected.token
    assert found.dead_letters == expected.dead_letters
    for what in ("records", "kept"):
        counted = sum(n for (counts, _), n in found.letter_counts.items() if counts == what)
        assert counted == len(expected.dead_letters)
    assert expected_panes(found.panes, CONFIG) == expected.panes
    assert found.positions == expected.positions
    assert found.lags == expected.lags
    assert found.similarity == expected.similarity
    assert found.passes == expected.passes
    assert {offset: _row_counts(a) for offset, a in found.accounts.items()} == expected.accounts
    _check_values(found, expected)
    _check_histograms(found)


@given(
    plans(lagging=True),
    st.sampled_from([NATURAL, LARGEST, Cut(3, repeat=4)]),
    st.integers(0, 2**32),
)
@settings(max_examples=14)
def test_commits_and_restarts_change_nothing(plan: Plan, cut: Cut, seed: int) -> None:
    """Commits anywhere, and restarts that read again from `replay_from`, give the same output."""
    records = source_records(cut_stream(make_stream(plan), cut))
    rng = Random(seed)
    rate = rng.choice([0.05, 0.3])
    numbers = range(3 * len(records))
    commits = {number for number in numbers if rng.random() < 0.3}
    restarts = {number for number in numbers if rng.random() < rate}
    assert roll_up(records, CONFIG, commits=commits, restarts=restarts) == roll_up(records, CONFIG)


def _row_counts(account: Any) -> tuple[int, ...]:
    return tuple(
        getattr(account, name)
        for name in (
            "rows", "accepted_rows", "context_rows", "padding_rows", "recomputed_rows",
            "stale_rows", "late_rows", "uncounted_phase_rows", "suspicious_pairs",
        )
    )  # fmt: skip


def _values(stored: bytes) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.frombuffer(stored).reshape(-1, len(METRIC_NAMES))


def _check_values(found: Outcome, expected: Expected) -> None:
    lanes = {one.lane.revision: one.lane for one in expected.partition.accepted}
    for window, stored in found.values:
        wanted = expected_values(window, lanes[window[0]], expected.references)
        for values, names in zip(_values(stored).tolist(), wanted, strict=True):
            by_name = dict(zip(METRIC_NAMES, values, strict=True))
            for name, value in names.items():
                if value is None:
                    assert math.isnan(by_name[name])
                else:
                    assert math.isclose(by_name[name], value, rel_tol=1e-9, abs_tol=1e-12)
            assert math.isnan(by_name["drop_rate"])


def _check_histograms(found: Outcome) -> None:
    """Each complete window, kept or not, is in one slot per metric and layer."""
    lanes = {(key.lane.revision, key.lane) for key in found.histograms}
    by_revision = dict(lanes)
    wanted: dict[tuple[Any, ...], Any] = {}
    for (window, stored), number in found.values.items():
        if not window[10]:
            continue
        minute = 0 if window[14] < 0 else window[14] // MINUTE_US * MINUTE_US
        lane = by_revision[window[0]]
        shape = (len(HISTOGRAM_METRICS), len(lane.layers), SLOTS)
        bins = wanted.setdefault((*window[:4], minute), np.zeros(shape, np.int64))
        for layer, values in enumerate(_values(stored).tolist()):
            for m, metric in enumerate(HISTOGRAM_METRICS):
                if not math.isnan(values[m]):
                    edges = bin_edges(metric, lane.experts, lane.top_k).tolist()
                    bins[m, layer, sum(values[m] >= edge for edge in edges)] += number
    assert {key: bins.tobytes() for key, bins in wanted.items()} == {
        (key.lane.revision, key.phase, key.size, key.stride, key.minute_us): bins
        for key, bins in found.histograms.items()
    }
