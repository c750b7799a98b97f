"""What a model's experts really received, and what its router has to do, in double precision."""

from __future__ import annotations

import re
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
from engines.families.tiny_models import version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engines.families.tiny_families import Family, Spec
    from numpy.typing import NDArray

_GROUPED: Final = re.compile("ParallelExperts|GroupedExpertsGemm")
_LAYER: Final = re.compile(r"(?:layers|blocks|block)\.(\d+)\.")


@dataclass
class Seen:
    """What happened in one layer with experts, seen from outside of the router's arithmetic.

    Attributes:
        hidden: Rows that came to the block.
        router_input: Rows that came to the router; None where it is never called.
        logits: Of the submodule that makes them, where the family names one.
        ids: Expert ids that the experts were called with, if they were.
        weights: Weights that the experts were called with: [N, k] like the ids, or [N, E].
        rows_of: By expert, the rows that it computed, where experts were called one by one.
    """

    block: Any
    router: Any
    hidden: Any = None
    router_input: Any = None
    logits: Any = None
    ids: Any = None
    weights: Any = None
    rows_of: dict[int, Any] = field(default_factory=dict)

    def at_block(self, _module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the block."""
        self.hidden = _input_of(args, kwargs)

    def at_router(self, _module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the router."""
        self.router_input = _input_of(args, kwargs)

    def at_logits(self, _module: Any, _args: object, output: Any) -> None:
        """After the part that makes logits."""
        self.logits = _flat(output)

    def at_experts(
        self, family: Family, _module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Before a module of all experts."""
        parts = [*args, *kwargs.values()]
        tensors = [part for part in parts if isinstance(part, torch.Tensor)]
        ids = [part for part in tensors if not part.is_floating_point() and part.ndim == 2]
        if ids:
            self.ids = ids[0].clone()
            floats = [part for part in tensors[1:] if part.is_floating_point() and part.ndim == 2]
            self.weights = floats[-1].clone()
        elif len(tensors) == 1:
            # Llama 4: every expert gets every row, multiplied with a score that is mostly 0.
            copies = tensors[0].detach().unflatten(0, (family.experts, -1))
            pairs = (copies != 0).any(-1).T.nonzero()
            self.ids = pairs[:, 1].view(-1, family.top_k)

    def at_grouped(self, _module: Any, args: tuple[Any, ...]) -> None:
        """Before a module of experts that gets their rows one expert behind the other."""
        parts = torch.split(args[0].detach(), [int(size) for size in args[1]])
        self.rows_of = {expert: part.clone() for expert, part in enumerate(parts)}

    def at_one(self, expert: int, _module: Any, args: tuple[Any, ...]) -> None:
        """Before one expert."""
        self.rows_of[expert] = _flat(args[0])


@contextmanager
def watching(model: Any, family: Family) -> Iterator[dict[int, Seen]]:
    """Watch a model's forward; by layer what its experts received."""
    seen: dict[int, Seen] = {}
    with ExitStack() as hooks:
        for name, block in list(model.named_modules()):
            router = _child(block, "gate", "router")
            experts = _child(block, "experts", "input_linear")
            layer = _LAYER.search(f"{name}.")
            # JetMoe's attention has experts, too: its MoA is no feed-forward layer.
            if router is None or experts is None or layer is None or "MoA" in type(block).__name__:
                continue
            here = seen[int(layer[1])] = Seen(block, router)
            for handle in _watch(here, experts, family):
                hooks.callback(handle.remove)
        yield seen


def _child(block: Any, *names: str) -> Any:
    children = dict(block.named_children())
    return next((children[name] for name in names if name in children), None)


def _watch(here: Seen, experts: Any, family: Family) -> Iterator[Any]:
    yield here.block.register_forward_pre_hook(here.at_block, with_kwargs=True)
    yield here.router.register_forward_pre_hook(here.at_router, with_kwargs=True)
    if family.logits_from:
        part = here.router.get_submodule(family.logits_from)
        yield part.register_forward_hook(here.at_logits)
    grouped = [part for part in [experts, *experts.children()] if _GROUPED.search(_kind(part))]
    if grouped:
        yield grouped[0].register_forward_pre_hook(here.at_grouped)
    else:
        at_experts = partial(here.at_experts, family)
        yield experts.register_forward_pre_hook(at_experts, with_kwargs=True)
    for name, expert in experts.named_children():
        number = re.fullmatch(r"(?:expert_)?(\d+)", name)
        if number:
            yield expert.register_forward_pre_hook(partial(here.at_one, int(number[1])))


def _kind(module: Any) -> str:
    return type(module).__name__


def _input_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _flat(args[0] if args else kwargs["hidden_states"])


def _flat(tensor: Any) -> Any:
    return tensor.detach().clone().flatten(0, -2)


def received_rows(rows: Any, ids: Any, experts: int) -> dict[int, NDArray[np.float32]]:
    """By expert, the rows that choose it, sorted: what `Seen.rows_of` has to hold.

    Args:
        rows: [N, hidden].
        ids: [N, k], −1 for an assignment that was dropped.
        experts: E.
    """
    return {e: sorted_rows(rows[(ids == e).any(-1)]) for e in range(experts)}


def sorted_rows(rows: Any) -> NDArray[np.float32]:
    """Rows in an order of their own, so that only which ones they are counts."""
    array = np.asarray(rows, np.float32)
    return array[np.lexsort(array.T)] if len(array) else array


def by_expert(ids: Any, weights: Any, experts: int) -> Any:
    """Weights at their experts' places, [N, E]."""
    return torch.zeros(len(ids), experts).scatter(1, ids, weights.float())


def assert_received(seen: Seen, ids: Any, weights: Any, dropped: Any, experts: int) -> None:
    """The experts of one layer computed what the probe says, and nothing else."""
    assert seen.ids is not None or seen.rows_of
    if seen.rows_of:
        kept = ids if dropped is None else ids.masked_fill(dropped, -1)
        for expert, rows in received_rows(seen.hidden, kept, experts).items():
            got = sorted_rows(seen.rows_of.get(expert, seen.hidden[:0]))
            np.testing.assert_array_equal(got, rows)
    if seen.ids is not None and dropped is None:
        assert torch.equal(seen.ids.sort(-1).values, ids.sort(-1).values)
        if seen.weights is not None:
            told = seen.weights
            if told.shape == seen.ids.shape:
                told = by_expert(seen.ids, told, experts)
            torch.testing.assert_close(by_expert(ids, weights, experts), told.float())


class Wanted(NamedTuple):
    """What a router has to decide: ids in rank order, weights, entropy and margin."""

    ids: NDArray[np.int64]
    weights: NDArray[np.float64] | None
    entropy: NDArray[np.float64]
    margin: NDArray[np.float64]


def wanted_routing(seen: Seen, family: Family) -> Wanted:
    """Routing of a layer's rows in double precision, from what came to its router."""
    logits = _logits(seen, family)
    bias = _bias(seen, family.spec)
    spec, k = family.spec, family.top_k
    scores = _scores(logits, spec.score)
    selection = (logits if spec.on_logits else scores) + bias
    eligible = np.ones_like(selection, bool)
    if spec.groups:
        grouped = selection.reshape(len(selection), 4, -1)
        ranked = np.sort(grouped, axis=-1)[..., ::-1]
        best = ranked[..., : 1 if spec.groups == "best" else 2].sum(-1)
        kept = np.argsort(-best, axis=-1)[:, :2]
        eligible = np.zeros(best.shape, bool)
        np.put_along_axis(eligible, kept, values=True, axis=-1)
        eligible = np.repeat(eligible, grouped.shape[-1], axis=-1)
        selection = np.where(eligible, selection, 0.0 if version() < (5, 0) else spec.fill)
    order = np.argsort(-selection, axis=-1, kind="stable")
    ids = order[:, :k]
    ranked = np.take_along_axis(selection, order, -1)
    shares = np.where(eligible, scores, 0)
    shares = shares / shares.sum(-1, keepdims=True)
    entropy = -(shares * np.log(np.where(shares > 0, shares, 1))).sum(-1)
    weights = _weights(logits, scores, ids, spec)
    if weights is not None and family.last_is_none:
        weights = np.where(ids == family.experts - 1, 0.0, weights)
    return Wanted(ids, weights, entropy, ranked[:, k - 1] - ranked[:, k])


def shares_of(seen: Seen, family: Family) -> NDArray[np.float64]:
    """Each expert's share of a layer's rows, [N, E], in double precision."""
    return _softmax(_logits(seen, family))


def _logits(seen: Seen, family: Family) -> NDArray[np.float64]:
    if seen.logits is not None:
        logits = np.asarray(seen.logits, np.float64)
    else:
        rows = seen.hidden if seen.router_input is None else seen.router_input
        parameters = dict(seen.router.named_parameters())
        (weight,) = [p for n, p in parameters.items() if p.ndim == 2 and "bias" not in n]
        logits = np.asarray(rows, np.float64) @ np.asarray(weight.detach(), np.float64).T
        if "bias" in parameters:
            logits = logits + np.asarray(parameters["bias"].detach(), np.float64)
    logits = logits[:, : family.experts] * family.spec.multiplier
    cap = family.spec.softcap
    return np.tanh(logits / cap) * cap if cap else logits


def _bias(seen: Seen, spec: Spec) -> Any:
    if not spec.biased:
        return 0.0
    tensors = [*seen.block.named_parameters(), *seen.block.named_buffers()]
    (bias,) = [tensor for name, tensor in tensors if name.endswith(spec.biased)]
    return np.asarray(bias.detach(), np.float64).reshape(-1)


def _softmax(values: NDArray[np.float64]) -> NDArray[np.float64]:
    exponentials = np.exp(values - values.max(-1, keepdims=True))
    shares: NDArray[np.float64] = exponentials / exponentials.sum(-1, keepdims=True)
    return shares


def _scores(logits: NDArray[np.float64], score: str) -> NDArray[np.float64]:
    if score == "softmax":
        return _softmax(logits)
    if score == "sigmoid":
        return 1 / (1 + np.exp(-logits))
    return np.sqrt(np.log1p(np.exp(logits)))


def _weights(
    logits: NDArray[np.float64], scores: NDArray[np.float64], ids: NDArray[np.int64], spec: Spec
) -> NDArray[np.float64] | None:
    if spec.weights == "as_received":
        return None
    if spec.weights == "selected_softmax":
        weights = _softmax(np.take_along_axis(logits, ids, -1))
    elif spec.weights == "sparsemixer":
        weights = np.stack(
            [_sparsemixer(row, chosen) for row, chosen in zip(logits, ids, strict=True)]
        )
    else:
        weights = np.take_along_axis(scores, ids, -1)
        if spec.weights == "normalised":
            weights = weights / weights.sum(-1, keepdims=True)
    return weights * spec.scale


def _sparsemixer(logits: NDArray[np.float64], chosen: NDArray[np.int64]) -> list[float]:
    """Row by row: each expert's share among those within 20 % of it, the first left out then."""
    left = defaultdict(float, enumerate(logits.tolist()))
    weights = []
    for expert in chosen.tolist():
        best = left[expert]
        near = [value for value in left.values() if (best - value) / max(abs(value), best) <= 0.2]
        weights.append(float(np.exp(best) / np.exp(near).sum()))
        del left[expert]
    return weights
