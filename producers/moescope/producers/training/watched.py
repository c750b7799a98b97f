"""The model that a trainer trains now: a trainer may make another one, or get one put around it."""

from __future__ import annotations

import weakref
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

    from moescope.core.vocabulary import Phase
    from moescope.producers.torch_probe import Probe
    from moescope.producers.torch_probe.requests import RequestFacts


class WatchedModel:
    """Keeps a probe on one model at a time, and is the probe that a `TrainingLoop` labels.

    Every model that was ever watched keeps the hook in front of its passes until `release`: what a
    collator puts into a batch has to be taken out of it whoever is watched.

    Args:
        attach: Attaches a probe to a model.
        before: Runs in front of a model's passes; what it returns are the pass's arguments.
        after: Runs behind the passes of the model that is watched, failed ones, too.

    Attributes:
        probe: Of the model that is watched; None without one.
    """

    def __init__(
        self,
        attach: Callable[[torch.nn.Module], Probe],
        before: Callable[..., Any],
        after: Callable[..., None],
    ) -> None:
        self._attach = attach
        self._before = before
        self._after = after
        self._attached = ExitStack()
        self._model: Callable[[], torch.nn.Module | None] = _nothing
        self._in_front: weakref.WeakKeyDictionary[torch.nn.Module, Any] = (
            weakref.WeakKeyDictionary()
        )
        self.probe: Probe | None = None

    def turn_to(self, model: torch.nn.Module) -> bool:
        """Watch this model, and no other one; whether it is another one than before.

        Raises:
            InputError: It cannot be watched.
        """
        watched = self._model()
        # A wrapper's passes are those of the model in it.
        if watched is not None and any(part is watched for part in model.modules()):
            return False
        self._let_go()
        self.stand_in_front(model)
        self.probe = self._attached.enter_context(self._attach(model))
        self._model = weakref.ref(model)
        # After the probe's own hook: the pass is recorded before its labels are gone.
        after = model.register_forward_hook(_OwnHook(self._after), always_call=True)
        self._attached.callback(after.remove)
        return True

    def stand_in_front(self, model: torch.nn.Module) -> None:
        """Run in front of a model's passes, watched or not."""
        if model not in self._in_front:
            self._in_front[model] = model.register_forward_pre_hook(
                _OwnHook(self._before), prepend=True, with_kwargs=True
            )

    def is_watching(self, model: torch.nn.Module) -> bool:
        """Whether this very model is watched: a replica of it is not."""
        return self.probe is not None and self._model() is model

    @contextmanager
    def batch(
        self,
        requests: Sequence[RequestFacts],
        *,
        phase: Phase | None = None,
        step: int | None = None,
    ) -> Iterator[None]:
        """See `Probe.batch`."""
        with (
            nullcontext()
            if self.probe is None
            else self.probe.batch(requests, phase=phase, step=step)
        ):
            yield

    def release(self) -> None:
        """Take all hooks off."""
        self._let_go()
        for handle in self._in_front.values():
            handle.remove()
        self._in_front.clear()

    def _let_go(self) -> None:
        self._attached.close()
        self.probe, self._model = None, _nothing


class _OwnHook:
    """A hook of the callback: where the model is copied, or saved and loaded, it does nothing.

    A compiler does not look into it: each pass has labels of its own.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        import torch  # noqa: PLC0415 - an inference node without torch imports this module, too

        self._call = torch.compiler.disable(call)

    def __call__(self, *args: Any) -> Any:
        """Do it."""
        return self._call(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        """What `copy` and `pickle` make instead: a function of any arguments that returns None."""
        return getattr, (nullcontext(), "__exit__")


def _nothing() -> None:
    return None
