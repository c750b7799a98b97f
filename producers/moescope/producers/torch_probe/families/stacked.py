"""What routers returned in several passes, copied: as a family's `interpret` reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    import torch

Parts = Sequence["torch.Tensor | tuple[torch.Tensor, ...]"]
"""Of one pass, by the place of a tensor in what a router returned: [N, L, …] where that is read,
else the tensors of its layers as they were."""


class StackedPasses(Sequence["tuple[torch.Tensor, ...]"]):
    """Tensors by pass and layer, one pass's layers behind the other's: to a family they are layers.

    Args:
        passes: Their parts, each pass with as many layers.
        layers: L.
    """

    def __init__(self, passes: Sequence[Parts], layers: int) -> None:
        self._passes = passes
        self._layers = layers

    def __len__(self) -> int:
        """Passes times L."""
        return len(self._passes) * self._layers

    @overload
    def __getitem__(self, place: int) -> tuple[torch.Tensor, ...]: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[tuple[torch.Tensor, ...]]: ...

    def __getitem__(
        self, place: int | slice
    ) -> tuple[torch.Tensor, ...] | Sequence[tuple[torch.Tensor, ...]]:
        """The tensors of one router in one pass.

        Raises:
            IndexError: There are not so many.
        """
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        if not 0 <= place < len(self):
            raise IndexError(place)
        number, layer = divmod(place, self._layers)
        return tuple(
            part[layer] if isinstance(part, tuple) else part[:, layer]
            for part in self._passes[number]
        )

    def stacked(self, part: int) -> torch.Tensor:
        """One part of all routers in all passes, [N, passes · L, …]."""
        import torch  # noqa: PLC0415 - imports without torch

        return torch.stack([parts[part] for parts in self._passes], dim=1).flatten(1, 2)
