"""Which rows of a forward pass are tokens, and at which position of their request."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class PlacedRows(NamedTuple):
    """The rows of one pass over B requests and S columns.

    Attributes:
        is_token: bool [B, S]; False for padding.
        position: int64 [B, S], counted over the tokens of the request; −1 for padding before it.
    """

    is_token: NDArray[np.bool_]
    position: NDArray[np.int64]


def place_rows(
    batch: int,
    length: int,
    past: int,
    mask: NDArray[np.bool_] | None,
    position_ids: NDArray[np.int64] | None = None,
) -> PlacedRows:
    """Place the rows of a pass.

    Args:
        batch: B.
        length: S, columns that are computed now.
        past: Columns that the key-value cache holds already.
        mask: bool [B, past + S] or [B, S], True for tokens; None when there is no padding.
        position_ids: Positions that the caller gave, [B or 1, S]; used only without a mask.

    Raises:
        ValueError: The mask has another shape.
    """
    if mask is None:
        position = past + np.arange(length) if position_ids is None else position_ids
        return PlacedRows(
            np.ones((batch, length), np.bool_),
            np.broadcast_to(position, (batch, length)).astype(np.int64),
        )
    if mask.shape not in {(batch, past + length), (batch, length)}:
        raise ValueError(f"the mask has shape {mask.shape} for {past} + {length} columns")
    before = past if mask.shape[1] == length else 0
    position = before + np.cumsum(mask, axis=1, dtype=np.int64) - 1
    return PlacedRows(mask[:, -length:], position[:, -length:])


def tokens_before_end(
    tokens: NDArray[np.int64],
    is_decoded: NDArray[np.bool_],
    end_tokens: frozenset[int],
    has_ended: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Which rows come before a generation's end; `has_ended` is brought up to date.

    A batched `generate` goes on feeding the end token and then padding for a row that is
    finished, under a mask of ones: an engine computes none of these.

    Args:
        tokens: [B, S], the pass's input.
        is_decoded: bool [B, S], whether the token was generated, not given.
        end_tokens: Token ids that end a generation.
        has_ended: bool [B], which requests ended in an earlier pass.
    """
    is_end = np.isin(tokens, list(end_tokens)) & is_decoded
    ended = np.logical_or.accumulate(is_end, axis=1) | has_ended[:, None]
    has_ended |= ended[:, -1]
    return ~ended
