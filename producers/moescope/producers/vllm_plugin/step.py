"""One step of the engine: whose rows its forward pass computed. Plain arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from moescope.core.vocabulary import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class UnknownLayoutError(Exception):
    """A step whose rows cannot be told apart; never leaves the plugin.

    Attributes:
        reason: A few words for header and log, the same for all such steps.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


NOT_COUNTED: Final = -1


@lru_cache(maxsize=512)
def single_rows(requests: int) -> NDArray[np.int64]:
    """Ones, int64 [R], which nobody can change: what a decode pass computes of each request."""
    return _fixed(np.ones(requests, np.int64))


@lru_cache(maxsize=512)
def no_drafts(requests: int) -> NDArray[np.int64]:
    """Zeros, int64 [R], which nobody can change."""
    return _fixed(np.zeros(requests, np.int64))


def _fixed(array: NDArray[np.int64]) -> NDArray[np.int64]:
    array.setflags(write=False)
    return array


@dataclass(slots=True)
class Step:
    """The rows of one forward pass, in the order in which the model saw them.

    Attributes:
        engine_ids: The engine's request ids [R].
        counts: int64 [R], rows of each; they follow one another.
        first: int64 [R], position of each one's first row.
        drafts: int64 [R], how many of the last rows are draft tokens being verified.
        rows_passed: How many rows the model was given, padding behind the others included.
        rows_across: Rows given to each data-parallel rank, where there are several.
        rank: Of this engine among them.
        positions: A device tensor that holds the positions, where the host's are an upper bound.
        token_ids: A device tensor of the rows' token ids, or None.
        rows: Rows of requests.
    """

    engine_ids: list[str]
    counts: NDArray[np.int64]
    first: NDArray[np.int64]
    drafts: NDArray[np.int64]
    rows_passed: int
    rows_across: Sequence[int] = ()
    rank: int = 0
    positions: Any = None
    token_ids: Any = None
    rows: int = NOT_COUNTED

    def __post_init__(self) -> None:
        """Count the rows, where nobody has."""
        if self.rows == NOT_COUNTED:
            self.rows = int(self.counts.sum())

    @property
    def has_drafts(self) -> bool:
        """Whether some row is a draft token."""
        return self.drafts is not no_drafts(len(self.counts)) and bool(self.drafts.any())

    @property
    def is_single_rows(self) -> bool:
        """Whether there is one row of each request, and none is a draft."""
        return self.rows == len(self.counts) and not self.has_drafts

    def row_positions(self) -> NDArray[np.int64]:
        """Positions of the rows, int64 [rows]."""
        if self.rows == len(self.first):  # all decode
            return self.first
        ends = np.cumsum(self.counts)
        offsets = np.arange(self.rows) - np.repeat(ends - self.counts, self.counts)
        return np.repeat(self.first, self.counts) + offsets

    def row_phases(
        self,
        positions: NDArray[np.int64],
        prompt_tokens: NDArray[np.int64],
        accepted: NDArray[np.int64],
    ) -> NDArray[np.uint8]:
        """Phases of the rows.

        Args:
            positions: int64 [rows].
            prompt_tokens: int64 [R], length of each prompt.
            accepted: int64 [R], how many draft tokens became the request's own.

        Returns:
            uint8 [rows], values of `Phase`.
        """
        phases = row_phases(positions, np.repeat(prompt_tokens, self.counts))
        if self.has_drafts:
            ends = np.cumsum(self.counts)
            refused_from = np.repeat(ends - self.drafts + accepted, self.counts)
            phases[np.arange(self.rows) >= refused_from] = _DRAFT
        return phases

    def counts_of(self, kept: NDArray[np.bool_]) -> NDArray[np.int64]:
        """How many of each request's rows are kept, int64 [R].

        Args:
            kept: Booleans [rows].
        """
        owners = np.repeat(np.arange(len(self.counts)), self.counts)
        return np.bincount(owners[kept], minlength=len(self.counts))

    def first_row(self, rows_seen: int) -> int:
        """Where this engine's rows begin among those that a router saw.

        Args:
            rows_seen: Rows that each router was called with.

        Raises:
            UnknownLayoutError: These are not the rows that were scheduled.
        """
        if self.rows <= self.rows_passed == rows_seen:
            return 0
        if len(self.rows_across) > 1 and rows_seen == sum(self.rows_across):
            return sum(self.rows_across[: self.rank])
        raise UnknownLayoutError("rows captured are not the rows scheduled")


_PREFILL: Final = np.uint8(Phase.PREFILL)
_DECODE: Final = np.uint8(Phase.DECODE)
_DRAFT: Final = np.uint8(Phase.DRAFT)


def row_phases(positions: NDArray[np.int64], prompt_tokens: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Phases of rows that are no drafts.

    Args:
        positions: int64 [T].
        prompt_tokens: int64 [T], length of the prompt of each one's request.

    Returns:
        uint8 [T], values of `Phase`.
    """
    return np.where(positions < prompt_tokens, _PREFILL, _DECODE)


def is_blank(expert_ids: NDArray[Any]) -> bool:
    """Whether all ids of some layer are the same number: a kernel that never told its choice.

    Args:
        expert_ids: Integers [T, L, k].
    """
    if expert_ids.shape[-1] == 1 or not len(expert_ids):
        return False
    doubtful = expert_ids[0, :, 0] == expert_ids[0, :, 1]
    if not doubtful.any():
        return False
    some = expert_ids[:, doubtful]
    return bool((some == some[:1, :, :1]).all(axis=(0, 2)).any())


def rows_of_numbers(weights: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Rows of which every weight is a finite number; None where all rows are.

    Args:
        weights: Floats [T, L, k], so small that no sum of them overflows.

    Returns:
        Booleans [T].
    """
    with np.errstate(invalid="ignore"):  # of two infinities
        if math.isfinite(weights.sum()):
            return None
    return np.asarray(np.isfinite(weights).all(axis=(1, 2)))


def put_heaviest_first(expert_ids: NDArray[Any], weights: NDArray[Any]) -> None:
    """Bring the id of the greatest weight to the front of each row, in place.

    It changes places with the one that was there; more of the order no batch keeps.

    Args:
        expert_ids: Integers [T, L, k], contiguous; changed.
        weights: Floats [T, L, k], contiguous; changed likewise.
    """
    heaviest = weights.argmax(axis=-1).reshape(-1)
    if not heaviest.any():
        return
    front = np.arange(0, weights.size, weights.shape[-1])
    there = front + heaviest
    for values in (expert_ids.reshape(-1), weights.reshape(-1)):
        moved = values[front]
        values[front] = values[there]
        values[there] = moved
