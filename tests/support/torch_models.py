"""A tiny MoE model, its recording, and what its routers have to say, computed independently."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import transformers

from moescope.core.batchlog import BatchLogReader
from moescope.core.quantise import entropies_of, margins_of, weights_of
from moescope.core.vocabulary import Phase
from moescope.core.wire import decode_batch
from moescope.producers import Recorder
from moescope.producers.agent import Agent
from moescope.producers.torch_probe import router_shape

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from moescope.core.batch import RoutingBatch

EXPERTS, TOP_K, LAYERS, VOCABULARY = 8, 3, 2, 50
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": LAYERS, "num_attention_heads": 2, "num_key_value_heads": 2,
    "num_experts_per_tok": TOP_K, "pad_token_id": 0, "eos_token_id": None,
}  # fmt: skip


def make_model(family: str) -> Any:
    """A tiny random model, whose routers have opinions."""
    torch.manual_seed(3)
    if family == "olmoe":
        config = transformers.OlmoeConfig(**SIZES, num_experts=EXPERTS)
        model = transformers.OlmoeForCausalLM(config)
    else:
        config = transformers.MixtralConfig(**SIZES, num_local_experts=EXPERTS)
        model = transformers.MixtralForCausalLM(config)
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.mlp.gate.weight, std=0.7)
    return model.eval()


class Row(NamedTuple):
    """One recorded token."""

    request: str
    position: int
    phase: Phase
    top1: list[int]
    experts: list[set[int]]
    entropy: NDArray[np.float32]
    margin: NDArray[np.float32]
    weights: list[dict[int, float]]
    token: int | None = None


class Recording:
    """A recorder, and the agent that makes batches of what it recorded."""

    def __init__(self, model: Any, folder: Path, token_id_kind: str = "off") -> None:
        shape = router_shape(model)
        self.folder = folder
        self.recorder = Recorder(
            model="tiny", revision="r1", layers=shape.layers, experts=shape.experts,
            top_k=shape.top_k, directory=folder / "rings", node="node", ring_bytes=1 << 20,
            rank_order="selection_score", score_kind="softmax", weight_bits=16,
            token_id_kind=token_id_kind,
        )  # fmt: skip

    def batches(self) -> list[RoutingBatch]:
        """What arrived in the batch log, once the recorder is closed."""
        self.recorder.close()
        with Agent(self.folder / "rings", self.folder / "log") as agent:
            agent.drain()
        with BatchLogReader(self.folder / "log", "node") as reader:
            return [decode_batch(record.payload) for record in reader.read(0).records]

    def rows(self) -> list[Row]:
        """Its rows, without context rows."""
        return [
            row for batch in self.batches() if batch.tokens is not None for row in rows_of(batch)
        ]

    def positions(self) -> dict[str, list[int]]:
        """Positions by request, as they were recorded."""
        found: dict[str, list[int]] = {}
        for row in self.rows():
            found.setdefault(row.request, []).append(row.position)
        return found

    def unseen(self) -> dict[str, int]:
        """Unseen rows by reason, as batches tell them."""
        told: dict[str, int] = {}
        for batch in self.batches():
            if batch.header.drops.unseen_rows:
                reason = batch.header.labels["unseen_reason"]
                told[reason] = told.get(reason, 0) + batch.header.drops.unseen_rows
        return told

    def switch(self, *, on: bool) -> None:
        """Make or remove the file `disable`, and wait until the recorder has seen it."""
        file = self.folder / "rings" / "disable"
        if on:
            file.unlink()
        else:
            file.touch()
        for _ in range(400):
            if self.recorder.is_recording is on:
                return
            time.sleep(0.025)
        raise AssertionError("The recorder never looked.")


def rows_of(batch: Any) -> Iterator[Row]:
    """The rows of one batch, read plainly."""
    tokens, routes = batch.tokens, batch.routes
    weights = None if routes.weights is None else weights_of(routes.weights)
    entropy = entropies_of(routes.entropy, EXPERTS)
    margin = margins_of(routes.margin)
    for row in range(len(tokens)):
        if tokens.flags[row] & 1:
            continue
        ids = routes.expert_ids[row].tolist()
        yield Row(
            batch.requests.ids[tokens.request[row]],
            int(tokens.position[row]),
            Phase(int(tokens.phase[row])),
            [ids[layer][routes.top1[layer, row]] for layer in range(LAYERS)],
            [set(layer) for layer in ids],
            entropy[:, row],
            margin[:, row],
            [
                {}
                if weights is None
                else dict(zip(ids[layer], weights[:, layer, row], strict=True))
                for layer in range(LAYERS)
            ],
            None if tokens.token_id is None else int(tokens.token_id[row]),
        )


class Expected(NamedTuple):
    """Routing of one sequence, computed from hidden states and router weights alone."""

    order: NDArray[np.int64]
    entropy: NDArray[np.float64]
    margin: NDArray[np.float64]
    weights: NDArray[np.float64]


def expected_routing(model: Any, tokens: list[int]) -> list[Expected]:
    """By position: what each layer's router has to do with an unpadded sequence."""
    inputs: list[Any] = []
    hooks = [
        layer.mlp.register_forward_pre_hook(lambda _m, args: inputs.append(args[0].detach()))
        for layer in model.model.layers
    ]
    with torch.no_grad():
        model(torch.tensor([tokens]), use_cache=False)
    for hook in hooks:
        hook.remove()
    by_layer = []
    for hidden, layer in zip(inputs, model.model.layers, strict=True):
        router = layer.mlp.gate.weight.detach().double().numpy()
        logits = hidden[0].double().numpy() @ router.T
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
        by_layer.append(exponentials / exponentials.sum(axis=1, keepdims=True))
    found = []
    for position in range(len(tokens)):
        share = np.stack([layer[position] for layer in by_layer])
        order = np.argsort(-share, axis=1)
        ranked = np.take_along_axis(share, order, axis=1)
        weights = ranked[:, :TOP_K]
        if model.config.model_type == "mixtral":
            weights = weights / weights.sum(axis=1, keepdims=True)
        found.append(
            Expected(
                order[:, :TOP_K], -(share * np.log(share)).sum(axis=1),
                ranked[:, TOP_K - 1] - ranked[:, TOP_K], weights,
            )
        )  # fmt: skip
    return found


def assert_routed_as(rows: list[Row], expected: list[Expected], positions: range) -> None:
    """The rows of one request are these positions, routed as computed independently."""
    assert [row.position for row in rows] == list(positions)
    for row in rows:
        wanted = expected[row.position]
        assert row.top1 == wanted.order[:, 0].tolist()
        assert row.experts == [set(layer) for layer in wanted.order.tolist()]
        np.testing.assert_allclose(row.entropy, wanted.entropy, atol=np.log(EXPERTS) / 500)
        np.testing.assert_allclose(row.margin, wanted.margin, rtol=0.02, atol=6e-4)
