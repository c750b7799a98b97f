"""From a capture's buffers to the host, without making the engine wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from moescope.producers.vllm_plugin.capture import RoutingCapture
    from moescope.producers.vllm_plugin.step import Step

SLOTS: Final = 3
"""Passes whose copies may be under way at once: an engine schedules one ahead of the device."""


class HostRows(NamedTuple):
    """The rows of one pass.

    Attributes:
        ids: int32 [T, L, k].
        weights: float32 [T, L, k].
        rows_seen: Rows with which each router was called.
        positions: Integers [T], where the device had to tell them.
        token_ids: Integers [T], if they were asked for.
    """

    ids: NDArray[Any]
    weights: NDArray[Any]
    rows_seen: Sequence[int]
    positions: NDArray[Any] | None
    token_ids: NDArray[Any] | None


class HostCopy(Protocol):
    """A pass's rows on their way to the host."""

    def is_ready(self, *, wait: bool) -> bool:
        """Whether they have arrived; waits for them if asked to."""
        ...

    def rows(self) -> HostRows:
        """The rows, once they are there and until they are released."""
        ...

    def release(self) -> None:
        """The rows are needed no longer."""
        ...


class HostCopies(Protocol):
    """Begins copies."""

    def take(self, step: Step, first: int, *, keep: bool) -> HostCopy | None:
        """Begin to copy a pass's rows.

        Args:
            step: The pass.
            first: Where its rows begin in the buffers.
            keep: Whether they are needed beyond the beginning of the next pass.

        Returns:
            None when too many copies are under way.
        """
        ...


class _Here:
    """Rows in the host's own memory."""

    def __init__(self, rows: HostRows) -> None:
        self._rows = rows

    def is_ready(self, *, wait: bool) -> bool:
        """Always."""
        del wait
        return True

    def rows(self) -> HostRows:
        """See `HostCopy`."""
        return self._rows

    def release(self) -> None:
        """Nothing to do."""


class HostMemory:
    """Copies of a model that computes on the host: views, unless they have to be kept.

    Args:
        capture: Whose buffers.
        with_token_ids: Whether token ids are taken along.
    """

    def __init__(self, capture: RoutingCapture, *, with_token_ids: bool) -> None:
        self._capture = capture
        self._with_token_ids = with_token_ids
        self._ids = capture.ids.numpy()
        self._weights = capture.weights.numpy()

    def take(self, step: Step, first: int, *, keep: bool) -> HostCopy:
        """See `HostCopies`."""
        part = slice(first, first + step.rows)
        ids, weights = self._ids[part], self._weights[part]
        positions = None if step.positions is None else step.positions[: step.rows].numpy()
        token_ids = None
        if self._with_token_ids and step.token_ids is not None:
            token_ids = step.token_ids[: step.rows].numpy()
        if keep:
            ids, weights = ids.copy(), weights.copy()
            positions = None if positions is None else positions.copy()
            token_ids = None if token_ids is None else token_ids.copy()
        return _Here(HostRows(ids, weights, self._capture.rows_seen(), positions, token_ids))


class _Slot:
    """Pinned memory for one pass, filled in the device's own order of work."""

    def __init__(self, torch: Any, capture: RoutingCapture) -> None:
        def pinned(shape: Any, dtype: Any) -> Any:
            return torch.empty(shape, dtype=dtype, pin_memory=True)

        most = capture.ids.shape[0]
        self._ids = pinned(capture.ids.shape, capture.ids.dtype)
        self._weights = pinned(capture.weights.shape, capture.weights.dtype)
        self._positions = pinned((most,), torch.int64)
        self._token_ids = pinned((most,), torch.int64)
        self._rows_seen = pinned((capture.layers,), torch.int32)
        self._told: Sequence[int] = ()
        self._rows = 0
        self._has: tuple[bool, bool] = (False, False)
        self._event = torch.cuda.Event()
        self.is_free = True

    def fill(self, capture: RoutingCapture, step: Step, first: int, token_ids: Any) -> None:
        """Begin to copy."""
        rows = step.rows
        self.is_free = False
        self._rows = rows
        self._has = (step.positions is not None, token_ids is not None)
        self._told = () if capture.rows_on_device is not None else capture.rows_seen()
        for target, source in (
            (self._ids, capture.ids[first:]),
            (self._weights, capture.weights[first:]),
            (self._positions, step.positions),
            (self._token_ids, token_ids),
        ):
            if source is not None:
                target[:rows].copy_(source[:rows], non_blocking=True)
        if capture.rows_on_device is not None:
            self._rows_seen.copy_(capture.rows_on_device, non_blocking=True)
        self._event.record()

    def is_ready(self, *, wait: bool) -> bool:
        """See `HostCopy`."""
        if wait:
            self._event.synchronize()
        return bool(self._event.query())

    def rows(self) -> HostRows:
        """See `HostCopy`."""
        has_positions, has_token_ids = self._has
        return HostRows(
            self._ids[: self._rows].numpy(),
            self._weights[: self._rows].numpy(),
            self._told or self._rows_seen.tolist(),
            self._positions[: self._rows].numpy() if has_positions else None,
            self._token_ids[: self._rows].numpy() if has_token_ids else None,
        )

    def release(self) -> None:
        """See `HostCopy`."""
        self.is_free = True


class DeviceMemory:
    """Copies of a model that computes on a GPU: pinned slots, used in turn.

    Never seen at work: it needs a GPU.

    Args:
        capture: Whose buffers.
        with_token_ids: Whether token ids are taken along.
    """

    def __init__(self, capture: RoutingCapture, *, with_token_ids: bool) -> None:
        import torch  # noqa: PLC0415 - an inference node without torch imports this, too

        self._capture = capture
        self._with_token_ids = with_token_ids
        self._slots = [_Slot(torch, capture) for _ in range(SLOTS)]

    def take(self, step: Step, first: int, *, keep: bool) -> HostCopy | None:
        """See `HostCopies`."""
        del keep
        slot = next((slot for slot in self._slots if slot.is_free), None)
        if slot is not None:
            slot.fill(self._capture, step, first, step.token_ids if self._with_token_ids else None)
        return slot


def host_copies(capture: RoutingCapture, *, with_token_ids: bool) -> HostCopies:
    """The copies for the device on which a capture's buffers are."""
    kind = HostMemory if capture.ids.device.type == "cpu" else DeviceMemory
    return kind(capture, with_token_ids=with_token_ids)
