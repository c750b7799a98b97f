from __future__ import annotations

import numpy as np
import pytest

from moescope.core.errors import InputError
from moescope.core.thresholds import BaselineReference
from moescope.processors.metrics import (
    UNKNOWN_MIX,
    baseline_loads,
    distinct_mixes,
    mix_shift,
    routing_shift,
    scene_mix,
    smoothed_reference,
)

CHAT = np.array([[70, 20, 10, 0], [25, 25, 25, 25]])
CODE = np.array([[0, 10, 20, 70], [40, 30, 20, 10]])
REFERENCE = BaselineReference(scenes={"chat": CHAT, "code": CODE}, tokens={"chat": 3, "code": 1})


def test_the_mix_of_a_single_scene_is_that_scene() -> None:
    """A window of one scene is compared with exactly that scene's smoothed load."""
    q = scene_mix(REFERENCE, [{"code": 128}, {"chat": 1, "code": 0}])
    assert np.array_equal(q, smoothed_reference([CODE, CHAT]))


def test_windows_of_equal_shares_have_one_mix() -> None:
    """Thousands of windows need a handful of references, whatever their lengths."""
    tokens = [{"chat": 1, "code": 3}, {"code": 300, "chat": 100}, {"chat": 5}, {}, {"poem": 1}]
    mixes = distinct_mixes(baseline_loads(REFERENCE), tokens)
    assert mixes.place.tolist() == [0, 0, 1, UNKNOWN_MIX, UNKNOWN_MIX]
    assert mixes.q.shape == (2, 2, 4)


def test_more_of_one_scene_is_a_shift_of_the_mix_alone() -> None:
    """Traffic that turns to code moves mix shift, and routing shift only by chance."""
    tokens = [{"chat": 3_000, "code": 1_000}, {"chat": 1_000, "code": 3_000}]
    q = scene_mix(REFERENCE, tokens)
    counts = np.rint(q * 8_000).astype(np.int64)
    assert (routing_shift(counts, q) < 1e-6).all()
    mixed = mix_shift(REFERENCE, q)
    assert not mixed[0].any()
    assert mixed[1, 0] > 0.05


def test_another_router_is_a_shift_of_routing_alone() -> None:
    """The same traffic on swapped experts moves routing shift, and the mix not at all."""
    q = scene_mix(REFERENCE, [{"chat": 3, "code": 1}])
    swapped = np.rint(q * 8_000).astype(np.int64)[..., [2, 1, 0, 3]]
    assert routing_shift(swapped, q)[0, 0] > 0.05
    assert not mix_shift(REFERENCE, q).any()


def test_a_layer_that_a_scene_never_reached_is_null() -> None:
    """Nothing is known of such a layer: null, not uniform."""
    reference = BaselineReference(
        scenes={"chat": CHAT, "code": np.array([[1, 2, 3, 4], [0, 0, 0, 0]])},
        tokens={"chat": 1},
    )
    q = scene_mix(reference, [{"chat": 1, "code": 1}, {"chat": 1}])
    assert np.isnan(q[0, 1]).all()
    assert np.isnan(routing_shift(np.full((2, 2, 4), 5), q)).tolist() == [
        [False, True],
        [False, False],
    ]
    assert np.isnan(mix_shift(reference, q)).tolist() == [[False, True], [False, False]]


@pytest.mark.parametrize("scenes", [{}, {"chat": CHAT, "code": CODE[:1]}])
def test_a_misshapen_reference_is_refused(scenes: dict[str, np.ndarray]) -> None:
    """A reference that fits no model is a mistake, and says so."""
    with pytest.raises(InputError, match="at least one scene"):
        scene_mix(BaselineReference(scenes=scenes, tokens={}), [{"chat": 1}])
