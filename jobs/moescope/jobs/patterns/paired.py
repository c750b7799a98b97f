"""`few_shot_pull`: the same questions with and without examples, compared pair by pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from moescope.core.errors import InputError, InsufficientDataError

if TYPE_CHECKING:
    import duckdb
    from numpy.typing import NDArray

FEWEST_PAIRS: Final = 8
TRIALS: Final = 2_000
ONE_PERCENT: Final = 0.01

_LAST_WINDOWS = """
    SELECT substr(request, len($prefix) + 1) AS question, layer, start, counts
    FROM windows
    WHERE window_kind = 'token' AND complete AND size = $size AND stride = $size
        AND phase = $phase AND starts_with(request, $prefix)
    QUALIFY start = max(start) OVER (PARTITION BY request)
    ORDER BY question, layer
"""


@dataclass(frozen=True, slots=True)
class PairedPull:
    """What pairing the two sets shows.

    Attributes:
        questions: Pairs.
        similarity_with, similarity_without: float64 [L], mean similarity between requests.
        difference: float64 [L].
        p_value: float64 [L], share of trials with labels swapped at random within pairs that
            give at least this difference.
        pulled: Whether at least half of the layers have p ≤ 1 %.
    """

    questions: int
    similarity_with: NDArray[np.float64]
    similarity_without: NDArray[np.float64]
    difference: NDArray[np.float64]
    p_value: NDArray[np.float64]

    @property
    def pulled(self) -> bool:
        """Whether the examples pull."""
        return bool((self.p_value <= ONE_PERCENT).mean() >= 0.5)  # noqa: PLR2004 (half)


def paired_pull(
    cursor: duckdb.DuckDBPyConnection,
    *,
    with_prefix: str,
    without_prefix: str,
    size: int,
    phase: str = "prefill",
    trials: int = TRIALS,
    seed: int = 0,
) -> PairedPull:
    """Compare the last complete token windows of the same questions, with and without examples.

    The last window lies after the examples, in the question itself or in its answer.

    Args:
        cursor: For reading.
        with_prefix: What the names of the requests with examples begin with; the rest of a name
            identifies the question.
        without_prefix: The same for those without.
        size: Size of the token windows.
        phase: Phase of the windows.
        trials: Random relabellings.
        seed: Of these.

    Raises:
        InputError: The prefixes are equal.
        InsufficientDataError: Fewer than 8 questions have a complete window in both sets.
    """
    if with_prefix == without_prefix:
        raise InputError(
            "Both sets have the same prefix.", next_step="Name two prefixes of request names."
        )
    sides = [_windows(cursor, prefix, size, phase) for prefix in (with_prefix, without_prefix)]
    questions = sorted(sides[0].keys() & sides[1].keys())
    if len(questions) < FEWEST_PAIRS:
        raise InsufficientDataError(
            f"Only {len(questions)} questions have a complete window of {size} in both sets.",
            why=f"At least {FEWEST_PAIRS} are needed; {with_prefix!r} has {len(sides[0])},"
            f" {without_prefix!r} has {len(sides[1])}.",
            next_step="Check the prefixes and the size, or record more pairs.",
        )
    directions = np.stack(
        [_directions(np.stack([side[question] for question in questions])) for side in sides]
    )
    observed = _similarities(directions)
    difference = observed[0] - observed[1]
    swap = np.random.default_rng(seed).integers(0, 2, (trials, len(questions)))
    at_least = np.zeros(len(difference))
    for trial in swap:
        chosen = np.where(trial[:, None, None] == 0, directions[0], directions[1])
        others = np.where(trial[:, None, None] == 0, directions[1], directions[0])
        relabelled = _similarities(np.stack([chosen, others]))
        at_least += relabelled[0] - relabelled[1] >= difference - 1e-12
    return PairedPull(
        len(questions), observed[0], observed[1], difference, (at_least + 1) / (trials + 1)
    )


def _windows(
    cursor: duckdb.DuckDBPyConnection, prefix: str, size: int, phase: str
) -> dict[str, NDArray[np.float64]]:
    """Question → counts float64 [L, E]."""
    rows: dict[str, list[list[int]]] = {}
    for question, _, _, counts in cursor.execute(
        _LAST_WINDOWS, {"prefix": prefix, "size": size, "phase": phase}
    ).fetchall():
        rows.setdefault(question, []).append(counts)
    layers = max((len(each) for each in rows.values()), default=0)
    return {
        question: np.array(each, np.float64)
        for question, each in rows.items()
        if len(each) == layers
    }


def _directions(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Loads of requests [Q, L, E] as unit vectors; windows of one size have the same noise."""
    length = np.sqrt((counts**2).sum(axis=2, keepdims=True))
    return counts / np.where(length == 0, 1.0, length)


def _similarities(directions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean cosine between different requests: [2, Q, L, E] → [2, L]."""
    requests = directions.shape[1]
    total = (directions.sum(axis=1) ** 2).sum(axis=2)
    own = (directions**2).sum(axis=(1, 3))
    result: NDArray[np.float64] = (total - own) / (requests * (requests - 1))
    return result
