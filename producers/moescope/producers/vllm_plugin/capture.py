"""What the routers chose in one forward pass, written to buffers beside the model.

The buffers are allocated once, on the model's device. A router's choice is copied into them where
it is made, by operations of a fixed shape and address: a CUDA graph that was captured with them
fills them at each replay. They are read after the step.
"""

from __future__ import annotations

from ctypes import memmove
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NOT_ROUTED: Final = -1
"""Rows of a layer whose router was not called."""

_ENTRY_BYTES: Final = 4
_OPERATION: Final = "moescope::observe_routing"


class RoutingCapture:
    """Buffers of one model's routers.

    Attributes:
        is_armed: Whether calls are written; those of warm-up and profiling are not.
        takes_weights: Whether weights are written, too.
        top_k: k.
        ids: int32 [N, L, k].
        weights: float32 [N, L, k].
        rows_on_device: int32 [L] where graphs may replay calls, else None.

    Args:
        layers: L.
        rows: N, the most rows that a pass can have.
        top_k: k.
        device: Of the model.
        is_replayed: Whether a CUDA graph may make calls that Python does not see.
    """

    def __init__(
        self,
        layers: int,
        rows: int,
        top_k: int,
        device: Any,
        *,
        is_replayed: bool,
    ) -> None:
        import torch  # noqa: PLC0415 - an inference node without torch imports this, too

        self._torch = torch
        self.top_k = top_k
        self._rows: list[int] = [NOT_ROUTED] * layers
        self._calls = 0
        self.is_armed = False
        self.takes_weights = True
        self.ids = _buffer(rows, layers, top_k, torch.int32, device)
        self.weights = _buffer(rows, layers, top_k, torch.float32, device)
        self.rows_on_device = (
            torch.full((layers,), NOT_ROUTED, dtype=torch.int32, device=device)
            if is_replayed
            else None
        )
        self._most_rows = rows
        self._ids_dtype, self._weights_dtype = torch.int32, torch.float32

        # On the host a few rows are copied by their addresses: all else that copies them takes
        # several times as long in a model's critical path.
        self._addresses = (
            [(ids.data_ptr(), weights.data_ptr()) for ids, weights in
             zip(self.ids.unbind(1), self.weights.unbind(1), strict=True)]
            if self.ids.is_cpu and not is_replayed
            else None
        )  # fmt: skip

    @property
    def layers(self) -> int:
        """L."""
        return len(self._rows)

    def arm(self, *, takes_weights: bool = True) -> None:
        """The pass that follows is one to record, with or without weights."""
        self.takes_weights = takes_weights
        self._rows = [NOT_ROUTED] * len(self._rows)
        self._calls = 0
        if self.rows_on_device is not None:
            self.rows_on_device.fill_(NOT_ROUTED)
        self.is_armed = True

    def disarm(self) -> None:
        """The pass is over."""
        self.is_armed = False

    def observe(self, layer: int, ids: Any, weights: Any) -> None:
        """Note one router's choice; ids and weights [T, k]. Never raises."""
        if not self.is_armed and (
            self.rows_on_device is None or not self._torch.cuda.is_current_stream_capturing()
        ):
            return
        try:
            rows, width = ids.shape
            if rows > self._most_rows or width != self.top_k:
                rows = NOT_ROUTED
            elif (
                self._addresses is not None
                and self._are_plain(ids, weights)
                and (from_ids := ids.data_ptr())  # none where a tensor has no memory of its own
                and (from_weights := weights.data_ptr())
            ):
                to_ids, to_weights = self._addresses[layer]
                size = rows * self.top_k * _ENTRY_BYTES
                memmove(to_ids, from_ids, size)
                if self.takes_weights:
                    memmove(to_weights, from_weights, size)
            else:
                self._copy(layer, rows, ids, weights)
            self._rows[layer] = rows
            self._calls += 1
            if self.rows_on_device is not None:
                self.rows_on_device[layer].fill_(rows)
        except Exception:  # noqa: BLE001 - inference comes first; the step is refused
            self._rows[layer] = NOT_ROUTED

    def _are_plain(self, ids: Any, weights: Any) -> bool:
        """Whether what a router chose lies in the host's memory as it does in the buffers."""
        tensor = self._torch.Tensor  # subclasses may have their memory elsewhere
        return (
            type(ids) is tensor
            and type(weights) is tensor
            and ids.dtype is self._ids_dtype
            and weights.dtype is self._weights_dtype
            and weights.shape == ids.shape
            and ids.is_cpu
            and weights.is_cpu
            and ids.is_contiguous()
            and weights.is_contiguous()
            and not ids.is_neg()
            and not weights.is_neg()
        )

    def _copy(self, layer: int, rows: int, ids: Any, weights: Any) -> None:
        self.ids[:rows, layer].copy_(ids)
        # A graph is captured once, for passes with weights and without.
        if self.takes_weights or self.rows_on_device is not None:
            self.weights[:rows, layer].copy_(weights)

    def rows_seen(self) -> Sequence[int]:
        """Rows of each layer in the pass, as far as Python saw it.

        Empty when a layer was routed more than once: then the buffers hold a mixture.
        """
        return self._rows if self._calls <= len(self._rows) else ()


def _buffer(rows: int, layers: int, top_k: int, dtype: Any, device: Any) -> Any:
    """Zeros [N, L, k], of which on the host each layer's lie together."""
    import torch  # noqa: PLC0415 - see above

    if torch.device(device).type == "cpu":
        return torch.zeros((layers, rows, top_k), dtype=dtype).transpose(0, 1)
    return torch.zeros((rows, layers, top_k), dtype=dtype, device=device)


def wrap_router(router: Any, capture: RoutingCapture, layer: int) -> Callable[[], None]:
    """Have a router's choices noted, by its logical ids, around whoever wrapped it before.

    Args:
        router: A `BaseRouter` of vLLM.
        capture: Where to.
        layer: Index among the model's routers.

    Returns:
        What takes the wrapper off again.
    """
    torch, operation = _operation()
    earlier = router._compute_routing  # noqa: SLF001 - vLLM has no public place for this
    had_own = "_compute_routing" in vars(router)

    def compute_routing(*args: Any, **kwargs: Any) -> Any:
        weights, ids = earlier(*args, **kwargs)
        if torch.compiler.is_compiling():
            # Python is traced away: what is to happen at each pass has to be an operation.
            return weights, operation(ids, weights, layer)
        capture.observe(layer, ids, weights)
        return weights, ids

    def unwrap() -> None:
        if vars(router).get("_compute_routing") is not compute_routing:
            return  # somebody wrapped it after us
        if had_own:
            router._compute_routing = earlier  # noqa: SLF001 - put back
        else:
            del router._compute_routing  # noqa: SLF001 - likewise

    router._compute_routing = compute_routing  # noqa: SLF001 - see above
    return unwrap


class _Observed:
    """The capture that compiled code reports to: the one whose engine is in a pass."""

    capture: RoutingCapture | None = None


def route_compiled_to(capture: RoutingCapture | None) -> None:
    """Have compiled code report to a capture, or to none."""
    _Observed.capture = capture


_defined: list[Any] = []


def _operation() -> tuple[Any, Any]:
    """torch, and the opaque operation that compiled code calls.

    It returns a copy of the ids, which the model goes on with: so no compiler can drop it.
    """
    import torch  # noqa: PLC0415 - see above

    if not _defined:

        def observe_routing(ids: Any, weights: Any, layer: int) -> Any:
            capture = _Observed.capture
            if capture is not None:
                capture.observe(layer, ids, weights)
            return ids.clone()

        def shape_of(ids: Any, _weights: Any, _layer: int) -> Any:
            return torch.empty_like(ids)

        defined = torch.library.custom_op(
            _OPERATION,
            observe_routing,
            mutates_args=(),
            schema="(Tensor ids, Tensor weights, int layer) -> Tensor",
        )
        defined.register_fake(shape_of)
        _defined.append(torch.ops.moescope.observe_routing.default)
    return torch, _defined[0]
