"""What a node's rows are made of, to know what its lost rows would have been."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moescope.core.vocabulary import HEALTH_PHASES, UNCOUNTED_FLAGS, UNKNOWN_SCENE, Phase

if TYPE_CHECKING:
    from moescope.core.batch import RoutingBatch

Mix = dict[tuple[int, str], int]
"""(phase, scene) → rows."""


def mix_of(batch: RoutingBatch) -> Mix:
    """Rows of a batch that can count, by phase and scene; empty for a heartbeat."""
    rows = batch.tokens if batch.tokens is not None else batch.token_blocks
    if rows is None or not len(rows):
        return {}
    counted = np.flatnonzero((rows.flags & int(UNCOUNTED_FLAGS)) == 0)
    codes = rows.request[counted].astype(np.int64) * len(Phase) + rows.phase[counted]
    weight = None if batch.token_blocks is None else batch.token_blocks.tokens[counted]
    sums = np.bincount(codes, weight, len(batch.requests) * len(Phase))
    mix: Mix = {}
    for code in np.flatnonzero(sums).tolist():
        request, phase = divmod(code, len(Phase))
        if phase in HEALTH_PHASES:
            key = (phase, batch.requests.scenes[request] or UNKNOWN_SCENE)
            mix[key] = mix.get(key, 0) + int(sums[code])
    return mix


def spread(total: int, mix: Mix) -> Mix:
    """Divide rows in proportion to a mix; what does not divide goes to the largest remainders.

    Without a mix everything is prefill of an unknown scene: there is nothing to go by.
    """
    if not mix:
        return {(int(Phase.PREFILL), UNKNOWN_SCENE): total}
    whole = sum(mix.values())
    shares = {key: total * rows // whole for key, rows in mix.items()}
    by_remainder = sorted(mix, key=lambda key: (-(total * mix[key] % whole), key))
    for key in by_remainder[: total - sum(shares.values())]:
        shares[key] += 1
    return shares
