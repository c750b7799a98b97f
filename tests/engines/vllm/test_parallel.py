"""Parallel layouts of a real server on the CPU, with two workers: who records what.

The answers are compared with those of a server of the same layout without the plugin, the ids with
the model's weights.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pytest
from support.plugin_rows import Recorded, recorded_by_node
from support.vllm_client import Prompt, complete_all
from support.vllm_server import TINY_MOE, ServerOptions, wait_until_ready

pytest.importorskip("vllm", reason="`make engines` has vLLM")

from support.served_routing import ServedWeights

from moescope.core.batch import Ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.vllm_client import Reply
    from support.vllm_server import VllmNursery

pytestmark = pytest.mark.timeout(900)

SUBJECT: Final = "vLLM plugin"
NODE: Final = "parallel"
VOCABULARY, LAYERS, EXPERTS, TOP_K = 2048, 6, 32, 4
TENSOR: Final = ("--tensor-parallel-size", "2")
PIPELINE: Final = ("--pipeline-parallel-size", "2")
DATA: Final = ("--data-parallel-size", "2")
APART: Final = "--enable-expert-parallel"


class Producer(NamedTuple):
    """One that a layout has to have."""

    ranks: Ranks
    layers: range = range(LAYERS)


class Layout(NamedTuple):
    """How a server is spread over two workers.

    Attributes:
        name: Of the cell in the matrix.
        arguments: Of vLLM.
        producers: By node.
    """

    name: str
    arguments: tuple[str, ...]
    producers: dict[str, Producer]


LAYOUTS: Final = (Layout("tensor parallelism", TENSOR, {NODE: Producer(Ranks(tensor_parallel=0))}),)

FAILS: Final = (
    "vLLM's own CPU engine (0.32) fails on it, without the plugin, too; parts have unit tests"
)
NOT_RUN: Final = {
    "pipeline parallelism": PIPELINE,
    "data parallelism": DATA,
    "expert parallelism over tensor-parallel ranks": (*TENSOR, APART),
    "expert parallelism over data-parallel ranks": (*DATA, APART),
}
"""Layouts that vLLM 0.32 does not compute on a CPU."""


class Served(NamedTuple):
    """A server that has answered.

    Attributes:
        replies: By prompt.
        plain: Those of a server without the plugin.
        nodes: What was recorded.
    """

    prompts: Sequence[Prompt]
    replies: Sequence[Reply]
    plain: Sequence[Reply]
    nodes: dict[str, Recorded]


@pytest.fixture(params=LAYOUTS, ids=lambda layout: layout.name, scope="module")
def layout(request: pytest.FixtureRequest) -> Layout:
    """One of them."""
    found: Layout = request.param
    return found


@pytest.fixture(scope="module")
def weights() -> ServedWeights:
    """Of the served model."""
    return ServedWeights(TINY_MOE)


@pytest.fixture(scope="module")
def served(
    layout: Layout, nursery: VllmNursery, tmp_path_factory: pytest.TempPathFactory
) -> Served:
    """Two waves of concurrent clients, chunked prefill."""
    folder = tmp_path_factory.mktemp("parallel")
    random = np.random.default_rng(3)
    waves = [
        [
            Prompt(
                request_id=f"wave-{wave}-{at}",
                token_ids=random.integers(3, VOCABULARY, length).tolist(),
                tokens=20,
            )
            for at, length in enumerate((60, 35, 90, 7))
        ]
        for wave in range(2)
    ]
    ring = folder / "ring"
    arguments = (*layout.arguments, "--max-num-batched-tokens", "64")
    name = layout.name.replace(" ", "-")
    options = ServerOptions(arguments=arguments, environment={"MOESCOPE_NODE": NODE})
    plain = nursery.launch(f"{name}-plain", options)
    watched = nursery.launch(name, replace(options, ring=ring))
    answers: list[list[Reply]] = []
    for server in (plain, watched):
        wait_until_ready(server)
        answers.append([reply for wave in waves for reply in complete_all(server, wave)])
    watched.stop()
    plain.kill()
    return Served(
        [prompt for wave in waves for prompt in wave],
        answers[1],
        answers[0],
        recorded_by_node(ring, folder / "log"),
    )


def test_a_parallel_engine_is_recorded_once_and_answers_as_without(
    layout: Layout, served: Served, weights: ServedWeights, verified: Any
) -> None:
    """Each row by one producer, or of each layer by one, with the ids that the weights have."""
    assert [reply.error for reply in (*served.plain, *served.replies) if reply.error] == []
    assert [len(reply.token_ids) for reply in served.plain] == [
        prompt.tokens for prompt in served.prompts
    ]
    assert [reply.token_ids for reply in served.replies] == [
        reply.token_ids for reply in served.plain
    ]
    assert served.nodes.keys() == layout.producers.keys()
    for node, producer in layout.producers.items():
        for header in served.nodes[node].headers:
            assert header.ranks == producer.ranks
            assert header.layers.tolist() == [*producer.layers]
            assert (header.experts, header.top_k) == (EXPERTS, TOP_K)
            assert header.drops.lost_rows == header.drops.rejected_rows == 0
    compared = 0
    for prompt, reply in zip(served.prompts, served.replies, strict=True):
        name = f"cmpl-{prompt.request_id}"
        computed = [*prompt.token_ids, *reply.token_ids[:-1]]
        wanted = weights.routing(computed)
        for node in layout.producers:
            request = served.nodes[node].requests[name]
            assert [row.position for row in request.rows] == [*range(len(computed))]
            assert request.has_ended
            for row in request.rows:
                for at, layer in enumerate(layout.producers[node].layers):
                    chosen = wanted.chosen(row.position, layer, TOP_K)
                    if chosen is not None:
                        assert {*row.expert_ids[at].tolist()} == chosen
                        compared += 1
    rows = sum(len(prompt.token_ids) + prompt.tokens - 1 for prompt in served.prompts)
    assert compared > 0.95 * rows * LAYERS
    verified(subject=SUBJECT, what=f"{layout.name} (2 workers, CPU)")


def test_layouts_that_are_not_verified_are_said(not_verified: Any) -> None:
    """The matrix names them, too: by what it leaves out it would promise them."""
    for name in NOT_RUN:
        not_verified(subject=SUBJECT, what=f"{name} (2 workers, CPU)", why=FAILS)
    for what, why in (
        ("load balancing of experts (EPLB) at work", "vLLM does it on GPUs only"),
        ("an engine on several machines", "there was one machine"),
    ):
        not_verified(subject=SUBJECT, what=what, why=why)


@pytest.mark.skipif(
    not os.environ.get("MOESCOPE_ALL_LAYOUTS"),
    reason="eight workers: MOESCOPE_ALL_LAYOUTS=1 tries them, for a new vLLM",
)
@pytest.mark.parametrize("name", NOT_RUN)
def test_vllm_computes_some_layouts_on_gpus_only(name: str, nursery: VllmNursery) -> None:
    """Once it computes one on a CPU, too, this fails: then it belongs to those verified."""
    options = ServerOptions(arguments=NOT_RUN[name])
    server = nursery.launch(name.replace(" ", "-"), options)
    wait_until_ready(server)
    (reply,) = complete_all(server, [Prompt(request_id=name, token_ids=range(5, 25), tokens=8)])
    server.kill()
    assert len(reply.token_ids) < 8
