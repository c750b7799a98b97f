from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from moescope.core.clock import NO_TIME
from moescope.core.thresholds import LineKey, LineSource, Standing, ThresholdScope, ThresholdVersion
from moescope.jobs.baselines import BaselineWindows
from moescope.jobs.calibration.contamination import suspect_units
from moescope.jobs.calibration.differences import has_moved
from moescope.jobs.calibration.lines import lines_of
from moescope.jobs.calibration.paging_series import paging_series
from moescope.jobs.calibration.references import cross_fitted_shifts, fold_reference
from moescope.jobs.calibration.sample import Sample, sampling_units
from moescope.processors.metrics import divergence

if TYPE_CHECKING:
    from numpy.typing import NDArray

SECOND_US = 1_000_000
LAYERS = 6
EXPERTS = 4


def texts(values: list[str]) -> NDArray[np.object_]:
    """A column of texts."""
    return np.array(values, np.object_)


def windows_of(requests: list[str], scenes: list[str], **changes: Any) -> BaselineWindows:
    """Token windows, one per second, of one lane."""
    number = len(requests)
    first = np.arange(number) * SECOND_US
    empty = texts([""] * number)
    fields: dict[str, Any] = {
        "phase": "decode", "kind": "token", "size": 8, "stride": 8, "scope_kind": "all",
        "first_us": first, "last_us": first, "close_us": first, "weight": np.ones(number),
        "scope_value": empty, "request": texts(requests), "task": empty, "node": empty,
        "scene": texts(scenes), "band": empty, "lane": empty,
        "scene_tokens": [{scene: 8} for scene in scenes],
        "counts": np.ones((number, LAYERS, EXPERTS), np.int64), "values": {},
    }  # fmt: skip
    return BaselineWindows(**(fields | changes))


def sample_of(windows: BaselineWindows, **values: NDArray[np.float64]) -> Sample:
    """Windows with values of metrics."""
    return Sample(windows=windows, units=sampling_units(windows, 600 * SECOND_US), values=values)


def key(scene: str = "") -> LineKey:
    """Key of the token windows."""
    return LineKey("decode", "token", 8, 8, "all", scene, "")


def gini_lines(units: dict[str, int], seed: int = 1) -> tuple[Any, NDArray[np.float64], Any]:
    """Lines of windows whose layers differ in level and spread; one window per request."""
    scenes = [scene for scene, number in units.items() for _ in range(number)]
    windows = windows_of([f"r{at}" for at in range(len(scenes))], scenes)
    raw = np.random.default_rng(seed).standard_normal((len(scenes), LAYERS))
    level = np.arange(LAYERS) * 10.0 + np.array([5.0 * (scene == "b") for scene in scenes])[:, None]
    values = level + raw * (1.0 + np.arange(LAYERS))
    return lines_of(sample_of(windows, gini=values), 29), values, windows


@pytest.mark.parametrize(
    ("units", "scene", "source", "standing"),
    [
        ({"a": 1000}, "a", LineSource.OWN, Standing.FIRM),
        ({"a": 299}, "a", LineSource.OWN, Standing.PROVISIONAL),
        ({"a": 100, "b": 250}, "a", LineSource.ALL_SCENES, Standing.PROVISIONAL),
        ({"a": 70}, "a", LineSource.LAYER_BAND, Standing.PROVISIONAL),
        ({"a": 40}, "a", LineSource.MODEL, Standing.PROVISIONAL),
    ],
)
def test_few_units_borrow_their_tail_from_the_next_wider_pool(
    units: dict[str, int], scene: str, source: LineSource, standing: Standing
) -> None:
    """Own windows, all scenes, neighbouring layers, all layers, as far as the units reach."""
    found, _, _ = gini_lines(units)
    lines = found[key(scene)]["gini"].lines
    assert (lines.source, lines.standing) == (source, standing)
    # The true P99 of layer l is 10 l + 2.33 (1 + l); borrowed or not, lines follow each layer.
    truth = 10.0 * np.arange(LAYERS) + 2.326 * (1.0 + np.arange(LAYERS))
    assert (np.abs(lines.red_high - truth) < 1.5 * (1.0 + np.arange(LAYERS))).all()
    assert (lines.red_high > lines.warn_high).all()


def test_values_equal_to_a_borrowed_line_are_not_past_it() -> None:
    """Such a line is computed from centre and spread, and may come out an error of rounding low."""
    rng = np.random.default_rng(8)
    values = np.round(0.3 + 0.1 * rng.standard_normal((250, LAYERS)), 2)
    windows = windows_of([f"r{at}" for at in range(250)], ["a"] * 250)
    lines = lines_of(sample_of(windows, gini=values), 29)[key("a")]["gini"].lines
    for line, rank in ((lines.warn_high, 0.9), (lines.red_high, 0.99)):
        # Layers share one tail, so that the share is that of all; ties only lower it.
        assert (values > line).mean() <= 1.0 - rank
        tied = np.isclose(values, line, rtol=0, atol=1e-7)
        assert tied.any()
        assert not (values > line)[tied].any()


def test_below_29_units_there_is_no_line() -> None:
    """28 requests say nothing about the one in ten that is worst."""
    assert key("a") not in gini_lines({"a": 28, "b": 40})[0]
    assert key("a") in gini_lines({"a": 29, "b": 40})[0]


def test_windows_of_one_request_are_one_unit() -> None:
    """A thousand windows of ten requests are ten units, and get no line."""
    windows = windows_of([f"r{at % 10}" for at in range(1000)], ["a"] * 1000)
    assert lines_of(sample_of(windows, gini=np.ones((1000, LAYERS))), 29) == {}


def test_a_scene_gets_lines_where_its_own_values_are() -> None:
    """Scene b lies 5 higher: its lines must not be those of the pool, nor the other way round."""
    found, values, windows = gini_lines({"a": 400, "b": 400})
    for scene in ("a", "b"):
        own = np.sort(values[windows.scene == scene], axis=0)
        np.testing.assert_array_equal(found[key(scene)]["gini"].lines.warn_high, own[360])
    whole = np.sort(values, axis=0)
    np.testing.assert_array_equal(found[key()]["gini"].lines.warn_high, whole[720])


def test_shifts_are_measured_against_the_other_folds() -> None:
    """Against the plain sum of all windows outside of the window's own fold."""
    rng = np.random.default_rng(3)
    counts = rng.integers(1, 50, (40, LAYERS, EXPERTS))
    windows = windows_of(["r"] * 40, ["a", "b"] * 20, counts=counts)
    reference = fold_reference([windows], 2, SECOND_US)
    assert reference is not None
    shifts = cross_fitted_shifts(windows, reference, SECOND_US)
    for window in (0, 7, 39):
        others = [
            other for other in range(40)
            if other % 5 != window % 5 and windows.scene[other] == windows.scene[window]
        ]  # fmt: skip
        expected = divergence(counts[window], counts[others].sum(axis=0)).js
        np.testing.assert_allclose(shifts["routing_shift"][window], expected, rtol=1e-9)
    whole = reference.whole
    assert whole is not None
    np.testing.assert_array_equal(whole.scenes["a"], counts[::2].sum(axis=0))


def test_a_window_over_two_folds_leaves_both_out() -> None:
    """A window that reaches into the next block would otherwise meet its own end."""
    counts = np.ones((10, LAYERS, EXPERTS), np.int64)
    first = np.arange(10) * SECOND_US
    last = first.copy()
    last[0] += SECOND_US
    windows = windows_of(["r"] * 10, ["a"] * 10, counts=counts, last_us=last)
    reference = fold_reference([windows], 2, SECOND_US)
    assert reference is not None
    left = reference.without(0b11)
    assert left is not None
    # Blocks 0, 1, 5 and 6 are in folds 0 and 1.
    assert left.scenes["a"][0, 0] == 6


def test_windows_without_times_are_folded_by_request() -> None:
    """An import has no event times; its windows still must not meet themselves."""
    none = np.full(40, NO_TIME)
    counts = np.random.default_rng(4).integers(1, 50, (40, LAYERS, EXPERTS))
    windows = windows_of(
        [f"r{at}" for at in range(40)], ["a"] * 40, counts=counts, first_us=none, last_us=none
    )
    reference = fold_reference([windows], 2, SECOND_US)
    assert reference is not None
    assert len(reference.parts) > 1
    assert not np.isnan(cross_fitted_shifts(windows, reference, SECOND_US)["routing_shift"]).any()


@pytest.mark.parametrize(("bad", "trimmed"), [(1, True), (5, False)])
def test_few_foreign_units_go_and_many_are_only_flagged(bad: int, trimmed: bool) -> None:
    """0.1 % of the units may go; if more look foreign, the metric or the baseline is to blame."""
    values = np.random.default_rng(5).lognormal(0.0, 0.2, (2000, LAYERS))
    values[:bad] *= 30.0
    windows = windows_of([f"r{at}" for at in range(2000)], ["a"] * 2000)
    found = suspect_units(sample_of(windows, gini=values))
    assert (len(found.units), found.trimmed) == (bad, trimmed)


def test_exponential_values_are_not_taken_for_faults() -> None:
    """A filter on the plain scale would cut the tail that the line is about."""
    values = np.random.default_rng(6).exponential(1.0, (2000, LAYERS)) + 1e-9
    windows = windows_of([f"r{at}" for at in range(2000)], ["a"] * 2000)
    assert len(suspect_units(sample_of(windows, gini=values)).units) == 0


def test_paging_blocks_hold_the_worst_of_each_slot() -> None:
    """Per 5 s the greatest exceedance over windows, layers and metrics; 0 where few are red."""
    number = 300
    rng = np.random.default_rng(7)
    values = rng.random((number, LAYERS))
    windows = windows_of([f"r{at}" for at in range(number)], ["a"] * number)
    sample = sample_of(windows, gini=values)
    lines = lines_of(sample, 29)
    version = ThresholdVersion(
        version="", scope=ThresholdScope("m", "r", "model", "full", 1.0),
        layers=tuple(range(LAYERS)), experts=EXPERTS, top_k=2, references={},
        lines={each: {"gini": found["gini"].lines} for each, found in lines.items()},
    )  # fmt: skip
    (series,) = paging_series([sample], version, 60 * SECOND_US)
    assert (series.family, len(series.blocks), series.scopes) == ("load", 5, 1)
    own = lines[key("a")]["gini"].lines
    past = (values - own.red_high) / own.spread
    by_slot = past.max(axis=1).reshape(5, 12, 5)
    few = (by_slot > 0).sum(axis=2) < 3  # as many as a quarter, and at least three
    expected = np.where(few, np.minimum(by_slot.max(axis=2), 0), by_slot.max(axis=2))
    assert few.any()
    np.testing.assert_allclose(np.stack(series.blocks), expected)


def test_small_and_uncertain_moves_do_not_hold_a_version_back() -> None:
    """More than 10 % and more than 3 standard errors, both, or nobody has to look."""
    assert not has_moved(1.0, 1.09, 0.001)
    assert not has_moved(1.0, 1.5, 0.2)
    assert has_moved(1.0, 1.11, 0.03)
    assert has_moved(0.0, 0.1, 0.0)
