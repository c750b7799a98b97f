from __future__ import annotations

import numpy as np
import pytest
from support.judged_groups import (
    LANE,
    book_of,
    group_of,
    line_key,
    metric_lines,
    replace_book,
    version_of,
)

from moescope.core.batch import Placement
from moescope.core.clock import NO_TIME
from moescope.core.metrics import JUDGED_METRICS, METRIC_NAMES
from moescope.core.router_sums import (
    FIXED_POINT,
    LAGS,
    ROUTER_SUMS,
    LagSums,
    PassSums,
    PositionCounts,
    SimilaritySums,
)
from moescope.core.thresholds import BaselineReference, ThresholdBook
from moescope.core.vocabulary import ScopeKind, WindowKind
from moescope.processors.finish import WindowFinisher
from moescope.processors.metrics import metric_values
from moescope.processors.remembering import Remembered

LAYERS, EXPERTS = len(LANE.layers), LANE.experts
BORDER_US = 2_000_000


def _reference(seed: int) -> BaselineReference:
    rng = np.random.default_rng(seed)
    return BaselineReference(
        scenes={scene: rng.integers(1, 90, (LAYERS, EXPERTS)) for scene in ("chat", "code")},
        tokens={"chat": 3, "code": 1},
    )


def _column(name: str) -> int:
    return METRIC_NAMES.index(name)


def _bit(name: str) -> int:
    return 1 << [metric.name for metric in JUDGED_METRICS].index(name)


def test_values_of_a_shared_window_equal_the_plain_arithmetic() -> None:
    """Every source of a window reaches its metrics, across a change of the baseline in force."""
    rng = np.random.default_rng(3)
    windows = 4
    counts = rng.integers(0, 30, (windows, LAYERS, EXPERTS)).astype(np.uint32)
    counts[0, 1] = 0
    router = rng.integers(0, 9, (windows, LAYERS, ROUTER_SUMS)) * FIXED_POINT
    positions = PositionCounts(index=np.array([0, 1, 7, 14]), count=np.array([2, 3, 1, 5]))
    pane = SimilaritySums(
        start_us=0,
        size_us=1_000_000,
        weighted=rng.integers(0, 5 * FIXED_POINT, (LAYERS, EXPERTS)),
        squares=np.full(LAYERS, FIXED_POINT),
        requests=np.full(LAYERS, 3),
        left_out=np.zeros(LAYERS, np.int64),
    )
    passes = PassSums(*(rng.integers(0, 9, LAYERS) * scale for scale in (1, 2**20, 2**20)))
    rank_of = rng.integers(0, 2, (LAYERS, EXPERTS)).astype(np.uint16)
    placement = Placement(version=1, ranks=2, rank_of=rank_of)
    scenes = [{"chat": 7}, {"chat": 1, "code": 1}, {"code": 5, "poem": 1}, {"code": 2}]
    group = group_of(
        windows,
        kind=WindowKind.TIME,
        counts=counts,
        scene_tokens=scenes,
        router=router,
        positions=[None, positions, positions, None],
        similarity=[[], [pane], [], [pane, pane]],
        passes=[None, passes, passes, None],
        placement=placement,
        placement_id="p",
    )
    references = [_reference(1), _reference(2)]
    book = book_of(
        (0, version_of({}, "t-1", {"decode": references[0]})),
        (BORDER_US, version_of({}, "t-2", {"decode": references[1]})),
    )
    finished, _ = WindowFinisher(book)(group)
    for window in range(windows):
        chosen = slice(window, window + 1)
        expected = metric_values(
            counts[chosen],
            LANE.top_k,
            dropped=group.dropped[chosen],
            baseline=references[0 if group.close_time_us[window] < BORDER_US else 1],
            scene_tokens=scenes[chosen],
            router=router[chosen],
            positions=group.positions[chosen],
            similarity=group.similarity[chosen],
            passes=group.passes[chosen],
            placement=placement,
        )
        np.testing.assert_allclose(
            finished.values[chosen], expected, rtol=1e-12, atol=1e-15, equal_nan=True
        )
    assert np.isnan(finished.values[0, 1]).all()
    assert not np.isnan(finished.values[1, :, _column("routing_shift")]).any()
    assert np.isnan(finished.values[2, :, _column("mix_shift")]).all()


def test_nothing_is_judged_without_a_book_or_a_version() -> None:
    """Until something is calibrated there are values, and no verdict."""
    group = group_of(2, scene_tokens=[{"chat": 4}] * 2)
    for finisher in (
        WindowFinisher(),
        WindowFinisher(ThresholdBook()),
        WindowFinisher(book_of((9_000_000, version_of({})))),
    ):
        finished, _ = finisher(group)
        assert finished.judgement is None
        assert np.isnan(finished.values[..., _column("routing_shift")]).all()
        assert finished.group is group


def test_a_layer_with_too_few_sound_rows_is_not_held_against_lines() -> None:
    """One token at a layer would look like a fault of the whole window; its values stay."""
    book = book_of((0, version_of({line_key(): {"gini": metric_lines(red_high=[-1.0, -1.0])}})))
    counts = np.zeros((1, LAYERS, EXPERTS), np.uint32)
    counts[0, 0, : LANE.top_k] = 16
    counts[0, 1, : LANE.top_k] = 1
    group = group_of(1, counts=counts, seen=np.array([16]), expected=np.array([16]))
    finished, _ = WindowFinisher(book)(group)
    assert finished.judgement is not None
    assert finished.judgement.judged.tolist() == [[_bit("gini"), 0]]
    assert finished.judgement.red.tolist() == [[_bit("gini"), 0]]
    assert {each.layer for each in finished.judgement.exceedances.values()} == {LANE.layers[0]}
    assert not np.isnan(finished.values[0, :, _column("gini")]).any()
    all_of_it = WindowFinisher(book, minimum_coverage=0.0)(group)[0].judgement
    assert all_of_it is not None
    assert all_of_it.red.tolist() == [[_bit("gini")] * 2]


def test_a_layer_is_held_against_what_its_window_should_have_seen() -> None:
    """Rows lost and rows suspicious add up: a layer that is insufficient cannot page either."""
    book = book_of(
        (
            0,
            version_of(
                {
                    line_key(band="0:6", kind="time"): {
                        "gini": metric_lines(red_high=[-1.0] * LAYERS)
                    }
                }
            ),
        )
    )
    counts = np.zeros((2, LAYERS, EXPERTS), np.uint32)
    counts[:, 0, : LANE.top_k] = 95
    counts[:, 1, : LANE.top_k] = 89  # of 95 seen enough, of 100 expected not
    counts[1, 1, : LANE.top_k] = 90
    group = group_of(
        2, kind=WindowKind.TIME, counts=counts, seen=np.array([95, 95]),
        expected=np.array([100, 100]), lost=np.array([5, 5]), complete=np.zeros(2, np.bool_),
    )  # fmt: skip
    judgement = WindowFinisher(book)(group)[0].judgement
    assert judgement is not None
    assert judgement.red.tolist() == [[_bit("gini"), 0], [_bit("gini")] * 2]


def test_layers_of_an_insufficient_window_are_held_against_what_it_saw() -> None:
    """What little a window saw is told; a layer that lost some of that, too, says nothing."""
    line = {"gini": metric_lines(red_high=[-1.0] * LAYERS)}
    book = book_of((0, version_of({line_key(band="0:5", kind="time"): line})))
    counts = np.zeros((2, LAYERS, EXPERTS), np.uint32)
    counts[:, 0, : LANE.top_k] = 50
    counts[0, 1, : LANE.top_k] = 45
    counts[1, 1, : LANE.top_k] = 44
    group = group_of(
        2, kind=WindowKind.TIME, counts=counts, seen=np.array([50, 50]),
        expected=np.array([100, 100]), lost=np.array([50, 50]), complete=np.zeros(2, np.bool_),
    )  # fmt: skip
    judgement = WindowFinisher(book)(group)[0].judgement
    assert judgement is not None
    assert judgement.red.tolist() == [[_bit("gini")] * 2, [_bit("gini"), 0]]


def test_a_group_may_span_an_activation() -> None:
    """Each window has the version in force when it closed; one without a time has none."""
    high = {line_key(): {"gini": metric_lines(red_high=[9.0, 9.0])}}
    low = {line_key(): {"gini": metric_lines(red_high=[-1.0, 9.0])}}
    book = book_of((0, version_of(high)), (BORDER_US, version_of(low, "t-2")))
    times = np.array([NO_TIME, BORDER_US - 1, BORDER_US])
    judgement = WindowFinisher(book)(group_of(3, close_time_us=times))[0].judgement
    assert judgement is not None
    assert list(judgement.version) == ["", "t-1", "t-2"]
    assert judgement.judged.tolist() == [[0, 0], [_bit("gini")] * 2, [_bit("gini")] * 2]
    assert judgement.red.tolist() == [[0, 0], [0, 0], [_bit("gini"), 0]]
    assert np.array_equal(judgement.warn, judgement.red)
    assert {(key.version, each.red_windows) for key, each in judgement.exceedances.items()} == {
        ("t-1", 0),
        ("t-2", 1),
    }


def test_a_new_calibration_replaces_what_was_prepared() -> None:
    """Lines are remembered by calibration, never mistaken for those of another one."""
    book = book_of((0, version_of({line_key(): {"gini": metric_lines(red_high=[9.0] * 2)}})))
    finisher = WindowFinisher(book)
    group = group_of(1)
    first = finisher(group)[0].judgement
    lines = {"gini": metric_lines(red_high=[-1.0] * 2)}
    replace_book(book, (0, version_of({line_key(): lines})))
    second = finisher(group)[0].judgement
    assert first is not None
    assert second is not None
    assert (bool(first.red.any()), bool(second.red.all())) == (False, True)


@pytest.mark.parametrize(
    ("metric", "side", "weights"),
    [
        ("gini", "red_high", [1.0, 1.0, 0.0]),
        ("gini", "warn_high", [0.0, 8.0, 0.0]),
        ("jain_index", "red_low", [0.0, 8.0, 0.0]),
    ],
)
def test_red_token_windows_are_stored_each_for_itself(
    metric: str, side: str, weights: list[float]
) -> None:
    """All red windows are kept, so none stands for others; what never alerts keeps none."""
    past = 9.0 if side.endswith("low") else -1.0
    lines = metric_lines(**{side: [np.nan, past]})
    finisher = WindowFinisher(book_of((0, version_of({line_key(): {metric: lines}}))))
    group = group_of(3, weight=np.array([0.0, 8.0, 0.0]), complete=np.array([True, True, False]))
    finished, _ = finisher(group)
    assert finished.group.weight.tolist() == weights
    assert group.weight.tolist() == [0.0, 8.0, 0.0]


def test_windows_of_a_scene_have_lines_of_their_own() -> None:
    """Scope `scene` is judged by the scene's lines, which no other scope's lines complete."""
    own = {"gini": metric_lines(red_high=[-1.0, -1.0])}
    lines = {line_key("chat")._replace(scope_kind="scene", kind="time", band="0:2"): own}
    finisher = WindowFinisher(book_of((0, version_of(lines))))
    group = group_of(
        1, kind=WindowKind.TIME, scope_kind=ScopeKind.SCENE, scope_value="chat", scene_tokens=[{}]
    )
    judgement = finisher(group)[0].judgement
    assert judgement is not None
    assert (judgement.red == _bit("gini")).all()
    group = group_of(
        1, kind=WindowKind.TIME, scope_kind=ScopeKind.SCENE, scope_value="code", scene_tokens=[{}]
    )
    judgement = finisher(group)[0].judgement
    assert judgement is not None
    assert not judgement.judged.any()


def test_lag_overlap_only_where_requests_were_sampled() -> None:
    """A window without sampled requests has null lags; a group without any has none."""
    assert WindowFinisher()(group_of(2))[0].lag_overlap is None
    lags = LagSums(
        overlap=np.full((LAYERS, LAGS), 6, np.int64), pairs=np.full((LAYERS, LAGS), 4, np.int64)
    )
    overlap = WindowFinisher()(group_of(2, lags=[None, lags]))[0].lag_overlap
    assert overlap is not None
    assert np.isnan(overlap[0]).all()
    assert (overlap[1] == 6 / (4 * LANE.top_k)).all()


def test_prepared_things_are_forgotten_in_order_of_use() -> None:
    """A finisher that runs for months keeps a bounded number of references."""
    made: list[int] = []

    def make(key: int) -> int:
        made.append(key)
        return 10 * key

    remembered = Remembered(make, 2)
    assert [remembered[key] for key in (1, 2, 1, 3, 1, 2)] == [10, 20, 10, 30, 10, 20]
    assert made == [1, 2, 3, 2]
