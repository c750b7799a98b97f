"""What a forward pass was given: which arguments tell its rows, and what they say."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

_ROW_DIMENSIONS: Final = 2  # requests, columns
_ATTENTION_DIMENSIONS: Final = 4  # requests, heads, rows, keys
_FULL_ATTENTION: Final = "full_attention"


class RefusedPassError(Exception):
    """What the rows of a pass are cannot be known for certain; never leaves the probe.

    Args:
        reason: Short, and the same each time.
        detail: What this pass was like.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class PassInputs(NamedTuple):
    """References to a pass's arguments; nothing was copied or computed.

    Attributes:
        batch: B.
        length: S, columns that are computed now.
        tokens: [B, S], or None when the pass was given embeddings.
        mask: [B, columns], or None.
        attention: [B or 1, heads or 1, S, keys], or None; at most one of both masks is there.
        positions: [B or 1, S], or None.
        past: Columns that the key-value cache held before the pass: a number, or a tensor on the
            model's device. None when nobody asked, see `with_past`.
        cache: The key-value cache, or None.
    """

    batch: int
    length: int
    tokens: torch.Tensor | None
    mask: torch.Tensor | None
    attention: torch.Tensor | None
    positions: torch.Tensor | None
    past: int | torch.Tensor | None
    cache: Any = None

    @property
    def rows(self) -> int:
        """B * S."""
        return self.batch * self.length

    def with_past(self) -> PassInputs:
        """The same, with what the cache holds now: ask before the pass computes.

        Raises:
            RefusedPassError: The cache does not tell.
        """
        return self._replace(past=0 if self.cache is None else _length_of(self.cache), cache=None)


def argument_names(module: torch.nn.Module) -> tuple[str, ...]:
    """The names of a forward's positional arguments."""
    return tuple(inspect.signature(module.forward).parameters)


def rows_given(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Rows of a pass whose arguments cannot be read otherwise; at least 1, for a pass has one."""
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    for name in ("input_ids", "inputs_embeds"):
        shape = getattr(given.get(name), "shape", ())
        if shape:
            rows: int = shape[0] if len(shape) < _ROW_DIMENSIONS else shape[0] * shape[1]
            return rows
    return 1


def read_inputs(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> PassInputs:
    """Name the arguments of a pass.

    Args:
        names: `argument_names` of the module.
        args: What it was called with.
        kwargs: What it was called with, by name.

    Raises:
        RefusedPassError: They do not tell what the rows are.
    """
    given = {**dict(zip(names, args, strict=False)), **kwargs} if args else kwargs
    tokens = given.get("input_ids")
    computed = tokens if tokens is not None else given.get("inputs_embeds")
    # A compiler that traces this fails for good where an attribute is not there: ask for defaults.
    if computed is None or len(getattr(computed, "shape", ())) < _ROW_DIMENSIONS:
        raise RefusedPassError("no input_ids or inputs_embeds")
    batch, length = computed.shape[0], computed.shape[1]
    mask, attention = _masks(given.get("attention_mask"), batch, length)
    positions = given.get("position_ids")
    if positions is not None:
        dimensions = len(getattr(positions, "shape", ()))
        if not dimensions:
            raise RefusedPassError("position_ids that are no tensor")
        if dimensions != _ROW_DIMENSIONS:
            positions = None  # of images and videos: they do not count tokens
    cache = given.get("cache")
    if cache is None:
        cache = given.get("past_key_values")
    return PassInputs(batch, length, tokens, mask, attention, positions, None, cache)


def _masks(
    given: Any,  # noqa: ANN401 - engines pass many kinds
    batch: int,
    length: int,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    if isinstance(given, dict):
        given = given.get(_FULL_ATTENTION)
        if given is None:
            raise RefusedPassError("an unknown mask", "of several kinds, none of full attention")
    if given is None:
        return None, None
    shape: Sequence[int] = getattr(given, "shape", ())
    if len(shape) == _ROW_DIMENSIONS and shape[0] == batch and shape[1] >= length:
        return given, None
    if len(shape) == _ATTENTION_DIMENSIONS and shape[0] in {1, batch} and shape[2] == length:
        return None, given
    raise RefusedPassError(
        "an unknown mask", f"of shape {tuple(shape)} for {batch} x {length} rows"
    )


def _length_of(cache: Any) -> int | torch.Tensor:  # noqa: ANN401 - transformers has no types here
    length_of = getattr(cache, "get_seq_length", None)
    if length_of is None:
        raise RefusedPassError("an unknown cache", "without get_seq_length")
    length = length_of()
    # A static cache counts on the device, in place: keep what it says now, without waiting.
    return int(length) if isinstance(length, int) else length.detach().clone()
