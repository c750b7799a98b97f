from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")

from engines.families.tiny_families import EXPERTS, TOP_K

from moescope.core.errors import InputError
from moescope.core.vocabulary import RankOrder, ScoreKind
from moescope.producers.torch_probe.families import (
    Form,
    RouterAdapter,
    Scoring,
    find_routers,
    register_family,
    router_shape,
)
from moescope.producers.torch_probe.families.scoring import GroupLimit, entropy_of, score_logits

Module: Any = torch.nn.Module
HIDDEN = 16
ROWS = 40
SUBJECT = "routers of one's own"


class OwnRouter(Module):  # type: ignore[misc]  # torch has no types here
    """A router that nobody registered, in the form that most of them have."""

    num_experts, top_k, num_group, topk_group = EXPERTS, TOP_K, 1, 1

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(self.num_experts, HIDDEN) * 0.4)

    def scores(self, logits: Any) -> Any:
        """What logits become."""
        return logits.softmax(-1)

    def selection(self, scores: Any) -> Any:
        """What top-k looks at."""
        return scores

    def forward(self, rows: Any) -> Any:
        """(logits, weights, ids), in ascending order of the id."""
        logits = rows @ self.weight.T
        scores = self.scores(logits)
        ids = self.selection(scores).topk(self.top_k, dim=-1).indices.sort(-1).values
        return logits, scores.gather(-1, ids) * 2.5, ids


class BiasedRouter(OwnRouter):
    """Sigmoid, and a bias that has its say in the choice alone."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("e_score_correction_bias", torch.randn(EXPERTS) * 0.3)

    def scores(self, logits: Any) -> Any:
        """Sigmoid."""
        return logits.sigmoid()

    def selection(self, scores: Any) -> Any:
        """Biased."""
        return scores + self.e_score_correction_bias


class StrangeRouter(OwnRouter):
    """Its weights are of no known kind."""

    def scores(self, logits: Any) -> Any:
        """The softmax of a square."""
        return (logits**2).softmax(-1)


class NarrowRouter(OwnRouter):
    """Fewer experts."""

    num_experts = EXPERTS - 2


class PairRouter(Module):  # type: ignore[misc]  # torch has no types here
    """(weights, ids) of [B, S, …], with names of its own."""

    n_ways, picks = EXPERTS, TOP_K

    def __init__(self) -> None:
        super().__init__()
        self.to_ways = torch.nn.Linear(HIDDEN, EXPERTS)

    def forward(self, rows: Any) -> Any:
        """Top-k of logits, then softmax."""
        weights, ids = self.to_ways(rows).topk(TOP_K, dim=-1)
        return weights.softmax(-1), ids


class Model(Module):  # type: ignore[misc]  # torch has no types here
    """Layers with a router each; every other is dense."""

    def __init__(self, *routers: Any) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList()
        for router in routers:
            self.layers.append(torch.nn.ModuleDict({"mlp": torch.nn.Linear(HIDDEN, HIDDEN)}))
            self.layers.append(torch.nn.ModuleDict({"gate": router}))


def route(model: Model, given: Any) -> Any:
    """Drive all routers with the same rows, and interpret."""
    routers = find_routers(model)
    captured = [r.family.capture(r.module, (given,), {}, r.module(given)) for r in routers]
    return routers[0].family.interpret([r.module for r in routers], captured)


def rows(*shape: int) -> Any:
    """Random rows."""
    return torch.randn(*shape, HIDDEN, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    ("router", "kind"), [(OwnRouter, ScoreKind.SOFTMAX), (BiasedRouter, ScoreKind.SIGMOID)]
)
def test_an_unknown_router_is_read_as_the_one_kind_that_does_the_same(
    router: Any, kind: ScoreKind, verified: Any
) -> None:
    """Ids sorted by selection score, entropy and margin: as a loop over rows finds them."""
    torch.manual_seed(4)
    model = Model(router(), router())
    shape = router_shape(model)
    assert (shape.layers, shape.experts, shape.top_k) == ((1, 3), EXPERTS, TOP_K)
    assert (shape.score_kind, shape.rank_order) == (kind, RankOrder.SELECTION_SCORE)
    given = rows(ROWS)
    routing = route(model, given)
    for place, layer in enumerate((1, 3)):
        gate = model.layers[layer]["gate"]
        scores = gate.scores(given.double() @ gate.weight.double().T).detach()
        selection = gate.selection(scores).numpy()
        for row in range(ROWS):
            order = sorted(range(EXPERTS), key=lambda e: -selection[row, e])
            assert routing.expert_ids[row, place].tolist() == order[:TOP_K]
            share = scores[row].numpy() / scores[row].numpy().sum()
            entropy = float(routing.entropy[row, place])
            assert entropy == pytest.approx(-(share * np.log(share)).sum(), abs=1e-5)
            gap = selection[row, order[TOP_K - 1]] - selection[row, order[TOP_K]]
            assert float(routing.margin[row, place]) == pytest.approx(gap, abs=1e-5)
    verified(subject=SUBJECT, what="a router of one's own, recognised")


@pytest.mark.parametrize("routers", [(StrangeRouter,), (OwnRouter, NarrowRouter)])
def test_what_is_not_understood_is_refused(routers: Any, verified: Any) -> None:
    """A guess would be recorded as if it were the truth."""
    torch.manual_seed(4)
    with pytest.raises(InputError):
        find_routers(Model(*[router() for router in routers]))
    verified(subject=SUBJECT, what="refused: a router of one's own that is not understood")


def test_a_declared_adapter_is_enough_for_a_router_of_ones_own(verified: Any) -> None:
    """Where it is, what it returns, how it scores: declared, not programmed."""
    from moescope.producers.torch_probe.families import Linear, SoftmaxOfSelected

    torch.manual_seed(4)
    adapter = RouterAdapter(
        name="pairs", sites=("PairRouter",), experts=("n_ways",), top_k=("picks",),
        forms={"fif": Form(weights=0, ids=1, input=2)}, keeps_input=frozenset({2}),
        scoring=Scoring("softmax", selects="logit"), weighting=SoftmaxOfSelected(),
        linear=Linear("to_ways.weight", "to_ways.bias"),
    )  # fmt: skip
    register_family(adapter)
    register_family(adapter)
    model = Model(PairRouter())
    assert router_shape(model).score_kind is ScoreKind.TOPK_SOFTMAX
    given = rows(2, ROWS // 2)
    routing = route(model, given)
    with torch.no_grad():
        logits = model.layers[1]["gate"].to_ways(given).flatten(0, 1)
    ranked = logits.sort(-1, descending=True)
    assert torch.equal(routing.expert_ids[:, 0], ranked.indices[:, :TOP_K])
    torch.testing.assert_close(routing.weights[:, 0], ranked.values[:, :TOP_K].softmax(-1))
    margin = ranked.values[:, TOP_K - 1] - ranked.values[:, TOP_K]
    torch.testing.assert_close(routing.margin[:, 0], margin)
    verified(subject=SUBJECT, what="a router of one's own, declared")


def test_two_adapters_cannot_have_one_site() -> None:
    """Else the last one registered would win without a word."""
    with pytest.raises(InputError, match="cannot be registered"):
        register_family(RouterAdapter(name="mine", sites=("MixtralTopKRouter",)))
    with pytest.raises(InputError, match="cannot be registered"):
        register_family(RouterAdapter(name="nowhere", sites=()))


@pytest.mark.parametrize(("ineligible", "chosen"), [(-np.inf, [2, 3]), (0.0, [2, 0])])
def test_a_negative_score_loses_to_a_zero_outside_of_the_groups(
    ineligible: float, chosen: list[int]
) -> None:
    """DeepSeek of transformers 4 sets other groups to 0: such an expert beats a negative one."""
    logits = torch.zeros(1, 1, 4)
    bias = torch.tensor([[-0.2, -0.2, 2.0, -0.9]])
    limit = GroupLimit("two_best", 2, 1, ineligible)
    scored = score_logits(logits, "sigmoid", bias=bias, limit=limit)
    assert (
        scored.selection.argsort(dim=-1, descending=True, stable=True)[0, 0, :2].tolist() == chosen
    )
    # Of two experts with the same score, whatever was added for the selection.
    assert float(entropy_of(scored)) == pytest.approx(np.log(2))
