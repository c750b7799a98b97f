from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
pytest.importorskip("olmo_core", reason="`make engines` has OLMo-core")

from olmo_core.nn.moe import MoEConfig, MoERouterConfig, MoEType
from olmo_core.nn.moe.router import MoERouterGatingFunction

from moescope.core.errors import InputError
from moescope.core.vocabulary import RankOrder, ScoreKind
from moescope.producers.torch_probe.families import find_routers, router_shape

pytestmark = pytest.mark.filterwarnings("ignore:Grouped GEMM not available:UserWarning")

EXPERTS, TOP_K, HIDDEN, LAYERS = 16, 4, 24, 3


def make_model(**settings: Any) -> Any:
    """Blocks as those of OLMo-core, with its MoE, whose routers alone are driven."""
    torch.manual_seed(6)
    config = MoEConfig(
        name=MoEType.dropless,
        num_experts=EXPERTS,
        hidden_size=8,
        router=MoERouterConfig(top_k=TOP_K, **settings),
    )
    model = torch.nn.Module()
    model.blocks = torch.nn.ModuleDict()
    for layer in range(LAYERS):
        block = torch.nn.Module()
        block.feed_forward_moe = config.build(HIDDEN, init_device="cpu")
        router = block.feed_forward_moe.router
        torch.nn.init.normal_(router.weight, std=0.4)
        if router.score_bias is not None:
            torch.nn.init.normal_(router.score_bias, std=0.2)
        model.blocks[str(layer)] = block
    return model.eval()


def route(model: Any, rows: Any) -> tuple[Any, list[Any]]:
    """Drive the routers alone; what the family reads, and what they returned."""
    routers = find_routers(model)
    outputs, captured = [], []
    for router in routers:
        output = router.module(rows)
        outputs.append(output)
        captured.append(router.family.capture(router.module, (rows,), {}, output))
    return routers[0].family.interpret([r.module for r in routers], captured), outputs


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, ScoreKind.SOFTMAX),
        ({"normalize_expert_weights": 1.0}, ScoreKind.SOFTMAX),
        (
            {"gating_function": MoERouterGatingFunction.sigmoid, "bias_gamma": 0.001},
            ScoreKind.SIGMOID,
        ),
    ],
)
@pytest.mark.parametrize("training", [False, True])
def test_a_router_is_read_as_it_decided(
    settings: dict[str, Any],
    kind: ScoreKind,
    training: bool,  # noqa: FBT001 - one of two runs
    verified: Any,
) -> None:
    """Ids, weights, entropy and margin: those returned, and those of scores in double precision."""
    model = make_model(**settings)
    model.train(training)
    shape = router_shape(model)
    assert shape.layers == tuple(range(LAYERS))
    assert (shape.experts, shape.top_k, shape.score_kind) == (EXPERTS, TOP_K, kind)
    assert shape.rank_order is RankOrder.SELECTION_SCORE
    rows = torch.randn(2, 9, HIDDEN)
    routing, outputs = route(model, rows)
    for layer, (weights, ids, counts, _loss) in enumerate(outputs):
        assert torch.equal(routing.expert_ids[:, layer], ids.flatten(0, 1))
        assert torch.equal(routing.weights[:, layer], weights.detach().flatten(0, 1))
        assert torch.equal(
            routing.expert_ids[:, layer].flatten().bincount(minlength=EXPERTS), counts
        )
        router = model.blocks[str(layer)].feed_forward_moe.router
        matrix = router.weight.detach().double().numpy().reshape(EXPERTS, HIDDEN)
        logits = rows.double().flatten(0, 1).numpy() @ matrix.T
        scores = np.exp(logits) if kind is ScoreKind.SOFTMAX else 1 / (1 + np.exp(-logits))
        shares = scores / scores.sum(-1, keepdims=True)
        selection = shares if kind is ScoreKind.SOFTMAX else scores
        if router.score_bias is not None:
            selection = selection + router.score_bias.double().numpy()
        ranked = -np.sort(-selection, axis=-1)
        np.testing.assert_allclose(
            routing.entropy[:, layer], -(shares * np.log(shares)).sum(-1), atol=2e-5
        )
        np.testing.assert_allclose(
            routing.margin[:, layer], ranked[:, TOP_K - 1] - ranked[:, TOP_K], atol=1e-5
        )
        np.testing.assert_array_equal(
            routing.expert_ids[:, layer], np.argsort(-selection, axis=-1)[:, :TOP_K]
        )
    for what in ("ids", "weights", "entropy", "margin", "rank order"):
        verified(subject="OLMo-core router", what=what)


def test_routers_that_ignore_their_scores_are_refused() -> None:
    """Uniform assignment is for benchmarks: its ids are no choice of the router's."""
    with pytest.raises(InputError, match="uniform_expert_assignment"):
        find_routers(make_model(uniform_expert_assignment=True))
