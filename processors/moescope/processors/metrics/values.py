"""All stored metrics of windows in one array, in the registry's column order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moescope.core.metrics import METRIC_NAMES, Reference
from moescope.processors.metrics.counts import count_metrics
from moescope.processors.metrics.divergence import divergence, uniform_reference
from moescope.processors.metrics.noise import noise_floor, noise_floor_table, uniform_floor_table

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def metric_values(
    counts: ArrayLike,
    top_k: int,
    *,
    dropped: ArrayLike | None = None,
    trailing: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Every registry metric of every window and layer.

    Args:
        counts: Integers [..., E].
        top_k: k.
        dropped: As `count_metrics`.
        trailing: Counts or distribution of the trailing reference, broadcasting with `counts`.

    Returns:
        float64 [..., M] in the order of `moescope.core.metrics.METRICS`; NaN is null.

    Raises:
        InputError: As `count_metrics` and `divergence`.
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
    null = np.full(c.shape[:-1], np.nan)
    return np.stack([columns.get(name, null) for name in METRIC_NAMES], axis=-1)
