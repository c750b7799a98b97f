"""Hooks on a model's modules that its copies do not inherit."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from moescope.producers.torch_probe.families import RouterFamily
    from moescope.producers.torch_probe.probe import Probe


class Hook:
    """A hook of one probe.

    A copy of the model, or one that is saved and loaded, has a hook in its place that does
    nothing, and needs nothing of this package: the probe goes on watching the original alone.
    """

    __slots__ = ("probe",)

    def __init__(self, probe: Probe) -> None:
        self.probe = probe

    def __reduce__(self) -> tuple[Any, ...]:
        """What `copy` and `pickle` make instead: a function of any arguments that returns None."""
        return getattr, (nullcontext(), "__exit__")


class BeforePass(Hook):
    """Runs when the tower's forward begins."""

    __slots__ = ()

    def __call__(
        self, _module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Arm the routers' hooks."""
        self.probe.begin_pass(args, kwargs)


class AfterPass(Hook):
    """Runs when the tower's forward has ended."""

    __slots__ = ()

    def __call__(self, _module: torch.nn.Module, _args: object, _output: object) -> None:
        """Record what the routers said."""
        self.probe.end_pass()


class AfterRouter(Hook):
    """Runs when a router's forward has ended."""

    __slots__ = ("_of_thread", "family", "place")

    def __init__(self, probe: Probe, place: int, family: RouterFamily) -> None:
        super().__init__(probe)
        self._of_thread = probe.of_thread
        self.place = place
        self.family = family

    def __call__(
        self,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        output: object,
    ) -> None:
        """Keep the router's tensors."""
        # Without a pass this is a layer that is computed again for the gradient (its rows were
        # recorded already), or one that nobody announced.
        current = self._of_thread.current
        if current is None:
            return
        try:
            current.keep(
                self.place, self.family, module, self.family.capture(module, args, kwargs, output)
            )
        except Exception as error:  # noqa: BLE001 - inference comes first
            self.probe.give_up(error)
