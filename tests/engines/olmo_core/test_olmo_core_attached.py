from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
pytest.importorskip("olmo_core", reason="`make engines` has OLMo-core")

from engines.families.attached import assert_as_before, recorded, state_of
from olmo_core.kernels import moe as kernels
from olmo_core.nn.moe import MoEConfig, MoERouterConfig, MoEType
from olmo_core.nn.moe.router import MoERouterGatingFunction
from olmo_core.nn.transformer import (
    TransformerBlockType,
    TransformerConfig,
    TransformerType,
)

from moescope.core.vocabulary import Phase
from moescope.producers.torch_probe import ProbeCounters

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

pytestmark = pytest.mark.filterwarnings("ignore:Grouped GEMM not available:UserWarning")

EXPERTS, TOP_K, HIDDEN, LAYERS = 16, 4, 24, 3
REQUESTS = ("one", "two")
IDS = torch.tensor([[1, 9, 5, 6, 30], [3, 4, 5, 41, 2]])
ROUTERS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "softmax, normalised": {"normalize_expert_weights": 1.0},
    "sigmoid, biased": {
        "gating_function": MoERouterGatingFunction.sigmoid,
        "bias_gamma": 0.001,
    },
}


@pytest.fixture(autouse=True)
def _one_kernel_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton measures variants of a kernel on a GPU; of one there is nothing to measure."""
    monkeypatch.setattr(kernels._padded_copy, "configs", kernels._padded_copy.configs[:1])


def make_model(settings: dict[str, Any]) -> Any:
    """A whole tiny MoE transformer of OLMo-core."""
    torch.manual_seed(6)
    model = TransformerConfig.llama_like(
        d_model=HIDDEN,
        vocab_size=50,
        n_layers=LAYERS,
        n_heads=2,
        name=TransformerType.moe,
        block_name=TransformerBlockType.moe_reordered_norm,
        feed_forward_moe=MoEConfig(
            name=MoEType.dropless,
            num_experts=EXPERTS,
            hidden_size=8,
            router=MoERouterConfig(top_k=TOP_K, **settings),
        ),
    ).build(init_device="cpu")
    for block in model.blocks.values():
        torch.nn.init.normal_(block.router.weight, std=0.4)
        if block.router.score_bias is not None:
            torch.nn.init.normal_(block.router.score_bias, std=0.2)
    return model.eval()


class Received(NamedTuple):
    """What the experts of one layer got: rows [N, hidden], weights and ids [N, k]."""

    rows: NDArray[np.float64]
    weights: NDArray[np.float32]
    ids: NDArray[np.int64]


def forward(model: Any) -> Any:
    """One pass over the batch; OLMo-core's takes no mask."""
    with torch.no_grad():
        return model(IDS)


def received(model: Any) -> list[Received]:
    """By layer, what one pass gives to the experts."""
    found: list[Received] = []

    def before(_module: Any, args: tuple[Any, ...]) -> None:
        rows, weights, ids = (part.flatten(0, 1).numpy() for part in args[:3])
        found.append(Received(rows.astype(np.float64), weights, ids))

    handles = [
        block.feed_forward_moe.experts.register_forward_pre_hook(before)
        for block in model.blocks.values()
    ]
    forward(model)
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("name", sorted(ROUTERS))
def test_a_model_is_recorded_as_its_experts_were_called(
    name: str, tmp_path: Path, verified: Any
) -> None:
    """A probe's rows are what the experts got and the formulas give; the model stays as it was."""
    model = make_model(ROUTERS[name])
    alone = forward(model)
    before = state_of(model)
    rows, counters, output = recorded(model, lambda: forward(model), REQUESTS, tmp_path)
    assert_as_before(model, before)
    assert torch.equal(alone, output)
    assert torch.equal(alone, forward(model))
    batch, length = IDS.shape
    assert counters == ProbeCounters(passed_rows=IDS.numel())
    assert rows.request == [request for request in REQUESTS for _ in range(length)]
    assert rows.position == [*range(length)] * batch
    assert set(rows.phase) == {Phase.PREFILL}
    for layer, (block, got) in enumerate(zip(model.blocks.values(), received(model), strict=True)):
        order = got.ids.argsort(-1)
        np.testing.assert_array_equal(rows.ids[:, layer], np.take_along_axis(got.ids, order, -1))
        np.testing.assert_allclose(
            rows.weights[:, layer], np.take_along_axis(got.weights, order, -1), rtol=1e-3
        )
        matrix = block.router.weight.detach().double().numpy().reshape(EXPERTS, HIDDEN)
        logits = got.rows @ matrix.T
        is_sigmoid = name.startswith("sigmoid")
        scores = 1 / (1 + np.exp(-logits)) if is_sigmoid else np.exp(logits)
        shares = scores / scores.sum(-1, keepdims=True)
        selection = scores if is_sigmoid else shares
        if block.router.score_bias is not None:
            selection = selection + block.router.score_bias.double().numpy()
        ranked = np.argsort(-selection, axis=-1)
        np.testing.assert_array_equal(rows.top1[:, layer], ranked[:, 0])
        np.testing.assert_array_equal(rows.ids[:, layer], np.sort(ranked[:, :TOP_K], -1))
        gaps = -np.sort(-selection, axis=-1)
        np.testing.assert_allclose(
            rows.entropy[:, layer],
            -(shares * np.log(shares)).sum(-1),
            atol=np.log(EXPERTS) / 500,
        )
        np.testing.assert_allclose(
            rows.margin[:, layer], gaps[:, TOP_K - 1] - gaps[:, TOP_K], rtol=0.02, atol=6e-4
        )
    assert not rows.dropped.any()
    for what in ("ids", "weights", "entropy", "margin", "rank order", "detach"):
        verified(subject="OLMo-core router", what=what)
    verified(subject="OLMo-core experts", what="a whole forward")
