"""A router that tells what its forward returned, for a third of what a forward hook costs.

torch calls a module that has hooks in a general way that costs 12 µs a call (decision 22). So a
watched router has a `forward` of its own, as many libraries give one to modules. Where it has one
already, has forward hooks, or is of an unusual kind, a forward hook is taken: it sees what the
others make of the output.

Imported when a probe is attached, for it needs torch.
"""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
from torch.nn.modules.module import _global_forward_hooks

from moescope.producers.torch_probe.hooks import AfterRouter

if TYPE_CHECKING:
    from collections.abc import Callable

_FORWARD: Final = "forward"
_REPLICATE: Final = "_replicate_for_data_parallel"
_STATE: Final = "__getstate__"
_is_compiling = torch.compiler.is_compiling


class Removable(Protocol):
    """What ends something that was begun on a module."""

    def remove(self) -> None:
        """End it."""
        ...


class _InPlace:
    """Stands in a method's place on one module; a copy of the module has the method again."""

    name: str

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        method: Any = getattr(module, self.name)
        functools.update_wrapper(self, method)  # type: ignore[arg-type] # it takes any callable

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, str]]:
        """What `copy` and `pickle` make instead: the method of the module's copy."""
        return getattr, (self.module, self.name)

    def put(self) -> None:
        """Stand there from now on, whatever the module makes of attributes that are set."""
        vars(self.module)[self.name] = self

    def remove(self) -> None:
        """Leave the place, unless somebody put something else there meanwhile."""
        if vars(self.module).get(self.name) is self:
            del vars(self.module)[self.name]


class _Replicate(_InPlace):
    """Makes replicas for `DataParallel` that compute by themselves, and are not watched."""

    name = _REPLICATE

    def __call__(self) -> torch.nn.Module:
        """A replica."""
        replica: torch.nn.Module = getattr(type(self.module), _REPLICATE)(self.module)
        replica.__dict__ = _without_us(vars(replica))
        return replica


class _GetState(_InPlace):
    """What a module is copied and saved by: without what stands in its methods' places."""

    name = _STATE

    def __call__(self) -> Any:  # noqa: ANN401 - what the module's class makes of it
        """The state."""
        state = getattr(type(self.module), _STATE)(self.module)
        return _without_us(state) if isinstance(state, dict) else state


def _without_us(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: kept for name, kept in attributes.items() if not isinstance(kept, _InPlace)}


class WatchingForward(_InPlace):
    """A router's forward, which keeps what it returned.

    Attributes:
        hook: What is told.
    """

    name = _FORWARD

    def __init__(self, module: torch.nn.Module, hook: AfterRouter) -> None:
        super().__init__(module)
        self.hook = hook
        self._place = hook.place
        self._of_thread = hook.of_thread
        self._is_passive = False

    def remove(self) -> None:
        """Watch no longer; whoever kept this forward may go on calling it."""
        self._is_passive = True
        super().remove()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - any module's
        """Compute, and keep what is returned."""
        module = self.module
        output = type(module).forward(module, *args, **kwargs)
        # Here and not in a function: each call more costs all layers of all passes.
        if self._is_passive:
            return output
        if _is_compiling():
            self.hook.trace(module, args, kwargs, output)
            return output
        current: Any = self._of_thread.current
        if current is None:
            return output
        if (
            module._forward_hooks  # noqa: SLF001 - nothing else tells
            or _global_forward_hooks
            or vars(module).get(_FORWARD) is not self
        ):
            self._take_hook()
            return output
        outputs = current.outputs
        if outputs is None:
            self.hook.tell(module, args, kwargs, output)
            return output
        place = self._place
        if outputs[place] is not None:
            current.has_repeated = True
        outputs[place] = output
        current.modules[place] = module
        return output

    def _take_hook(self) -> None:
        """Others change the output behind this forward: be told by a hook behind them.

        torch calls it already in this call if it has seen a hook at its beginning. Else the pass
        lacks a router, and is counted.
        """
        with self.hook.lock:
            if not self._is_passive:
                self.hook.take(self.module)
                self._is_passive = True


def watch(module: torch.nn.Module, hook: AfterRouter) -> Removable:
    """Tell a hook what a router returns from now on."""
    is_usual = isinstance(
        inspect.getattr_static(type(module), _FORWARD, None), types.FunctionType
    ) and not isinstance(module, torch.jit.ScriptModule)
    if is_usual and _FORWARD not in vars(module) and not _has_hooks(module):
        places = [_Replicate(module), _GetState(module), WatchingForward(module, hook)]
        for place in places:
            place.put()
        return _Watched(places, hook)
    handle: Removable = hook.take(module)
    return handle


class _Watched:
    """Ends the watch of a router, which it does not keep alive."""

    def __init__(self, places: list[_InPlace], hook: AfterRouter) -> None:
        self._places = [weakref.ref(place) for place in places]
        self._hook = weakref.ref(hook)

    def remove(self) -> None:
        """The router is as it was before."""
        hook = self._hook()
        if hook is not None and hook.handle is not None:
            hook.handle.remove()
        for reference in self._places:
            place = reference()
            if place is not None:
                place.remove()


def hook_on(module: torch.nn.Module) -> AfterRouter | None:
    """The hook that is told what a router returns."""
    forward = vars(module).get(_FORWARD)
    if isinstance(forward, WatchingForward):
        return forward.hook
    hooks = module._forward_hooks.values()  # noqa: SLF001 - the only list
    return next((hook for hook in hooks if isinstance(hook, AfterRouter)), None)


def _has_hooks(module: torch.nn.Module) -> bool:
    return bool(module._forward_hooks or _global_forward_hooks)  # noqa: SLF001 - as above
