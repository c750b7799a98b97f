"""What a mask of four dimensions tells about the rows that attend."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


class AttendingRows(NamedTuple):
    """Which rows of a pass are tokens, on the model's device.

    Attributes:
        is_token: bool [B or 1, S].
        keys_seen: int64 [B or 1, S], keys up to the row's own that it attends to.
        fits: bool [], False where the mask has fewer keys than there are columns.
    """

    is_token: torch.Tensor
    keys_seen: torch.Tensor
    fits: torch.Tensor


def attending_rows(attention: torch.Tensor, past: int | torch.Tensor) -> AttendingRows:
    """Tell tokens from padding by what each row attends to.

    A row of padding attends to nothing, or, so that its softmax is finite, to everything: what
    lies behind it, too.

    Args:
        attention: [B or 1, heads or 1, S, keys], True or 0 where a row attends to a key.
        past: Columns before the first row.
    """
    import torch  # noqa: PLC0415 - an inference node without torch imports this module, too

    first_head = attention[:, 0]
    if first_head.dtype == torch.bool:
        seen = first_head
    else:
        seen = first_head > torch.finfo(first_head.dtype).min / 2
    rows, keys = seen.shape[-2:]
    own = torch.arange(rows, device=seen.device) + past
    key = torch.arange(keys, device=seen.device)
    is_behind = key > own[:, None]
    at_own = own.clamp(max=keys - 1)[None, :, None].expand(seen.shape[0], rows, 1)
    sees_itself = seen.gather(-1, at_own).squeeze(-1)
    return AttendingRows(
        sees_itself & ~(seen & is_behind).any(-1),
        (seen & ~is_behind).sum(-1),
        torch.as_tensor(past + rows <= keys, device=seen.device),
    )
