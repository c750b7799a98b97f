"""`few_shot_pull`: the same questions with and without examples, compared pair by pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np

from moescope.core.errors import InputError, InsufficientDataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

FEWEST_PAIRS: Final = 8
TRIALS: Final = 2_000
ONE_PERCENT: Final = 0.01

_LAST_WINDOWS = """
    SELECT substr(request, len($prefix) + 1) AS question, lane, layer, counts
    FROM windows
    WHERE window_kind = 'token' AND complete AND size = $size AND stride = $size
        AND phase = $phase AND starts_with(request, $prefix)
    QUALIFY start = max(start) OVER (PARTITION BY lane, request)
    ORDER BY question, lane, layer
"""


class Rows(Protocol):
    """What a query found."""

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows."""


class Queries(Protocol):
    """What answers queries: a DuckDB cursor, or whatever stands for one."""

    def execute(self, query: str, parameters: dict[str, Any], /) -> Rows:
        """Run one query with named parameters."""


@dataclass(frozen=True, slots=True)
class PairedPull:
    """What pairing the two sets shows.

    Attributes:
        questions: Pairs.
        layers: int64 [L].
        similarity_with, similarity_without: float64 [L], mean similarity between requests.
        difference: float64 [L].
        p_value: float64 [L], share of trials with labels swapped at random within pairs that
            give at least this difference.
        pulled: Whether at least half of the layers have p ≤ 1 %.
    """

    questions: int
    layers: NDArray[np.int64]
    similarity_with: NDArray[np.float64]
    similarity_without: NDArray[np.float64]
    difference: NDArray[np.float64]
    p_value: NDArray[np.float64]

    @property
    def pulled(self) -> bool:
        """Whether the examples pull."""
        return bool((self.p_value <= ONE_PERCENT).mean() >= 0.5)  # noqa: PLR2004 (half)


def paired_pull(
    cursor: Queries,
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
        InputError: The prefixes are equal, or the requests are of different models.
        InsufficientDataError: Fewer than 8 questions have a complete window in both sets.
    """
    if with_prefix == without_prefix:
        raise InputError(
            "Both sets have the same prefix.", next_step="Name two prefixes of request names."
        )
    sides = [_side(cursor, prefix, size, phase) for prefix in (with_prefix, without_prefix)]
    questions = sorted(sides[0].windows.keys() & sides[1].windows.keys())
    if len(questions) < FEWEST_PAIRS:
        raise InsufficientDataError(
            f"Only {len(questions)} questions have a complete window of {size} in both sets.",
            why=f"At least {FEWEST_PAIRS} are needed; {with_prefix!r} has"
            f" {len(sides[0].windows)}, {without_prefix!r} has {len(sides[1].windows)}.",
            next_step="Check the prefixes and the size, or record more pairs.",
        )
    if _shape(sides[0]) != _shape(sides[1]):
        raise InputError(
            "The two sets have other layers or other numbers of experts.",
            next_step="Name two sets of requests to the same model.",
        )
    directions = np.stack(
        [
            _directions(np.stack([side.windows[question] for question in questions]))
            for side in sides
        ]
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
        len(questions),
        np.array(sides[0].layers),
        observed[0],
        observed[1],
        difference,
        (at_least + 1) / (trials + 1),
    )


class _Side(NamedTuple):
    """The last windows of one set: question → counts float64 [L, E]."""

    layers: tuple[int, ...]
    windows: dict[str, NDArray[np.float64]]


def _side(cursor: Queries, prefix: str, size: int, phase: str) -> _Side:
    found: dict[str, dict[int, list[int]]] = {}
    lanes: dict[str, str] = {}
    for question, lane, layer, counts in cursor.execute(
        _LAST_WINDOWS, {"prefix": prefix, "size": size, "phase": phase}
    ).fetchall():
        if lanes.setdefault(question, lane) != lane:
            raise InputError(
                f"Several models or revisions have a request {prefix + question!r}.",
                why="Windows of different models cannot be compared.",
                next_step="Name prefixes that only one model and revision uses.",
            )
        found.setdefault(question, {})[layer] = counts
    layers = tuple(sorted({layer for each in found.values() for layer in each}))
    return _Side(
        layers,
        {
            question: np.array([each[layer] for layer in layers], np.float64)
            for question, each in found.items()
            if len(each) == len(layers)
        },
    )


def _shape(side: _Side) -> tuple[tuple[int, ...], set[tuple[int, ...]]]:
    return side.layers, {each.shape for each in side.windows.values()}


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
