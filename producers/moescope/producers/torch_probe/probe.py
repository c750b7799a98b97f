"""The probe: hooks on a model and its routers, armed from a pass's beginning to its end."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from moescope.core.errors import InputError
from moescope.core.vocabulary import UNKNOWN_SCENE, Phase, RankOrder
from moescope.producers.torch_probe.placing import PlacedRows, place_rows, tokens_before_end
from moescope.producers.torch_probe.requests import RequestFacts, RoutingSink, RunningBatch
from moescope.producers.torch_probe.routers import (
    LayerRouter,
    RouterOutput,
    RouterShape,
    find_routers,
    read_output,
)
from moescope.producers.torch_probe.scores import entropy_and_margin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    import torch
    from numpy.typing import NDArray

_MASK_DIMENSIONS: Final = 2

_log = logging.getLogger("moescope.producers")


@dataclass(slots=True)
class ProbeCounters:
    """What a probe did so far, in rows (tokens) unless said otherwise.

    Attributes:
        passed_rows: Given to the recorder (which has counters of its own).
        padding_rows: Left out: padding, and what `generate` feeds behind a request's end.
        unattributed_rows: Left out: computed outside of `request()` and `batch()`.
        incomplete_passes: Left out, in passes: not every router ran once.
        errors: Of the probe itself, and passes whose inputs it could not read.
    """

    passed_rows: int = 0
    padding_rows: int = 0
    unattributed_rows: int = 0
    incomplete_passes: int = 0
    errors: int = 0


@dataclass(frozen=True, slots=True)
class _Pass:
    """What a pass's inputs say about its rows."""

    placed: PlacedRows
    tokens: NDArray[np.int64] | None


class Probe:
    """Records the routing of one model; made by `attach`.

    One thread computes with the model at a time. Nothing here ever raises into the model; what
    goes wrong is counted and said once in the log.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        routers: Sequence[LayerRouter],
        recorder: RoutingSink,
        *,
        weights: bool,
        scores: bool,
    ) -> None:
        self.counters = ProbeCounters()
        self._recorder = recorder
        self._top_k = routers[0].top_k
        self._with_weights = weights
        self._with_scores = scores
        self._batch: RunningBatch | None = None
        self._pass: _Pass | None = None
        self._outputs: dict[int, RouterOutput] = {}
        self._layers = tuple(router.layer for router in routers)
        self._end_tokens = _end_tokens(model)
        self._has_complained = False
        decoder: Any = getattr(model, "base_model", model)
        self._handles = [
            decoder.register_forward_pre_hook(self._before_pass, with_kwargs=True),
            decoder.register_forward_hook(self._after_pass, always_call=True),
        ]
        for router in routers:
            hook = self._router_hook(router.layer)
            self._handles.append(router.module.register_forward_hook(hook))

    @contextmanager
    def batch(
        self,
        requests: Sequence[RequestFacts],
        *,
        phase: Phase | None = None,
        step: int | None = None,
    ) -> Iterator[None]:
        """All passes inside compute these requests, one per row; they end with the block.

        Args:
            requests: In the order of the rows.
            phase: Of all tokens; by default prefill up to the prompt's length, then decode.
            step: Optimizer step.
        """
        running = self._batch = RunningBatch(tuple(requests), phase, step)
        try:
            yield
        finally:
            self._batch = None
            if running.prompt_tokens is not None:
                with self._quietly():
                    running.end(self._recorder)

    @contextmanager
    def request(
        self,
        request_id: str,
        *,
        task: str | None = None,
        scene: str = UNKNOWN_SCENE,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
    ) -> Iterator[None]:
        """All passes inside compute this one request; see `RequestFacts`."""
        facts = RequestFacts(
            id=request_id,
            task=task,
            scene=scene,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
        )
        with self.batch([facts]):
            yield

    def detach(self) -> None:
        """Take all hooks off; the model is as it was before."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._pass = None
        self._outputs.clear()

    def __enter__(self) -> Self:
        """The probe itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Detach."""
        self.detach()

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - inference comes first
            self.counters.errors += 1
            self._pass = None
            if not self._has_complained:
                self._has_complained = True
                _log.warning("Not recorded (said once, then only counted): %s", error)

    def _before_pass(
        self, _module: torch.nn.Module, args: tuple[Any, ...], inputs: Mapping[str, Any]
    ) -> None:
        self._pass = None
        self._outputs.clear()
        with self._quietly():
            self._pass = _read_pass(args, inputs)

    def _router_hook(self, layer: int) -> Callable[[torch.nn.Module, Any, object], None]:
        def after_router(_module: torch.nn.Module, _args: object, output: object) -> None:
            # Not armed: a pass that cannot be read, or a layer that is computed again for the
            # gradient, whose rows were recorded already.
            if self._pass is None:
                return
            with self._quietly():
                if layer in self._outputs:
                    raise ValueError(f"the router of layer {layer} ran twice in one pass")
                self._outputs[layer] = read_output(output)

        return after_router

    def _after_pass(self, _module: torch.nn.Module, _args: object, _output: object) -> None:
        with self._quietly():
            current, self._pass = self._pass, None
            if current is not None:
                self._record(current)
        self._outputs.clear()

    def _record(self, current: _Pass) -> None:
        placed, running = current.placed, self._batch
        rows = int(np.count_nonzero(placed.is_token))
        if running is None:
            self.counters.unattributed_rows += rows
            return
        if len(self._outputs) != len(self._layers):
            self.counters.incomplete_passes += 1
            return
        if len(running.requests) != len(placed.is_token):
            raise ValueError(
                f"a pass over {len(placed.is_token)} rows for {len(running.requests)} requests"
            )
        prompts = running.begin(self._recorder, placed)
        is_decoded = placed.position >= prompts[:, None]
        wanted = placed.is_token
        if running.phase is None and self._end_tokens and current.tokens is not None:
            wanted = wanted & tokens_before_end(
                current.tokens, is_decoded & wanted, self._end_tokens, running.has_ended
            )
        self.counters.padding_rows += int(wanted.size - np.count_nonzero(wanted))
        if not wanted.any():
            return
        phase: Any = running.phase
        if phase is None:
            phase = np.where(is_decoded, Phase.DECODE, Phase.PREFILL).astype(np.uint8)[wanted]
        self._recorder.record(
            running.ids,
            placed.position[wanted],
            phase=phase,
            rows_per_request=np.count_nonzero(wanted, axis=1),
            step=running.step,
            **self._columns(wanted.reshape(-1)),
        )
        self.counters.passed_rows += int(np.count_nonzero(wanted))

    def _columns(self, wanted: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
        """Columns of the wanted rows, each [rows, L, …]."""
        outputs = [self._outputs[layer] for layer in self._layers]
        columns = {"expert_ids": _stacked([output.expert_ids for output in outputs])}
        if self._with_weights:
            columns["weights"] = _stacked([output.weights.float() for output in outputs])
        if self._with_scores:
            scores = [entropy_and_margin(output.logits, self._top_k) for output in outputs]
            columns["entropy"] = _stacked([entropy for entropy, _ in scores])
            margins = [margin for _, margin in scores if margin is not None]
            if margins:
                columns["margin"] = _stacked(margins)
        return {name: column[wanted] for name, column in columns.items()}


def attach(
    model: torch.nn.Module, recorder: RoutingSink, *, weights: bool = False, scores: bool = True
) -> Probe:
    """Hook a probe onto a model's routers; a context manager that detaches it.

    Args:
        model: OLMoE or Mixtral of transformers 5, with or without its language-model head.
        recorder: A `Recorder` made with `router_shape(model)` and rank order `selection_score`.
        weights: Whether routing weights are recorded.
        scores: Whether router entropy and margin are recorded.

    Raises:
        InputError: The model's routers are not known, or the recorder is for another model.
    """
    routers = find_routers(model)
    found = RouterShape(tuple(r.layer for r in routers), routers[0].experts, routers[0].top_k)
    profile = recorder.profile
    told = RouterShape(profile.layers, profile.experts, profile.top_k)
    if told != found or profile.rank_order is not RankOrder.SELECTION_SCORE:
        raise InputError(
            "The recorder does not describe this model.",
            why=f"The model has {found}, ids in the order of the selection score; the recorder "
            f"was told {told}, order {profile.rank_order.name.lower()}.",
            next_step="Make it with layers, experts and top_k of router_shape(model), and "
            "rank_order='selection_score'.",
        )
    return Probe(model, routers, recorder, weights=weights, scores=scores)


def _stacked(tensors: Sequence[torch.Tensor]) -> NDArray[Any]:
    """Tensors [N, …] of L layers as one array [N, L, …]: one copy from the device."""
    import torch  # noqa: PLC0415 - an inference node without torch imports this module, too

    array: NDArray[Any] = torch.stack(list(tensors), dim=1).cpu().numpy()
    return array


def _read_pass(args: tuple[Any, ...], inputs: Mapping[str, Any]) -> _Pass:
    ids = args[0] if args else inputs.get("input_ids")
    computed = ids if ids is not None else inputs["inputs_embeds"]
    batch, length = computed.shape[:2]
    cache = inputs.get("cache", inputs.get("past_key_values"))
    past = 0 if cache is None else int(cache.get_seq_length())
    mask = args[1] if len(args) > 1 else inputs.get("attention_mask")
    if mask is not None and mask.ndim != _MASK_DIMENSIONS:
        raise ValueError(f"an attention mask of {mask.ndim} dimensions does not tell padding")
    positions = inputs.get("position_ids")
    placed = place_rows(
        batch,
        length,
        past,
        None if mask is None else mask.detach().cpu().numpy().astype(np.bool_),
        None if positions is None else positions.detach().cpu().numpy().astype(np.int64),
    )
    return _Pass(placed, None if ids is None else ids.detach().cpu().numpy())


def _end_tokens(model: Any) -> frozenset[int]:  # noqa: ANN401 - transformers has no types here
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if ends is None:
        return frozenset()
    return frozenset([int(ends)] if isinstance(ends, int) else map(int, ends))
