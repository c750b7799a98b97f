"""Which assignments a family drops for want of room at an expert: one row behind the other.

The families compute it with sums over masks; here someone stands at each expert's door and counts.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


class Admitted(NamedTuple):
    """What becomes of each row's choices, in rank order.

    Attributes:
        ids: [N, k].
        dropped: bool [N, k].
        weights: [N, k]; 0 where it is dropped by a family that does not compute it then.
    """

    ids: NDArray[np.int64]
    dropped: NDArray[np.bool_]
    weights: NDArray[np.float64]


def admitted_by_switch(
    shares: NDArray[np.float64], sequences: int, capacity: int, *, counts_rows_alone: bool
) -> Admitted:
    """Switch: an expert takes so many rows of each sequence, the first ones.

    Args:
        shares: [N, E], sequence by sequence, padding too: it takes room like any other row.
        sequences: Their number.
        capacity: Of an expert.
        counts_rows_alone: Each row counts as a sequence of its own, as in transformers 5.0 to 5.17.
    """
    best = shares.argmax(-1)
    dropped = []
    for sequence in np.split(best, len(best) if counts_rows_alone else sequences):
        at_door: Counter[int] = Counter()
        for expert in sequence.tolist():
            at_door[expert] += 1
            dropped.append(at_door[expert] > capacity)
    return Admitted(best[:, None], np.array(dropped)[:, None], shares.max(-1)[:, None])


class Nllb(NamedTuple):
    """NLLB's settings for its capacity.

    Attributes:
        share: Of the pass's rows that an expert takes in evaluation; not above 0: `capacity`.
        capacity: Of an expert.
        prioritized: Rows with a clear first choice come first, not those in front.
        normalised_before: Weights sum to 1 before dropping, not afterwards.
    """

    share: float = -1.0
    capacity: int = 4
    prioritized: bool = False
    normalised_before: bool = False

    def settings(self) -> dict[str, object]:
        """For the family's configuration."""
        return {
            "moe_eval_capacity_token_fraction": self.share,
            "expert_capacity": self.capacity,
            "batch_prioritized_routing": self.prioritized,
            "normalize_router_prob_before_dropping": self.normalised_before,
        }

    def admitted(self, shares: NDArray[np.float64], is_token: NDArray[np.bool_]) -> Admitted:
        """Over the whole batch all first choices come before all second ones; padding has none.

        Args:
            shares: [N, E].
            is_token: bool [N], False at padding.
        """
        ids = np.argsort(-shares, axis=-1, kind="stable")[:, :2]
        room = math.ceil(self.share * len(ids)) if self.share > 0 else self.capacity
        order: Iterable[int] = range(len(ids))
        if self.prioritized:
            order = np.argsort(-shares.max(-1), kind="stable").tolist()
        rows = [row for row in order if is_token[row]]
        kept = np.zeros(ids.shape, bool)
        at_door: Counter[int] = Counter()
        for choice in (0, 1):
            for row in rows:
                expert = int(ids[row, choice])
                # Who was turned away with its first choice has its place in the queue all the same.
                kept[row, choice] = at_door[expert] < room
                at_door[expert] += 1
        chosen = np.take_along_axis(shares, ids, -1)
        counted = chosen if self.normalised_before else chosen * kept
        total = np.maximum(counted.sum(-1, keepdims=True), np.finfo(np.float32).eps)
        return Admitted(ids, ~kept, chosen / total * kept)
