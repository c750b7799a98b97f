"""One sequence of routes that an engine returned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.vocabulary import Phase
from moescope.producers.importers.errors import RejectedLineError
from moescope.producers.importers.json_values import as_integer

if TYPE_CHECKING:
    from numpy.typing import NDArray

LARGEST_TOKENS = 2**31 - 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """Routes of one choice of one response.

    Attributes:
        request: Of the response; with the choice's number if there are several.
        first_position: Of the first row.
        prompt_tokens: −1 when the response does not say.
        cached_tokens: Leading prompt tokens that came from a prefix cache.
        routes: int64 [T, L, k], all hidden layers; −1 stands for "unknown".
        says_cached: Whether the response said so itself.
        surplus_rows: Rows after the last computed token, left out of `routes`.
    """

    request: str
    model: str
    first_position: int
    prompt_tokens: int
    cached_tokens: int
    routes: NDArray[np.int64]
    says_cached: bool = False
    surplus_rows: int = 0

    @property
    def positions(self) -> NDArray[np.int32]:
        """Of each row, int32 [T]."""
        return np.arange(len(self.routes), dtype=np.int32) + np.int32(self.first_position)

    @property
    def phases(self) -> NDArray[np.uint8]:
        """Prefill below the prompt's length, decode from there, eval when it is not known."""
        if self.prompt_tokens < 0:
            return np.full(len(self.routes), Phase.EVAL, np.uint8)
        is_prompt = self.positions < self.prompt_tokens
        return np.where(is_prompt, Phase.PREFILL, Phase.DECODE).astype(np.uint8)


def without_surplus(
    routes: NDArray[np.int64], tokens: int, name: str
) -> tuple[NDArray[np.int64], int]:
    """Rows of a sequence as far as it was computed: all of its tokens but the last.

    Engines differ in whether they send a row for the last token, too; its content is whatever
    the buffer held.

    Args:
        routes: [T, L, k].
        tokens: Of the part of the sequence that the routes cover; −1 when not known.
        name: Of the field, for messages.

    Returns:
        The rows, and how many were left out.

    Raises:
        RejectedLineError: There are neither as many rows as tokens nor one less.
    """
    surplus = len(routes) - (tokens - 1)
    if tokens < 0 or surplus == 0:
        return routes, 0
    if surplus != 1:
        raise RejectedLineError(
            f"{name} has another length than the tokens", f"{len(routes)} rows, {tokens} tokens"
        )
    return routes[:-1], 1


def counted_tokens(usage: dict[str, Any], name: str) -> int:
    """A number of tokens that a response states, −1 when it does not.

    Raises:
        RejectedLineError: It is no such number.
    """
    value = usage.get(name)
    return -1 if value is None else as_integer(value, name, LARGEST_TOKENS)
