"""An adapter bound to the routers of one model: the family that a probe works with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from moescope.core.errors import InputError
from moescope.core.vocabulary import RankOrder
from moescope.producers.torch_probe.families.contract import Routing
from moescope.producers.torch_probe.families.forms import form_of
from moescope.producers.torch_probe.families.scoring import (
    GroupLimit,
    entropy_of,
    kind_of,
    margin_of,
    score_logits,
    score_named,
)
from moescope.producers.torch_probe.families.settings import (
    BIASES,
    GROUPS,
    KEPT_GROUPS,
)
from moescope.producers.torch_probe.families.stacked import StackedPasses

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from moescope.core.vocabulary import ScoreKind
    from moescope.producers.torch_probe.families.adapter import RouterAdapter
    from moescope.producers.torch_probe.families.forms import Form
    from moescope.producers.torch_probe.families.scoring import Scored
    from moescope.producers.torch_probe.families.settings import Places

_LOOKED_AT: Final = 512
"""Numbers of a tensor that tell whether it was changed: all of a bias, some of a matrix."""


class BoundFamily:
    """Implements `RouterFamily` for the routers of one model.

    Args:
        name: The model's `config.model_type`.
        adapter: What its routers are.
        places: Of each router, for its settings.
        experts: E.
        top_k: k.

    Attributes:
        limit: Of the selection to groups; None where all experts are eligible.

    Raises:
        InputError: A setting of the model has a value that the adapter does not cover.
    """

    def __init__(
        self,
        name: str,
        adapter: RouterAdapter,
        places: Sequence[Places],
        experts: int,
        top_k: int,
    ) -> None:
        for setting, covered in adapter.requires:
            value = places[0].find((setting,))
            if value not in covered:
                raise InputError(
                    f"The probe cannot read {name} with {setting}={value!r}.",
                    why=f"It can with {' or '.join(map(repr, covered))}: the router does not tell "
                    "otherwise what it chose.",
                    next_step="Record the expert ids yourself with Recorder.record().",
                )
        self._name = name
        self._adapter = adapter
        self._takes_arguments = adapter.captures == "arguments"
        self._keeps_input = adapter.keeps_input
        self._computes_logits = any(form.input is not None for form in adapter.forms.values())
        self._experts = experts
        self._top_k = top_k
        self._first = places[0]
        scoring = adapter.scoring
        told = places[0].find((scoring.score_setting,)) if scoring.score_setting else None
        self._score = scoring.score if told is None else score_named(getattr(told, "value", told))
        self.limit = _limit_of(adapter, places[0])
        self._kind = kind_of(scoring, self._score, self.limit)
        self._biases = {p.router: p.holder(BIASES) for p in places} if scoring.has_bias else {}
        self._places = {p.router: p for p in places}

    @property
    def name(self) -> str:
        """The model's `config.model_type`."""
        return self._name

    @property
    def score_kind(self) -> ScoreKind:
        """What entropy and margin are made of."""
        return self._kind

    @property
    def rank_order(self) -> RankOrder:
        """What the order of ids means."""
        return self._adapter.rank_order

    @property
    def reads_output_alone(self) -> bool:
        """Whether `capture` needs no more than what the forward returned."""
        return not self._takes_arguments and not self._keeps_input

    def capture(
        self,
        module: torch.nn.Module,  # noqa: ARG002 - part of the protocol
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        output: object,
    ) -> tuple[torch.Tensor, ...]:
        """Pick detached tensors; see `RouterFamily`.

        Raises:
            TypeError: There is no tensor in what the forward returned.
        """
        if self._takes_arguments:
            parts: Any = (*args, *kwargs.values())
        else:
            parts = output if isinstance(output, tuple) else (output,)
            if len(parts) in self._keeps_input:
                parts = (*parts, args[0] if args else kwargs["hidden_states"])
        # A list and no generator, and no needless alias: this runs once a layer.
        tensors = [part for part in parts if hasattr(part, "detach")]
        picked = tuple([part.detach() if part.requires_grad else part for part in tensors])
        if not picked:
            raise TypeError(f"a router of {self._name} returned {type(output).__name__}")
        return picked

    def parts_read(
        self, captured: tuple[torch.Tensor, ...], *, scores: bool, weights: bool
    ) -> frozenset[int]:
        """Which captured tensors are read; see `RouterFamily`.

        Raises:
            TypeError: The tensors have no form of this family.
        """
        form = form_of(self._adapter.forms, captured, self._experts)
        parts = {form.ids, form.gates, form.kept}
        if weights:
            parts.add(form.weights)
        if self._needs_logits(form, scores=scores, weights=weights):
            parts |= {form.logits, form.probabilities, form.input}
        return frozenset(part for part in parts if part is not None)

    def _needs_logits(self, form: Form, *, scores: bool, weights: bool) -> bool:
        computes_weights = weights and form.weights is None and form.gates is None
        return scores or computes_weights or form.ids is None or self._needs_sorting()

    def weights_read(self, modules: Sequence[torch.nn.Module]) -> tuple[int, ...]:
        """The state of biases and of weights that logits are computed with again."""
        if not self._biases and not self._computes_logits:
            return ()
        linear = self._adapter.linear
        tensors = []
        for module in modules:
            holder = self._biases.get(module)
            if holder is not None:
                tensors.append(getattr(*holder))
            if self._computes_logits:
                names = [(name,) for name in (linear.weight, linear.bias) if name]
                tensors += [self._places[module].find(name) for name in names]
        return tuple([number for tensor in tensors for number in _state_of(tensor)])

    def interpret(
        self,
        modules: Sequence[torch.nn.Module],
        captured: Sequence[tuple[torch.Tensor, ...]],
        *,
        scores: bool = True,
        weights: bool = True,
    ) -> Routing:
        """Read all layers at once; see `RouterFamily`.

        Raises:
            TypeError: The tensors have no form of this family.
            ValueError: They do not tell what was chosen.
        """
        form = form_of(self._adapter.forms, captured[0], self._experts)
        is_sorted = form.ids is None or not self._needs_sorting()
        told = None if form.ids is None else self._stacked(captured, form.ids)
        scored = logits = None
        if self._needs_logits(form, scores=scores, weights=weights):
            logits = self._logits(form, modules, captured)
            scored = self._scored(modules, logits)
        has_margin = scores and self._top_k < self._eligible()
        margin = None
        if told is None:
            assert scored is not None  # noqa: S101 - nothing else tells what was chosen
            best = scored.selection.topk(self._top_k + has_margin, dim=-1)
            ids = places = best.indices[..., : self._top_k]
            if has_margin:
                margin = best.values[..., self._top_k - 1] - best.values[..., self._top_k]
        else:
            # Ids that no router can have meant are left to who reads them; looked up out of range
            # they would raise, or on a device stop the process.
            ids, places = told, told.clamp(0, self._experts - 1)
            if has_margin and scored is not None:
                margin = margin_of(scored.selection, places)
        dropped = self._dropped(form, captured, places)
        found = None
        if weights:
            found = self._weights(form, captured, places, logits, scored)
        if scored is not None and not is_sorted:
            order = scored.selection.gather(-1, places).argsort(
                dim=-1, descending=True, stable=True
            )
            ids = ids.gather(-1, order)
            found = None if found is None else found.gather(-1, order)
            dropped = None if dropped is None else dropped.gather(-1, order)
        entropy = entropy_of(scored) if scores and scored is not None else None
        return Routing(ids, found, entropy, margin, dropped)

    def _scored(self, modules: Sequence[torch.nn.Module], logits: torch.Tensor) -> Scored:
        return score_logits(
            logits,
            self._score,
            selects=self._adapter.scoring.selects,
            bias=self.bias_of(modules),
            limit=self.limit,
        )

    def _needs_sorting(self) -> bool:
        adapter = self._adapter
        return not adapter.is_sorted and adapter.rank_order is RankOrder.SELECTION_SCORE

    def _eligible(self) -> int:
        limit = self.limit
        return self._experts if limit is None else self._experts // limit.groups * limit.kept

    def _stacked(self, captured: Sequence[tuple[torch.Tensor, ...]], part: int) -> torch.Tensor:
        import torch  # noqa: PLC0415 - imports without torch

        if isinstance(captured, StackedPasses):
            return captured.stacked(part)
        parts = [tensors[part] for tensors in captured]
        if self._adapter.flattens or parts[0].ndim > 2:  # noqa: PLR2004 - not [N, …]
            parts = [tensor.flatten(0, -2) for tensor in parts]
        return torch.stack(parts, dim=1)

    def bias_of(self, modules: Sequence[torch.nn.Module]) -> torch.Tensor | None:
        """The selection biases of these routers, float32 [L, E]; None where there are none."""
        import torch  # noqa: PLC0415 - imports without torch

        holders = [self._biases.get(module) for module in modules]
        found = [getattr(*holder).flatten() for holder in holders if holder is not None]
        return torch.stack(found).detach().float() if len(found) == len(modules) else None

    def _logits(
        self,
        form: Form,
        modules: Sequence[torch.nn.Module],
        captured: Sequence[tuple[torch.Tensor, ...]],
    ) -> torch.Tensor:
        if form.logits is not None:
            return self._stacked(captured, form.logits).float()
        if form.probabilities is not None:
            return self._stacked(captured, form.probabilities).float().log()
        assert form.input is not None  # noqa: S101 - a form tells one of the three
        import torch  # noqa: PLC0415 - imports without torch

        linear = self._adapter.linear
        computed = []
        for module, tensors in zip(modules, captured, strict=True):
            places, seen = self._places[module], tensors[form.input]
            weight = places.find((linear.weight,)).detach().view(self._experts, -1)
            bias = places.find((linear.bias,)).detach() if linear.bias else None
            if linear.in_float32:
                seen, weight = seen.float(), weight.float()
                bias = None if bias is None else bias.float()
            computed.append(torch.nn.functional.linear(seen.flatten(0, -2), weight, bias))
        return torch.stack(computed, dim=1).float()

    def _dropped(
        self, form: Form, captured: Sequence[tuple[torch.Tensor, ...]], places: torch.Tensor
    ) -> torch.Tensor | None:
        if form.gates is not None and self._adapter.gates_tell_drops:
            return self._stacked(captured, form.gates).gather(-1, places) == 0
        if form.kept is None:
            return None
        return self._stacked(captured, form.kept).gather(-1, places) == 0

    def _weights(
        self,
        form: Form,
        captured: Sequence[tuple[torch.Tensor, ...]],
        places: torch.Tensor,
        logits: torch.Tensor | None,
        scored: Scored | None,
    ) -> torch.Tensor:
        if form.weights is not None:
            return self._stacked(captured, form.weights)
        if form.gates is not None:
            return self._stacked(captured, form.gates).gather(-1, places)
        assert logits is not None and scored is not None  # noqa: S101, PT018 - no form tells weights
        return self._adapter.weighting(logits, scored.scores, places, self._first)


def _state_of(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Where a tensor lies, how often it was written, and some of what it holds.

    Tensors of inference mode do not count how often they are written, and writing to `data` or a
    view of NumPy's is not counted. What is on a device is not looked at: the device would be
    waited for.
    """
    version = 0 if tensor.is_inference() else tensor._version  # noqa: SLF001 - torch has no other
    content = 0
    if tensor.is_cpu:
        flat = tensor.detach().flatten()
        some = flat[:: max(1, len(flat) // _LOOKED_AT)]
        content = hash(some.float().numpy().tobytes())
    return tensor.data_ptr(), version, content


def _limit_of(adapter: RouterAdapter, places: Places) -> GroupLimit | None:
    groups = adapter.scoring.groups
    if groups is None:
        return None
    if groups.when is not None and places.find((groups.when[0],)) != groups.when[1]:
        return None
    number, kept = places.find(GROUPS), places.find(KEPT_GROUPS)
    if number is None or kept is None or kept >= number:
        return None
    fills_zero = places.find(groups.zero_where) is not None
    return GroupLimit(groups.by, int(number), int(kept), 0.0 if fills_zero else -float("inf"))
