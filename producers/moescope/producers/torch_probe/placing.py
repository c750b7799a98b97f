"""Which rows of a forward pass are tokens, and at which position of their request."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from moescope.producers.torch_probe.inputs import RefusedPassError

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


def place_by_mask(mask: NDArray[np.bool_], length: int, past: int) -> PlacedRows:
    """Place the rows of a pass whose mask tells its tokens.

    Args:
        mask: bool [B, past + S] or [B, S], True for tokens.
        length: S.
        past: Columns that were computed before; used only when the mask has S columns.

    Raises:
        RefusedPassError: The mask has another shape.
    """
    columns = mask.shape[1]
    if columns not in {past + length, length}:
        raise RefusedPassError("an unknown mask", f"{columns} columns for {past} + {length}")
    before = past if columns == length else 0
    position = before + np.cumsum(mask, axis=1, dtype=np.int64) - 1
    return PlacedRows(mask[:, columns - length :], position[:, columns - length :])


def place_behind(mask: NDArray[np.bool_], following: NDArray[np.int64]) -> PlacedRows:
    """Place rows that follow those of an earlier pass.

    Args:
        mask: bool [B, S], of these rows alone.
        following: int64 [B], each request's next position.
    """
    if mask.shape[1] == 1:
        return PlacedRows(mask, following[:, None].copy())
    return PlacedRows(mask, following[:, None] + np.cumsum(mask, axis=1, dtype=np.int64) - 1)


def place_in_order(
    batch: int, length: int, past: int, position_ids: NDArray[np.int64] | None = None
) -> PlacedRows:
    """Place the rows of a pass without padding.

    Args:
        batch: B.
        length: S.
        past: Columns that were computed before.
        position_ids: Positions that the caller gave, [B or 1, S], or None.

    Raises:
        RefusedPassError: The positions do not rise along a row: several sequences in one.
    """
    if position_ids is None:
        position = np.broadcast_to(past + np.arange(length), (batch, length))
    else:
        position = np.broadcast_to(position_ids.astype(np.int64), (batch, length))
        if length > 1 and not (position[:, 1:] > position[:, :-1]).all():
            raise RefusedPassError("several sequences packed into one row")
    return PlacedRows(np.ones((batch, length), np.bool_), position)


def place_by_attention(
    sees_itself: NDArray[np.bool_],
    keys_seen: NDArray[np.int64],
    position_ids: NDArray[np.int64] | None,
) -> PlacedRows:
    """Place the rows of a pass whose mask tells which keys each row attends to.

    A row of padding attends to nothing, or, so that its softmax is finite, to everything.

    Args:
        sees_itself: bool [B, S], False also where a row sees what comes behind it.
        keys_seen: int64 [B, S], keys up to the row's own that it attends to.
        position_ids: Positions that the caller gave, [B or 1, S], or None: then a row's position is
            the number of keys before it.
    """
    position = keys_seen - 1 if position_ids is None else position_ids
    return PlacedRows(sees_itself, np.broadcast_to(position, sees_itself.shape).astype(np.int64))


def tokens_before_end(
    tokens: NDArray[np.int64],
    is_decoded: NDArray[np.bool_],
    end_tokens: NDArray[np.int64],
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
    is_end = (tokens[..., None] == end_tokens).any(axis=-1) & is_decoded
    ended = np.logical_or.accumulate(is_end, axis=1) | has_ended[:, None]
    has_ended |= ended[:, -1]
    return ~ended
