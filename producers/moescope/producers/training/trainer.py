"""A callback for transformers' `Trainer` that records the routing of a run."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from moescope.producers.content_keys import checked_secret
from moescope.producers.torch_probe import attach
from moescope.producers.training.loop import TrainingLoop

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    import torch

    from moescope.producers.torch_probe import Probe
    from moescope.producers.torch_probe.requests import RoutingSink

_log = logging.getLogger("moescope.producers")


class RoutingCallback:
    """Records what a `Trainer`'s model routes: steps, micro-batches, sources.

        recorder = mp.Recorder(…, ranks=mp.Ranks(data_parallel=rank))
        with RoutingCallback(recorder, run="pretrain-7", source_column="source") as callback:
            Trainer(model=model, …, callbacks=[callback]).train()

    The probe is attached when training begins, and detached by `close`. The optimizer step is the
    trainer's `global_step` while it computes the gradient; micro-batches are counted by forward
    passes. Passes in evaluation mode are of phase `eval`; their step is the number of steps that
    the model has behind it.

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
        self._run = run
        self._rank = rank
        self._source_column = source_column
        self._weights = weights
        self._scores = scores
        self._content_key = None if content_key is None else checked_secret(content_key)
        self._step = 0
        self._micro_batch = 0
        self._pass = ExitStack()
        self._attached = ExitStack()
        self._has_complained = False
        self._loop: TrainingLoop | None = None
        self.probe: Probe | None = None

    def on_init_end(self, _args: object, _state: object, _control: object, **known: Any) -> None:
        """The trainer has its model."""
        self._attach(known["model"])

    def on_train_begin(self, _args: object, state: Any, _control: object, **known: Any) -> None:
        """The trainer may have got this callback later."""
        self._attach(known["model"])
        self._step = int(state.global_step)

    def on_step_begin(self, _args: object, state: Any, _control: object, **_known: object) -> None:
        """An optimizer step begins."""
        self._step = int(state.global_step)
        self._micro_batch = 0

    def on_step_end(self, _args: object, state: Any, _control: object, **_known: object) -> None:
        """What is evaluated from now on is the model after so many steps."""
        self._step = int(state.global_step)

    def close(self) -> None:
        """Detach: the model is as it was before."""
        self._pass.close()
        self._attached.close()
        self.probe = self._loop = None

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

    def _attach(self, model: torch.nn.Module) -> None:
        if self.probe is not None:
            return
        before = model.register_forward_pre_hook(self._before, prepend=True, with_kwargs=True)
        self._attached.callback(before.remove)
        probe = attach(
            model,
            self._recorder,
            weights=self._weights,
            scores=self._scores,
            content_key=self._content_key,
        )
        self.probe = self._attached.enter_context(probe)
        self._loop = TrainingLoop(self.probe, run=self._run, rank=self._rank)
        # After the probe's own hook: the pass is recorded before its labels are gone.
        after = model.register_forward_hook(self._after, always_call=True)
        self._attached.callback(after.remove)

    def _before(
        self,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        inputs: dict[str, Any],
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        sources = inputs.pop(self._source_column, None) if self._source_column else None
        try:
            self._pass.close()
            if self._loop is not None:
                rows = len(_computed(args, inputs))
                self._begin(
                    self._loop, rows, self._texts(sources, rows), is_training=model.training
                )
        except Exception as error:  # noqa: BLE001 - training comes first
            self._complain(f"A training pass is not recorded: {error}")
            self._recorder.miss(_tokens(args, inputs), "a training pass without labels")
        return args, inputs

    def _texts(self, sources: Any, rows: int) -> list[str] | None:
        if sources is None:
            return None
        texts = [
            str(each) for each in (sources.tolist() if hasattr(sources, "tolist") else sources)
        ]
        if len(texts) != rows:
            self._complain(
                f"{len(texts)} sources for {rows} sequences: they are recorded as unknown"
            )
            return None
        return texts

    def _complain(self, message: str) -> None:
        if not self._has_complained:
            self._has_complained = True
            _log.warning("%s (said once).", message)

    def _begin(
        self, loop: TrainingLoop, rows: int, sources: list[str] | None, *, is_training: bool
    ) -> None:
        if is_training:
            labels = loop.micro_batch(
                self._step, sources=sources, rows=rows, micro_batch=self._micro_batch
            )
            self._micro_batch += 1
        else:
            labels = loop.evaluation(self._step, sources=sources, rows=rows)
        self._pass.enter_context(labels)

    def _after(self, _model: object, _args: object, _output: object) -> None:
        try:
            self._pass.close()
        except Exception as error:  # noqa: BLE001 - training comes first
            _log.warning("The end of a training pass is not recorded: %s", error)


def _ignore(*_args: object, **_known: object) -> None:
    return None


def _computed(args: tuple[Any, ...], inputs: dict[str, Any]) -> Any:
    ids = args[0] if args else inputs.get("input_ids")
    return inputs["inputs_embeds"] if ids is None else ids


def _tokens(args: tuple[Any, ...], inputs: dict[str, Any]) -> int:
    """How many a pass computes, as well as can be told."""
    try:
        batch, length = _computed(args, inputs).shape[:2]
        return int(batch) * int(length)
    except Exception:  # noqa: BLE001 - it may be anything
        return 0
