"""From a capture's buffers to the host, without making the engine wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from moescope.producers.vllm_plugin.capture import RoutingCapture

SLOTS: Final = 3
"""Passes whose copies may be under way at once: an engine schedules one ahead of the device."""


class HostCopy(Protocol):
    """The rows of one pass on the host, once `is_ready`.

    Attributes:
        ids: int32 [T, L, k].
        weights: float32 [T, L, k].
        rows_seen: Rows with which each router was called.
        positions: int64 [T], where the device had to tell them.
    """

    @property
    def ids(self) -> NDArray[Any]:
        """See above."""
        ...

    @property
    def weights(self) -> NDArray[Any]:
        """See above."""
        ...

    @property
    def rows_seen(self) -> Sequence[int]:
        """See above."""
        ...

    @property
    def positions(self) -> NDArray[Any] | None:
        """See above."""
        ...

    def is_ready(self, *, wait: bool) -> bool:
        """Whether the rows have arrived; waits for them if asked to."""
        ...

    def release(self) -> None:
        """The rows are needed no longer."""
        ...


class HostCopies(Protocol):
    """Makes copies."""

    def take(self, first: int, rows: int, positions: Any, *, keep: bool) -> HostCopy | None:  # noqa: ANN401
        """Begin to copy the pass's rows.

        Args:
            first: Of the buffer's rows.
            rows: How many.
            positions: A device tensor, or None.
            keep: Whether they are needed beyond the next pass's beginning.

        Returns:
            None when too many copies are under way.
        """
        ...


class _Here:
    """Rows of a model in the host's own memory."""

    def __init__(self, ids: Any, weights: Any, rows_seen: Sequence[int], positions: Any) -> None:  # noqa: ANN401
        self.ids, self.weights = ids, weights
        self.rows_seen, self.positions = rows_seen, positions

    def is_ready(self, *, wait: bool) -> bool:
        """Always."""
        del wait
        return True

    def release(self) -> None:
        """Nothing to do."""


class HostMemory:
    """Copies of a model that computes on the host: views, unless they have to be kept."""

    def __init__(self, capture: RoutingCapture) -> None:
        self._capture = capture
        self._ids = capture.ids.numpy()
        self._weights = capture.weights.numpy()

    def take(self, first: int, rows: int, positions: Any, *, keep: bool) -> HostCopy:  # noqa: ANN401
        """See `HostCopies`."""
        ids = self._ids[first : first + rows]
        weights = self._weights[first : first + rows]
        if keep:
            ids, weights = ids.copy(), weights.copy()
        where = None if positions is None else positions[:rows].numpy().copy()
        return _Here(ids, weights, self._capture.rows_seen(), where)


class _Slot:
    """Pinned memory for one pass, filled by the device's own stream."""

    def __init__(self, torch: Any, capture: RoutingCapture) -> None:  # noqa: ANN401 - a module
        def pinned(like: Any, dtype: Any = None) -> Any:  # noqa: ANN401 - tensors
            return torch.empty(like.shape, dtype=dtype or like.dtype, pin_memory=True)

        self._all_ids, self._all_weights = pinned(capture.ids), pinned(capture.weights)
        self._all_positions = torch.empty(
            (capture.ids.shape[0],), dtype=torch.int64, pin_memory=True
        )
        self._rows_seen = torch.empty((capture.layers,), dtype=torch.int32, pin_memory=True)
        self._event = torch.cuda.Event()
        self._rows = 0
        self._has_positions = False
        self._told: Sequence[int] = ()
        self.is_free = True

    def fill(self, capture: RoutingCapture, first: int, rows: int, positions: Any) -> None:  # noqa: ANN401
        self.is_free = False
        self._rows, self._has_positions = rows, positions is not None
        self._all_ids[:rows].copy_(capture.ids[first : first + rows], non_blocking=True)
        self._all_weights[:rows].copy_(capture.weights[first : first + rows], non_blocking=True)
        if positions is not None:
            self._all_positions[:rows].copy_(positions[:rows], non_blocking=True)
        if capture.rows_on_device is not None:
            self._rows_seen.copy_(capture.rows_on_device, non_blocking=True)
            self._told = ()
        else:
            self._told = capture.rows_seen()
        self._event.record()

    @property
    def ids(self) -> Any:  # noqa: ANN401 - an array
        return self._all_ids[: self._rows].numpy()

    @property
    def weights(self) -> Any:  # noqa: ANN401 - an array
        return self._all_weights[: self._rows].numpy()

    @property
    def rows_seen(self) -> Sequence[int]:
        return self._told or self._rows_seen.tolist()

    @property
    def positions(self) -> Any:  # noqa: ANN401 - an array or None
        return self._all_positions[: self._rows].numpy() if self._has_positions else None

    def is_ready(self, *, wait: bool) -> bool:
        if wait:
            self._event.synchronize()
        return bool(self._event.query())

    def release(self) -> None:
        self.is_free = True


class DeviceMemory:
    """Copies of a model that computes on a GPU: pinned slots, taken in turn.

    Never seen at work: it needs a GPU.
    """

    def __init__(self, capture: RoutingCapture) -> None:
        import torch  # noqa: PLC0415 - an inference node without torch imports this, too

        self._capture = capture
        self._slots = [_Slot(torch, capture) for _ in range(SLOTS)]

    def take(self, first: int, rows: int, positions: Any, *, keep: bool) -> HostCopy | None:  # noqa: ANN401
        """See `HostCopies`."""
        del keep
        slot = next((slot for slot in self._slots if slot.is_free), None)
        if slot is not None:
            slot.fill(self._capture, first, rows, positions)
        return slot


def host_copies(capture: RoutingCapture) -> HostCopies:
    """The copies for the device on which a capture's buffers are."""
    return HostMemory(capture) if capture.ids.device.type == "cpu" else DeviceMemory(capture)
