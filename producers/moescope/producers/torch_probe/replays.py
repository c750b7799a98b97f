"""What routers say in a CUDA graph that a program captures itself: kept on the device.

A graph replays kernels and no hooks. So hooks that run while it is captured copy into buffers that
stay: the copies become part of the graph, and after a replay the buffers hold what it computed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from moescope.producers.torch_probe.inputs import RefusedPassError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from moescope.producers.torch_probe.hooks import AfterRouter
    from moescope.producers.torch_probe.passes import CurrentPass


def is_capturing() -> bool:
    """Whether what this thread computes now is captured into a CUDA graph, and not computed."""
    torch = sys.modules[
        "torch"
    ]  # a pass asks each time: an import statement takes ten times as long
    return torch.cuda.is_initialized() and bool(torch.cuda.is_current_stream_capturing())


class _Kept(NamedTuple):
    """The tensors of one router: buffers, and how many entries of each a row of the pass has."""

    buffers: tuple[torch.Tensor, ...]
    per_row: tuple[int, ...]


class StaticBuffers:
    """Buffers of all routers, for passes of up to `rows` rows.

    All graphs of a model share them: read them before the next replay, on the same stream.

    Args:
        rows: The most rows of a captured pass.
        layers: Routers.
        device: Theirs.
    """

    def __init__(self, rows: int, layers: int, device: torch.device) -> None:
        import torch  # noqa: PLC0415 - an inference node without torch imports this module, too

        self.rows = rows
        self._kept: list[_Kept | None] = [None] * layers
        # How often each router ran in a replay, now and when it was read last: what an earlier
        # replay left must not pass for what one of a graph without the probe computed.
        self._ran = torch.zeros(layers, dtype=torch.int64, device=device)
        self._read = torch.zeros(layers, dtype=torch.int64, device=device)

    def keep(self, place: int, rows: int, tensors: Sequence[torch.Tensor]) -> None:
        """Copy the tensors of a router that ran over this many rows.

        Raises:
            RefusedPassError: They have no room, or are no multiple of the rows.
        """
        if rows > self.rows:
            raise RefusedPassError("more rows than static_rows", f"{rows} of {self.rows}")
        flat = [tensor.reshape(-1, tensor.shape[-1]) for tensor in tensors if tensor.ndim > 1]
        if len(flat) != len(tensors) or any(len(tensor) % rows for tensor in flat):
            raise RefusedPassError("a router that static_rows cannot keep")
        kept = self._kept[place]
        if kept is None:
            per_row = tuple(len(tensor) // rows for tensor in flat)
            buffers = tuple(
                tensor.new_empty((self.rows * each, tensor.shape[-1]))
                for tensor, each in zip(flat, per_row, strict=True)
            )
            kept = self._kept[place] = _Kept(buffers, per_row)
        for buffer, tensor in zip(kept.buffers, flat, strict=True):
            buffer[: len(tensor)].copy_(tensor)
        self._ran[place].add_(1)

    def replayed(
        self, current: CurrentPass, hooks: Sequence[Callable[[], AfterRouter | None]]
    ) -> None:
        """Give a pass what its routers said in the replay.

        Args:
            current: The pass, its rows no more than those that were captured.
            hooks: References to the routers' hooks.

        Raises:
            RefusedPassError: The rows cannot be told, or are more than there is room for.
        """
        rows = current.inputs.batch * current.inputs.length
        is_fresh = self.take_fresh()
        if current.inputs.attention is not None:
            raise RefusedPassError("a replay with a mask of four dimensions")
        if rows > self.rows:
            raise RefusedPassError("more rows than static_rows", f"{rows} of {self.rows}")
        for place, reference in enumerate(hooks):
            hook, kept = reference(), self._kept[place]
            if hook is not None and kept is not None:
                pairs = zip(kept.buffers, kept.per_row, strict=True)
                tensors = tuple([buffer[: rows * each] for buffer, each in pairs])
                current.keep(place, hook.module, tensors)
        current.is_fresh = is_fresh

    def take_fresh(self) -> torch.Tensor:
        """Bool [L] on the device: which routers ran since this was asked last."""
        is_fresh = self._ran > self._read
        self._read.copy_(self._ran)
        return is_fresh


class CapturedPass:
    """A pass that is captured into a graph; takes the place of one that is computed.

    Args:
        buffers: Where its routers' tensors go.
        rows: B · S.
    """

    __slots__ = ("_buffers", "_rows", "outputs")

    def __init__(self, buffers: StaticBuffers, rows: int) -> None:
        self.outputs = None
        self._buffers = buffers
        self._rows = rows

    def keep(self, place: int, module: object, tensors: tuple[torch.Tensor, ...]) -> None:
        """A router is captured."""
        del module
        self._buffers.keep(place, self._rows, tensors)
