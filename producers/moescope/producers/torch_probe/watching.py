"""A router that tells what its forward returned, for a third of what a forward hook costs.

torch calls a module that has hooks in a general way that costs 12 µs a call (decision 0022). So a
watched router becomes an instance of a class derived from its own, whose `forward` keeps what it
returned. Where a module has hooks anyway, or a `forward` of its own, a hook is taken: it sees what
the others make of the output.

Imported when a probe is attached, for it needs torch.
"""

from __future__ import annotations

import copyreg
import functools
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
from torch.nn.modules.module import _global_forward_hooks

from moescope.producers.torch_probe.hooks import AfterRouter

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME: Final = "_moescope_watch"
_MARK: Final = "_moescope_watches"
# How pickle makes an instance by its newer protocols, and by the older ones.
_MAKE: Final = vars(copyreg)["__newobj__"]
_MAKE_OF_OLD: Final = vars(copyreg)["_reconstructor"]
_is_compiling = torch.compiler.is_compiling
_lock: Final = threading.Lock()
_classes: Final[dict[type[torch.nn.Module], type[torch.nn.Module]]] = {}


class Removable(Protocol):
    """What ends something that was begun on a module."""

    def remove(self) -> None:
        """End it."""
        ...


class Watch:
    """That a router's forward is watched; lies on the router itself, and nowhere else.

    Attributes:
        hook: What is told.
        place: Of the router among the MoE layers.
        of_thread: What each thread computes.
        hooked: Set where a forward hook tells it, since others change the output behind forward.
    """

    __slots__ = ("hook", "hooked", "of_thread", "place")

    def __init__(self, hook: AfterRouter) -> None:
        self.hook = hook
        self.place = hook.place
        self.of_thread = hook.of_thread
        self.hooked: Removable | None = None

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        """A copy of the router is not watched."""
        return type(None), ()


class _Watched:
    """Ends the watch of a router, which it does not keep alive."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = weakref.ref(module)

    def remove(self) -> None:
        """The router is as it was before."""
        module = self._module()
        if module is None:
            return
        found = module.__dict__.pop(_NAME, None)
        if found is not None and found.hooked is not None:
            found.hooked.remove()
        kind = type(module)
        # Who has derived a class of this one meanwhile keeps it: without a watch it does nothing.
        if _MARK in vars(kind):
            module.__class__ = kind.__mro__[1]


def watch(module: torch.nn.Module, hook: AfterRouter) -> Removable:
    """Tell a hook what a router returns from now on."""
    kind = type(module)
    if not (module._forward_hooks or _global_forward_hooks or "forward" in vars(module)):  # noqa: SLF001 - nothing else tells
        try:
            if not hasattr(kind, _MARK):  # else others derived from a class of ours
                _classes[kind] = module.__class__ = _classes.get(kind) or _watching(kind)
        except TypeError:  # a class that cannot be derived from, or exchanged
            pass
        else:
            module.__dict__[_NAME] = Watch(hook)
            return _Watched(module)
    handle: Removable = module.register_forward_hook(hook, with_kwargs=True)
    return handle


def hook_on(module: torch.nn.Module) -> AfterRouter | None:
    """The hook that is told what a router returns."""
    found = vars(module).get(_NAME)
    if isinstance(found, Watch):
        return found.hook
    hooks = module._forward_hooks.values()  # noqa: SLF001 - the only list
    return next((hook for hook in hooks if isinstance(hook, AfterRouter)), None)


def _take_hook(module: torch.nn.Module, found: Watch) -> None:
    """Be told by the module's last hook from now on, and already of the call that goes on."""
    with _lock:
        if found.hooked is None:
            found.hooked = module.register_forward_hook(found.hook, with_kwargs=True)


def _watching(kind: type[torch.nn.Module]) -> type[torch.nn.Module]:
    """A class like this one, whose instances are watched."""

    @functools.wraps(kind.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - any module
        output = kind.forward(self, *args, **kwargs)
        found = self._moescope_watch
        # Here and not in a function: each call more costs all layers of all passes.
        if found is None or found.hooked is not None:
            return output
        if _is_compiling():
            found.hook.trace(self, args, kwargs, output)
            return output
        current = found.of_thread.current
        if current is None:
            return output
        if self._forward_hooks or _global_forward_hooks:
            _take_hook(self, found)
            return output
        outputs = current.outputs
        if outputs is None:
            found.hook.tell(self, args, kwargs, output)
            return output
        place = found.place
        if outputs[place] is not None:
            current.has_repeated = True
        outputs[place] = output
        current.modules[place] = self
        return output

    def __reduce_ex__(self: Any, protocol: Any) -> Any:  # noqa: ANN401, N807 - any module
        """As an instance of the plain class."""
        reduced = super(watching, self).__reduce_ex__(protocol)
        if not isinstance(reduced, tuple) or reduced[:2] != (_MAKE, (watching,)):
            return reduced
        # What `pickle` knows how to make is of the instance's own class.
        return _MAKE_OF_OLD, (kind, object, None), *reduced[2:]

    members = {
        "forward": forward,
        "__reduce_ex__": __reduce_ex__,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        _NAME: None,
        _MARK: True,
    }
    make: Any = type(kind)  # its metaclass
    watching: type[torch.nn.Module] = make(kind.__name__, (kind,), members)
    return watching
