"""All stored metrics of windows in one array, in the registry's column order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moescope.core.metrics import METRIC_NAMES, Reference
from moescope.processors.metrics.counts import count_metrics
from moescope.processors.metrics.divergence import divergence, uniform_reference
from moescope.processors.metrics.mix import mix_shift, routing_shift, scene_mix
from moescope.processors.metrics.noise import noise_floor, noise_floor_table, uniform_floor_table
from moescope.processors.metrics.passes import pass_imbalance
from moescope.processors.metrics.ranks import rank_imbalance
from moescope.processors.metrics.requests import positional_agreement, request_similarity
from moescope.processors.metrics.router import averages_of_sums, overlap_chance

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    from numpy.typing import ArrayLike, NDArray

    from moescope.core.batch import Placement
    from moescope.core.router_sums import PassSums, PositionCounts, SimilaritySums
    from moescope.core.thresholds import BaselineReference

    Sums = TypeVar("Sums")


def metric_values(
    counts: ArrayLike,
    top_k: int,
    *,
    dropped: ArrayLike | None = None,
    trailing: ArrayLike | None = None,
    baseline: BaselineReference | None = None,
    scene_tokens: Sequence[Mapping[str, int]] = (),
    router: NDArray[np.int64] | None = None,
    positions: Sequence[PositionCounts | None] = (),
    similarity: Sequence[Sequence[SimilaritySums]] = (),
    passes: Sequence[PassSums | None] = (),
    placement: Placement | None = None,
) -> NDArray[np.float64]:
    """Every registry metric of every window and layer.

    Args:
        counts: Integers [..., E]; with any of the arguments after `trailing`, [W, L, E].
        top_k: k.
        dropped: As `count_metrics`.
        trailing: Counts or distribution of the trailing reference, broadcasting with `counts`.
        baseline: Loads of the baseline by scene.
        scene_tokens: [W] tokens per scene of each window; empty: unknown.
        router: int64 [W, L, ROUTER_SUMS], or None.
        positions: [W] counts at sampled positions or None; or empty.
        similarity: [W] similarity panes of each window; or empty.
        passes: [W] sums over passes or None; or empty.
        placement: Of the experts on ranks, or None.

    Returns:
        float64 [..., M] in the order of `moescope.core.metrics.METRICS`; NaN is null, also
        wherever a window and layer has no assignments.

    Raises:
        InputError: As the functions of this package that compute the parts.
    """
    c = np.asarray(counts)
    columns = count_metrics(c, top_k, dropped=dropped)
    experts = c.shape[-1]
    tokens = c.sum(axis=-1) / top_k
    references = {Reference.UNIFORM: uniform_reference(experts)}
    floors = {Reference.UNIFORM: uniform_floor_table(experts, top_k)}
    if trailing is not None:
        given = np.asarray(trailing)
        references[Reference.TRAILING] = given
        floors[Reference.TRAILING] = noise_floor_table(given, top_k)
    for name, reference in references.items():
        distance = divergence(c, reference)
        for kind in ("js", "kl"):
            columns[f"{kind}_{name}"] = getattr(distance, kind)
            columns[f"{kind}_{name}_floor"] = noise_floor(getattr(floors[name], kind), tokens)
    if baseline is not None and scene_tokens:
        q = scene_mix(baseline, scene_tokens)
        columns["routing_shift"] = routing_shift(c, q)
        columns["mix_shift"] = mix_shift(baseline, q)
    columns["overlap_chance"] = overlap_chance(c, top_k)
    if router is not None:
        columns |= averages_of_sums(router, top_k)
    if positions:
        columns["positional_agreement"] = _where_known(
            positions, c.shape[1], lambda each: positional_agreement(each, top_k, *c.shape[1:])
        )
    if similarity:
        known = [panes or None for panes in similarity]
        columns["request_similarity"] = _where_known(known, c.shape[1], request_similarity)
    if passes:
        columns["pass_imbalance"], columns["pass_imbalance_max"] = (
            _where_known(passes, c.shape[1], value)
            for value in (
                lambda each: pass_imbalance(each)[0],
                lambda each: pass_imbalance(each)[1],
            )
        )
    if placement is not None:
        columns["rank_imbalance"] = rank_imbalance(c, top_k, placement.rank_of, placement.ranks)
    null = np.full(c.shape[:-1], np.nan)
    values = np.stack([columns.get(name, null) for name in METRIC_NAMES], axis=-1)
    values[tokens == 0] = np.nan
    return values


def _where_known(
    sums: Sequence[Sums | None], layers: int, value: Callable[[Sums], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """A value per window and layer from sums that some windows lack: float64 [W, L]."""
    null = np.full(layers, np.nan)
    return np.array([null if each is None else value(each) for each in sums])
