"""Hooks on a model's modules: their copies do not inherit them, and compilers see operators.

Imported when a probe is attached, for it needs torch.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from moescope.producers.torch_probe.compiled import number_of
from moescope.producers.torch_probe.inputs import (
    RefusedPassError,
    argument_names,
    read_inputs,
    rows_given,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moescope.producers.torch_probe.families import RouterFamily
    from moescope.producers.torch_probe.probe import Probe


class Hook:
    """A hook of one probe.

    A copy of the model, or one that is saved and loaded, has a hook in its place that does
    nothing, and needs nothing of this package: the probe goes on watching the original alone.
    """

    __slots__ = ("__weakref__", "anchor", "number", "probe")

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.number = number_of(probe)
        self.anchor = probe.anchor

    def __reduce__(self) -> tuple[Any, ...]:
        """What `copy` and `pickle` make instead: a function of any arguments that returns None."""
        return getattr, (nullcontext(), "__exit__")


class BeforePass(Hook):
    """Runs when the tower's forward begins."""

    __slots__ = ("names",)

    def __init__(self, probe: Probe, tower: torch.nn.Module) -> None:
        super().__init__(probe)
        self.names = argument_names(tower)

    def __call__(
        self, _module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Arm the routers' hooks."""
        if torch.compiler.is_compiling():
            self._trace(args, kwargs)
        else:
            self.probe.begin_pass(self.names, args, kwargs)

    def _trace(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        try:
            inputs = read_inputs(self.names, args, kwargs).with_past()
        except Exception as error:  # noqa: BLE001 - a compiler that stops here stops the model
            reason = error.reason if isinstance(error, RefusedPassError) else "unreadable inputs"
            rows = rows_given(self.names, args, kwargs)
            torch.ops.moescope.refuse_pass(self.anchor, self.number, reason, rows)
            return
        past = inputs.past
        is_there = isinstance(past, torch.Tensor)
        torch.ops.moescope.begin_pass(
            self.anchor, self.number, inputs.batch, inputs.length, inputs.tokens, inputs.mask,
            inputs.attention, inputs.positions, None if is_there else past,
            past if is_there else None,
        )  # fmt: skip


class AfterPass(Hook):
    """Runs when the tower's forward has ended."""

    __slots__ = ()

    def __call__(self, _module: torch.nn.Module, _args: object, _output: object) -> None:
        """Record what the routers said."""
        if torch.compiler.is_compiling():
            torch.ops.moescope.end_pass(self.anchor, self.number)
        else:
            self.probe.end_pass()


class AfterRouter(Hook):
    """Is told what a router's forward returned: as a forward hook, or by a `WatchingForward`.

    Attributes:
        module: The router, or None when it is gone.
        of_thread: What each thread computes.
        place: Of the router among the MoE layers.
        family: How to read it.
        handle: Of the forward hook, where it is one.
        lock: Held while it becomes one.
    """

    __slots__ = ("_module", "family", "handle", "lock", "of_thread", "place")

    def __init__(
        self, probe: Probe, place: int, family: RouterFamily, module: torch.nn.Module
    ) -> None:
        super().__init__(probe)
        self.of_thread = probe.of_thread
        self._module = weakref.ref(module)
        self.place = place
        self.family = family
        self.handle: Any = None
        self.lock = threading.Lock()

    @property
    def module(self) -> torch.nn.Module | None:
        """The router, or None when it is gone."""
        return self._module()

    def take(self, module: torch.nn.Module) -> Any:  # noqa: ANN401 - torch has no types
        """Become a forward hook; what removes it again."""
        self.handle = module.register_forward_hook(self, with_kwargs=True)
        return self.handle

    def __call__(
        self,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        output: object,
    ) -> None:
        """Keep the router's tensors."""
        if torch.compiler.is_compiling():
            self.trace(module, args, kwargs, output)
        elif self._is_last(module):
            self.tell(module, args, kwargs, output)

    def _is_last(self, module: torch.nn.Module) -> bool:
        """Whether no other hook changes the output behind this one; from the next call on it is."""
        hooks = module._forward_hooks  # noqa: SLF001 - nothing else tells their order
        if hooks[next(reversed(hooks))] is self:
            return True
        try:
            hooks.move_to_end(self.handle.id)
        except Exception as error:  # noqa: BLE001 - inference comes first
            self.probe.give_up(error)
        else:
            self.probe.give_up(RefusedPassError("a hook was put behind the probe's"))
        return False

    def tell(
        self,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        output: object,
    ) -> None:
        """Keep the tensors of a router that has run; never raises."""
        # Without a pass this is a layer that is computed again for the gradient (its rows were
        # recorded already), or one that nobody announced.
        current = self.of_thread.current
        if current is None:
            return
        try:
            tensors = self.family.capture(module, args, kwargs, output)
            current.keep(self.place, module, tensors)
        except Exception as error:  # noqa: BLE001 - inference comes first
            self.probe.give_up(error)

    def trace(
        self,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        output: object,
    ) -> None:
        """Keep the tensors of a router that is compiled: by an operator in its graph."""
        # A watched forward is in front of hooks that came later.
        if self.handle is None and module._forward_hooks:  # noqa: SLF001 - nothing else tells
            reason = "a hook behind a compiled router"
            torch.ops.moescope.refuse_router(self.anchor, self.number, reason)
            return
        try:
            tensors = self.family.capture(module, args, kwargs, output)
        except Exception:  # noqa: BLE001 - a compiler that stops here stops the model
            torch.ops.moescope.refuse_router(self.anchor, self.number, "an unreadable router")
            return
        torch.ops.moescope.keep_router(self.anchor, self.number, self.place, list(tensors))
