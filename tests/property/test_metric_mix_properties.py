from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from oracles import metrics_plain as oracle

from moescope.core.metrics import BY_NAME
from moescope.core.thresholds import BaselineReference
from moescope.processors.metrics import mix_shift, routing_shift, scene_mix

if TYPE_CHECKING:
    from collections.abc import Mapping

SCENES = ("chat", "code", "json")
EXPERTS, TOP_K, LAYERS = 5, 2, 2

layer_counts = st.lists(st.integers(0, 400), min_size=EXPERTS, max_size=EXPERTS).filter(any)
scene_counts = st.lists(layer_counts, min_size=LAYERS, max_size=LAYERS)
traffic = st.dictionaries(st.sampled_from([*SCENES, "poem"]), st.integers(0, 50))


def _reference(
    counts: Mapping[str, list[list[int]]], tokens: Mapping[str, int]
) -> BaselineReference:
    return BaselineReference(
        scenes={scene: np.array(each) for scene, each in counts.items()}, tokens=dict(tokens)
    )


@examples(max_examples=40)
@given(
    st.fixed_dictionaries(dict.fromkeys(SCENES, scene_counts)),
    st.fixed_dictionaries(dict.fromkeys(SCENES, st.integers(1, 9))),
    st.lists(st.tuples(traffic, scene_counts), min_size=1, max_size=4),
)
def test_both_shifts_equal_the_formulas(
    counts: dict[str, list[list[int]]],
    baseline: dict[str, int],
    windows: list[tuple[dict[str, int], list[list[int]]]],
) -> None:
    """Scenes are smoothed one by one, mixed by the window's tokens, and compared exactly so."""
    reference = _reference(counts, baseline)
    q = scene_mix(reference, [tokens for tokens, _ in windows])
    routing = routing_shift(np.array([rows for _, rows in windows]), q)
    mixed = mix_shift(reference, q)
    for window, (tokens, rows) in enumerate(windows):
        for layer in range(LAYERS):
            of_layer = {scene: each[layer] for scene, each in counts.items()}
            expected = oracle.mix(of_layer, tokens)
            if expected is None:
                assert np.isnan(q[window, layer]).all()
                assert math.isnan(routing[window, layer])
                assert math.isnan(mixed[window, layer])
                continue
            own = oracle.mix(of_layer, baseline)
            assert own is not None
            js, _ = oracle.divergence(rows[layer], expected)
            assert q[window, layer] == pytest.approx([float(share) for share in expected])
            assert routing[window, layer] == pytest.approx(js, rel=1e-9, abs=1e-14)
            assert mixed[window, layer] == pytest.approx(
                oracle.js(expected, own), rel=1e-9, abs=1e-14
            )


@examples(max_examples=30)
@given(
    st.fixed_dictionaries(dict.fromkeys(SCENES, scene_counts)),
    st.fixed_dictionaries(dict.fromkeys(SCENES, st.integers(1, 9))),
    st.integers(1, 1_000),
)
def test_the_traffic_of_the_baseline_shifts_nothing(
    counts: dict[str, list[list[int]]], baseline: dict[str, int], factor: int
) -> None:
    """A window with the baseline's own mix, at any length and in any order, has mix shift 0."""
    reference = _reference(counts, baseline)
    same = {scene: factor * baseline[scene] for scene in reversed(SCENES)}
    assert not mix_shift(reference, scene_mix(reference, [same])).any()


@examples(max_examples=30)
@given(st.fixed_dictionaries(dict.fromkeys(SCENES, scene_counts)), traffic)
def test_no_shift_leaves_its_bounds(
    counts: dict[str, list[list[int]]], tokens: dict[str, int]
) -> None:
    """Shifts are bounded divergences, even between scenes that use different experts."""
    reference = _reference(counts, dict.fromkeys(SCENES, 1))
    q = scene_mix(reference, [tokens])
    shifts = (routing_shift(np.array([[[900, 900, 0, 0, 0]] * LAYERS]), q), mix_shift(reference, q))
    for name, shift in zip(("routing_shift", "mix_shift"), shifts, strict=True):
        low, high = BY_NAME[name].bounds(EXPERTS, TOP_K)
        known = shift[~np.isnan(shift)]
        assert ((known >= low) & (known <= high)).all()
