"""A callback for transformers' `Trainer` that records the routing of a run."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Self

from moescope.producers.content_keys import checked_secret
from moescope.producers.torch_probe import attach
from moescope.producers.training.loop import TrainingLoop, sources_of
from moescope.producers.training.watched import WatchedModel

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    import torch

    from moescope.producers.torch_probe import Probe
    from moescope.producers.torch_probe.requests import RoutingSink

_log = logging.getLogger("moescope.producers")

_UNLABELLED: Final = "a training pass without labels"
_NOT_WATCHED: Final = "a pass of a model that the training callback does not watch"
_REPLICA: Final = "a replica of DataParallel"
_PACKED: Final = "sequences packed into one row"
_PACKERS: Final = ("cu_seq_lens_q", "cu_seqlens", "seq_idx")
"""Inputs that say where packed sequences begin."""
_SAID: Final = 8
"""Different complaints of one callback; further ones are counted only."""


class _OfThread(threading.local):
    """The labels of the pass that one thread computes."""

    def __init__(self) -> None:
        self.labels = ExitStack()


class RoutingCallback:
    """Records what a `Trainer`'s model routes: steps, micro-batches, sources.

        recorder = mp.Recorder(…, ranks=mp.Ranks(data_parallel=rank))
        with RoutingCallback(recorder, run="pretrain-7", source_column="source") as callback:
            Trainer(model=model, …, callbacks=[callback]).train()

    The probe is attached to the model that a trainer gets, then to the one that it trains: with
    `model_init`, and in another trainer, that is a new one, and the probe moves on. `close` takes
    it off. The optimizer step is the trainer's `global_step` while it computes the gradient;
    micro-batches are counted by forward passes. Passes in evaluation mode, or without a gradient,
    are of phase `eval`; their step is the number of steps that the model has behind it.

    Nothing raises once training has begun: a model that cannot be watched then (by its routers, or
    as a replica of DataParallel) is said in the log, and its rows are counted as unseen.

    It is a `TrainerCallback` in all but its base class, which would need transformers to be
    imported: every event that it does not know does nothing.

    Args:
        recorder: Made with `router_shape(model)`.
        run: Name of the run, in front of request ids.
        source_column: Name of an input with one source per sequence (texts, or numbers that become
            texts). It is taken out before the model sees it; it needs
            `TrainingArguments(remove_unused_columns=False)` and a collator that passes it on.
        rank: Of this process among those that compute different sequences.
        weights: Whether routing weights are recorded.
        scores: Whether router entropy and margin are recorded.
        content_key: The secret of content keys, 16 to 64 bytes, as of `attach`: they join these
            rows with those of an engine that computed the same texts. By default none are recorded.

    Raises:
        SettingsError: The content key is no such secret.
    """

    def __init__(
        self,
        recorder: RoutingSink,
        *,
        run: str,
        source_column: str = "",
        rank: int = 0,
        weights: bool = False,
        scores: bool = True,
        content_key: bytes | None = None,
    ) -> None:
        self._recorder = recorder
        self._source_column = source_column
        self._weights = weights
        self._scores = scores
        self._content_key = None if content_key is None else checked_secret(content_key)
        self._step = 0
        self._of_thread = _OfThread()
        self._said: set[str] = set()
        self._watched = WatchedModel(self._probe_on, self._before, self._after)
        self._loop = TrainingLoop(self._watched, run=run, rank=rank)

    @property
    def probe(self) -> Probe | None:
        """On the model that is watched now; None without one."""
        return self._watched.probe

    def on_init_end(self, _args: object, state: Any, _control: object, **known: Any) -> None:
        """The trainer has its model.

        Raises:
            InputError: The probe does not know its routers, or the recorder is for another model.
        """
        try:
            is_another = self._watched.turn_to(known["model"])
        except Exception:
            self.close()
            raise
        if is_another:
            self._step = int(getattr(state, "global_step", 0))

    def on_train_begin(self, _args: object, state: Any, _control: object, **known: Any) -> None:
        """The trainer may have got this callback later, or another model since."""
        self._step = int(state.global_step)
        model = known.get("model")
        try:
            self._watched.turn_to(model)
        except Exception as error:  # noqa: BLE001 - training comes first
            self._complain(f"The model that is trained now is not recorded: {error}")
            if model is not None:
                self._watched.stand_in_front(model)

    def on_step_begin(self, _args: object, state: Any, _control: object, **_known: object) -> None:
        """An optimizer step begins."""
        self._step = int(state.global_step)

    def on_step_end(self, _args: object, state: Any, _control: object, **_known: object) -> None:
        """What is evaluated from now on is the model after so many steps."""
        self._step = int(state.global_step)

    def close(self) -> None:
        """Detach: the model is as it was before."""
        self._of_thread.labels.close()
        self._watched.release()

    def __enter__(self) -> Self:
        """The callback itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Events that need nothing done."""
        if not name.startswith("on_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return _ignore

    def _probe_on(self, model: torch.nn.Module) -> Probe:
        return attach(
            model,
            self._recorder,
            weights=self._weights,
            scores=self._scores,
            content_key=self._content_key,
        )

    def _before(
        self,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        inputs: dict[str, Any],
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        sources = inputs.pop(self._source_column, None) if self._source_column else None
        try:
            self._of_thread.labels.close()
            reason = self._why_not(model, inputs)
            if reason:
                self._complain(f"Passes are not recorded: {reason}")
                self._recorder.miss(_tokens(args, inputs), reason)
            else:
                rows = len(_computed(args, inputs))
                self._begin(rows, self._texts(sources, rows), is_training=_is_training(model))
        except Exception as error:  # noqa: BLE001 - training comes first
            self._complain(f"A training pass is not recorded: {error}")
            self._recorder.miss(_tokens(args, inputs), _UNLABELLED)
        return args, inputs

    def _why_not(self, model: torch.nn.Module, inputs: dict[str, Any]) -> str:
        """Why a pass cannot be recorded, or empty."""
        if not self._watched.is_watching(model):
            return _REPLICA if getattr(model, "_is_replica", False) else _NOT_WATCHED
        # Where positions begin anew the probe itself sees it.
        if inputs.get("position_ids") is None and any(
            inputs.get(name) is not None for name in _PACKERS
        ):
            return _PACKED
        return ""

    def _texts(self, sources: Any, rows: int) -> list[str] | None:
        if sources is None:
            return None
        texts = [sources] if isinstance(sources, str) else sources_of(sources)
        if len(texts) != rows:
            self._complain(
                f"{len(texts)} sources for {rows} sequences: they are recorded as unknown"
            )
            return None
        return texts

    def _complain(self, message: str) -> None:
        if message not in self._said and len(self._said) < _SAID:
            self._said.add(message)
            _log.warning("%s (said once).", message)

    def _begin(self, rows: int, sources: list[str] | None, *, is_training: bool) -> None:
        kind = self._loop.micro_batch if is_training else self._loop.evaluation
        self._of_thread.labels.enter_context(kind(self._step, sources=sources, rows=rows))

    def _after(self, _model: object, _args: object, _output: object) -> None:
        try:
            self._of_thread.labels.close()
        except Exception as error:  # noqa: BLE001 - training comes first
            _log.warning("The end of a training pass is not recorded: %s", error)


def _ignore(*_args: object, **_known: object) -> None:
    return None


def _is_training(model: torch.nn.Module) -> bool:
    import torch  # noqa: PLC0415 - an inference node without torch imports this module, too

    # What is computed without a gradient changes no weight, whatever mode the model is in.
    return bool(model.training) and torch.is_grad_enabled()


def _computed(args: tuple[Any, ...], inputs: dict[str, Any]) -> Any:
    ids = args[0] if args else inputs.get("input_ids")
    return inputs["inputs_embeds"] if ids is None else ids


def _tokens(args: tuple[Any, ...], inputs: dict[str, Any]) -> int:
    """How many a pass computes, as well as can be told: at least one."""
    try:
        batch, length = _computed(args, inputs).shape[:2]
        return int(batch) * int(length)
    except Exception:  # noqa: BLE001 - it may be anything
        return 1
