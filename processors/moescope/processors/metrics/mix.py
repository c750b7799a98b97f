"""What of a window's distance from the baseline is its traffic, and what is its router.

Each scene of the baseline has its own reference q_s, smoothed on its own. A window's **scene
mix** is q = Σ_s t_s q_s, with t_s its own share of tokens of scene s: the load that this traffic
would have had in the baseline. `routing_shift` is the window's distance from it, `mix_shift`
the distance of the mix from that of the baseline's own traffic.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from moescope.core.errors import InputError
from moescope.processors.metrics.divergence import (
    divergence,
    divergence_terms,
    smoothed_reference,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from moescope.core.thresholds import BaselineReference

UNKNOWN_MIX = -1
"""In `DistinctMixes.place`: a scene of the window is not in the reference, or none is known."""


class BaselineLoads(NamedTuple):
    """A baseline reference made ready for mixing.

    Attributes:
        scenes: Scene → smoothed load, float64 [L, E]; NaN at layers without assignments.
        own: float64 [L, E], the mix of the baseline's own traffic.
    """

    scenes: Mapping[str, NDArray[np.float64]]
    own: NDArray[np.float64]


class DistinctMixes(NamedTuple):
    """The few mixes of many windows.

    Attributes:
        place: int64 [W], the mix of each window, or `UNKNOWN_MIX`.
        q: float64 [D, L, E]; NaN at layers where one of the mixed scenes has no assignments.
    """

    place: NDArray[np.int64]
    q: NDArray[np.float64]


def baseline_loads(reference: BaselineReference) -> BaselineLoads:
    """Smooth each scene of a reference; worth keeping.

    Args:
        reference: Loads of the baseline by scene, and its tokens per scene.

    Raises:
        InputError: The reference holds no scene, or scenes of different shapes.
    """
    shapes = {counts.shape for counts in reference.scenes.values()}
    if len(shapes) != 1:
        raise InputError(
            "A baseline reference needs counts [layers, experts] of at least one scene, "
            "and the same shape for all.",
            why=f"Their shapes are {sorted(shapes)}." if shapes else "It holds none.",
        )
    scenes = {scene: smoothed_reference(counts) for scene, counts in reference.scenes.items()}
    mix = _lowest_terms(reference.tokens)
    known = mix and all(scene in scenes for scene, _ in mix)
    own = _mixed(scenes, mix) if known else np.full(shapes.pop(), np.nan)
    return BaselineLoads(scenes, own)


def distinct_mixes(
    loads: BaselineLoads, scene_tokens: Sequence[Mapping[str, int]]
) -> DistinctMixes:
    """The scene mix of each window, as `scene_mix`; windows of equal shares have one in common.

    Args:
        loads: Of the baseline.
        scene_tokens: [W] tokens per scene of each window.
    """
    mixes: dict[tuple[tuple[str, int], ...], int] = {}
    as_given: dict[tuple[tuple[str, int], ...], int] = {}
    place = np.empty(len(scene_tokens), np.int64)
    for window, tokens in enumerate(scene_tokens):
        given = tuple(tokens.items())
        if given not in as_given:
            mix = _lowest_terms(tokens)
            known = bool(mix) and all(scene in loads.scenes for scene, _ in mix)
            as_given[given] = mixes.setdefault(mix, len(mixes)) if known else UNKNOWN_MIX
        place[window] = as_given[given]
    q = [_mixed(loads.scenes, mix) for mix in mixes]
    return DistinctMixes(place, np.stack(q) if q else np.empty((0, *loads.own.shape)))


def scene_mix(
    reference: BaselineReference, scene_tokens: Sequence[Mapping[str, int]]
) -> NDArray[np.float64]:
    """The load that each window's traffic had in the baseline: q = Σ_s t_s q_s.

    Args:
        reference: Loads of the baseline by scene.
        scene_tokens: [W] tokens per scene of each window; scenes without tokens do not count.

    Returns:
        float64 [W, L, E], sums to 1. NaN for windows with a scene that the reference does not
        hold, or of unknown scenes, and at layers where a scene of the mix has no assignments.

    Raises:
        InputError: As `baseline_loads`.
    """
    place, q = distinct_mixes(baseline_loads(reference), scene_tokens)
    whole = np.full((len(place), *q.shape[1:]), np.nan)
    known = place != UNKNOWN_MIX
    whole[known] = q[place[known]]
    return whole


def routing_shift(counts: ArrayLike, q: ArrayLike) -> NDArray[np.float64]:
    """Distance of windows from the load that their traffic had in the baseline, in bits.

    Args:
        counts: Integers [..., E].
        q: float64, as `scene_mix` gives it; broadcasts with `counts`.

    Returns:
        float64 [...], the Jensen–Shannon divergence of the smoothed window; NaN for windows
        without assignments or without a mix.

    Raises:
        InputError: As `moescope.processors.metrics.divergence`.
    """
    return divergence(counts, np.asarray(q, np.float64)).js


def mix_shift(
    reference: BaselineReference | BaselineLoads, q: NDArray[np.float64]
) -> NDArray[np.float64]:
    """How far the traffic alone moves the load from the baseline's, in bits.

    Args:
        reference: Loads of the baseline by scene, and its tokens per scene; or made ready.
        q: float64 [..., L, E], as `scene_mix` gives it.

    Returns:
        float64 [..., L], the Jensen–Shannon divergence of the window's mix from the mix of the
        baseline's own traffic; NaN where either is unknown.

    Raises:
        InputError: As `baseline_loads`.
    """
    loads = reference if isinstance(reference, BaselineLoads) else baseline_loads(reference)
    terms, _ = divergence_terms(q, np.broadcast_to(loads.own, q.shape))
    js: NDArray[np.float64] = terms.sum(axis=-1)
    return js


def _lowest_terms(tokens: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Equal shares give equal keys, whatever the number of tokens and the order of scenes."""
    present = sorted((scene, number) for scene, number in tokens.items() if number > 0)
    common = math.gcd(*(number for _, number in present))
    return tuple((scene, number // common) for scene, number in present)


def _mixed(
    scenes: Mapping[str, NDArray[np.float64]], mix: Sequence[tuple[str, int]]
) -> NDArray[np.float64]:
    total = sum(number for _, number in mix)
    (first, number), *others = mix
    q = scenes[first] * (number / total)
    for scene, more in others:
        q += scenes[scene] * (more / total)
    return q
