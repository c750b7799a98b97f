"""Bring tensors of one pass to the host: all of them in one copy, without waiting for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from numpy.typing import NDArray


class HostCopy:
    """Tensors on their way to the host.

    Those of the host are there already, as views. Those of a device are packed into one buffer
    there and copied to pinned memory behind what the device still computes: `arrays` waits for
    that copy alone.

    Args:
        tensors: Of one device, or of the host; None stays None. Half-precision floats become
            float32.
    """

    def __init__(self, tensors: Sequence[torch.Tensor | None]) -> None:
        self._event: Any = None
        self._bytes: torch.Tensor | None = None
        self._packed: list[tuple[int, torch.Tensor]] = []
        self._arrays: list[NDArray[Any] | None] = [None] * len(tensors)
        for index, tensor in enumerate(tensors):
            if tensor is None:
                continue
            known = _known_to_numpy(tensor.detach() if tensor.requires_grad else tensor)
            if known.is_cpu:
                self._arrays[index] = known.numpy()
            else:
                self._packed.append((index, known))
        if self._packed:
            self._send()

    @property
    def is_late(self) -> bool:
        """Whether `arrays` would have to wait."""
        return self._event is not None and not self._event.query()

    def arrays(self) -> list[NDArray[Any] | None]:
        """The arrays, in the order of the tensors."""
        if self._bytes is not None:
            if self._event is not None:
                self._event.synchronize()
            parts = unpacked(self._bytes.numpy(), [tensor for _, tensor in self._packed])
            for (index, _), part in zip(self._packed, parts, strict=True):
                self._arrays[index] = part
            self._bytes = None
            self._packed.clear()
        return self._arrays

    def _send(self) -> None:
        import torch  # noqa: PLC0415 - an inference node without torch imports this module, too

        self._packed.sort(key=lambda item: -item[1].element_size())
        there = packed([tensor for _, tensor in self._packed])
        if there.device.type != "cuda":
            self._bytes = there.cpu()
            return
        self._bytes = torch.empty(there.shape, dtype=there.dtype, pin_memory=True)
        self._bytes.copy_(there, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()


def packed(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The bytes of several tensors as one, in their order; sort them by falling item size."""
    import torch  # noqa: PLC0415 - as above

    return torch.cat([tensor.contiguous().view(-1).view(torch.uint8) for tensor in tensors])


def unpacked(data: NDArray[np.uint8], like: Sequence[torch.Tensor]) -> list[NDArray[Any]]:
    """The arrays whose bytes `packed` laid one behind the other."""
    arrays = []
    at = 0
    for tensor in like:
        size = tensor.numel() * tensor.element_size()
        dtype = np.dtype(str(tensor.dtype).removeprefix("torch."))
        arrays.append(data[at : at + size].view(dtype).reshape(tuple(tensor.shape)))
        at += size
    return arrays


def _known_to_numpy(tensor: torch.Tensor) -> torch.Tensor:
    import torch  # noqa: PLC0415 - as above

    return (
        tensor.float()
        if tensor.dtype is torch.bfloat16 or tensor.dtype is torch.float16
        else tensor
    )
