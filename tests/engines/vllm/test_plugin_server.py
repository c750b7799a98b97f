"""The plugin in real servers: what it recorded against the API's answers and the weights."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.plugin_rows import Recorded, RecordedRequest, outwait_passes, recorded
from support.vllm_client import Prompt, Reply, complete_all, complete_whole
from support.vllm_server import MODEL_NAME, TINY_MOE, ServerOptions, wait_until_ready

pytest.importorskip("vllm", reason="`make engines` has vLLM")

from moescope.core.vocabulary import IdSpace, Phase, RankOrder, RowFlag, ScoreKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from support.plugin_rows import RecordedRow
    from support.vllm_server import VllmNursery, VllmServer

BLOCK = 32
VOCABULARY = 2048
LAYERS, TOP_K = 6, 4
SUBJECT = "vLLM plugin"
CLEAR_MARGIN = 1e-4
"""Closer choices may fall differently where sums are taken in another order."""

pytestmark = pytest.mark.timeout(900)


@dataclass(frozen=True)
class Served:
    """A server that has answered, and what its plugin recorded until then."""

    server: VllmServer
    prompts: Sequence[Prompt]
    replies: Sequence[Reply]
    recorded: Recorded

    def request(self, prompt: Prompt) -> RecordedRequest:
        """What was recorded of a prompt."""
        return self.recorded.requests[f"cmpl-{prompt.request_id}"]

    def whole(self) -> Iterator[tuple[Prompt, Reply, RecordedRequest]]:
        """Requests that ran to their end."""
        for prompt, reply in zip(self.prompts, self.replies, strict=True):
            if prompt.abort_after is None:
                yield prompt, reply, self.request(prompt)


def prompts_of(seed: int, lengths: Sequence[int], tokens: int) -> list[Prompt]:
    """Random prompts."""
    random = np.random.default_rng(seed)
    return [
        Prompt(
            request_id=f"{seed}-{index}-of-{len(lengths)}",
            token_ids=random.integers(3, VOCABULARY, length).tolist(),
            tokens=tokens,
        )
        for index, length in enumerate(lengths)
    ]


def served(server: VllmServer, ring: Path, waves: Sequence[Sequence[Prompt]]) -> Served:
    """Send waves of concurrent prompts, and ship what was recorded while the server lives."""
    wait_until_ready(server)
    replies = [reply for wave in waves for reply in complete_all(server, wave)]
    prompts = [prompt for wave in waves for prompt in wave]
    # One more: the engine has told the plugin of all others' ends when it computes this one.
    last = prompts_of(99, [5], 2)
    replies += complete_all(server, last)
    outwait_passes()
    return Served(
        server, [*prompts, *last], replies, recorded(ring, ring.parent / f"{ring.name}-log")
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For rings and logs."""
    return tmp_path_factory.mktemp("plugin")


@pytest.fixture(scope="module")
def servers(nursery: VllmNursery, folder: Path) -> dict[str, VllmServer]:
    """All servers of this module, started beside one another."""
    drafting = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1,
                "prompt_lookup_max": 3}  # fmt: skip
    options = {
        "pressed": ServerOptions(
            ring=folder / "pressed", kv_blocks=10, block_size=BLOCK, max_model_len=256,
            arguments=("--max-num-batched-tokens", "48"),
            environment={"MOESCOPE_WEIGHTS": "1", "MOESCOPE_TOKEN_IDS": "plain",
                         "MOESCOPE_NODE": "pressed", "MOESCOPE_REVISION": "r7"},
        ),
        "compiled": ServerOptions(
            ring=folder / "compiled", eager=False, prefix_caching=False, max_model_len=256,
            block_size=BLOCK,
        ),
        "drafting": ServerOptions(
            ring=folder / "drafting", max_model_len=256, block_size=BLOCK, prefix_caching=False,
            arguments=("--speculative-config", json.dumps(drafting)),
        ),
        "dense": ServerOptions(
            ring=folder / "dense", model=dense_model(folder / "dense-model"), max_model_len=64,
            block_size=BLOCK,
        ),
    }  # fmt: skip
    return {name: nursery.launch(name, given) for name, given in options.items()}


def dense_model(folder: Path) -> Path:
    """A tiny model without experts."""
    import torch
    import transformers

    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pressed(servers: dict[str, VllmServer], folder: Path) -> Served:
    """Eager, chunked prefill, prefix cache on, and too few KV blocks for its clients."""
    first = prompts_of(1, [100], 4)
    shared = Prompt(request_id="shared", token_ids=[*first[0].token_ids[:85], 7, 8, 9], tokens=4)
    crowd = prompts_of(2, [90, 75, 60, 96, 81, 66], 50)
    aborted = Prompt(
        request_id="aborted", token_ids=crowd[0].token_ids[:40], tokens=60, abort_after=6
    )
    return served(servers["pressed"], folder / "pressed", [first, [shared], [*crowd, aborted]])


@pytest.fixture(scope="module")
def compiled(servers: dict[str, VllmServer], folder: Path) -> Served:
    """Compiled, without a prefix cache: equal prompts are computed twice."""
    twins = prompts_of(3, [70, 33, 50], 12)
    again = [
        Prompt(request_id=f"again-{one.request_id}", token_ids=one.token_ids, tokens=one.tokens)
        for one in twins
    ]
    return served(servers["compiled"], folder / "compiled", [twins, again])


@pytest.fixture(scope="module")
def drafting(servers: dict[str, VllmServer], folder: Path) -> Served:
    """Speculative decoding by n-grams, on prompts that repeat themselves."""
    random = np.random.default_rng(4)
    prompts = [
        Prompt(
            request_id=f"drafts-{index}",
            token_ids=random.integers(3, VOCABULARY, 6).tolist() * 8,
            tokens=40,
        )
        for index in range(4)
    ]
    return served(servers["drafting"], folder / "drafting", [prompts])


@dataclass(frozen=True)
class Expected:
    """What the weights say of one sequence, in float32, by another implementation.

    Attributes:
        order: Experts by descending probability, [T, L, E].
        shares: Their probabilities, [T, L, E].
    """

    order: NDArray[Any]
    shares: NDArray[Any]

    def is_clear(self) -> NDArray[np.bool_]:
        """Where the choice of k experts is not a matter of rounding, [T, L]."""
        clear: NDArray[np.bool_] = (
            self.shares[..., TOP_K - 1] - self.shares[..., TOP_K] > CLEAR_MARGIN
        )
        return clear

    def has_clear_first(self) -> NDArray[np.bool_]:
        """Where the first expert is not, [T, L]."""
        clear: NDArray[np.bool_] = self.shares[..., 0] - self.shares[..., 1] > CLEAR_MARGIN
        return clear


@pytest.fixture(scope="module")
def model() -> Any:
    """The served model, in transformers."""
    import transformers

    loaded = transformers.OlmoeForCausalLM.from_pretrained(TINY_MOE, dtype="float32")
    return loaded.eval()


def expected_routing(model: Any, tokens: Sequence[int]) -> Expected:
    """Router probabilities of a sequence, from hidden states and router weights alone."""
    import torch

    torch.set_num_threads(1)
    inputs: list[Any] = []
    hooks = [
        layer.mlp.register_forward_pre_hook(lambda _module, args: inputs.append(args[0]))
        for layer in model.model.layers
    ]
    with torch.no_grad():
        model(torch.tensor([list(tokens)]), use_cache=False)
    for hook in hooks:
        hook.remove()
    by_layer = []
    for hidden, layer in zip(inputs, model.model.layers, strict=True):
        logits = hidden[0].double().numpy() @ layer.mlp.gate.weight.detach().double().numpy().T
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        by_layer.append(shares / shares.sum(axis=1, keepdims=True))
    stacked = np.stack(by_layer, axis=1)
    order = np.argsort(-stacked, axis=-1)
    return Expected(order, np.take_along_axis(stacked, order, -1))


def computed_tokens(prompt: Prompt, reply: Reply) -> list[int]:
    """The tokens that an engine computes: all but the last one that it generates."""
    return [*prompt.token_ids, *reply.token_ids[:-1]]


def expect_each_token_once(prompt: Prompt, reply: Reply, request: RecordedRequest) -> None:
    """Positions and phases of a request that ran to its end."""
    assert len(reply.token_ids) == prompt.tokens
    countable = request.countable()
    computed = len(computed_tokens(prompt, reply))
    positions = [row.position for row in countable]
    # The last token of an answer is computed only where it was a draft.
    last = computed if any(row.phase is Phase.DRAFT for row in request.rows) else computed - 1
    assert positions == [*range(request.cached_tokens, positions[-1] + 1)]
    assert computed - 1 <= positions[-1] <= last
    assert request.prompt_tokens == len(prompt.token_ids)
    for row in countable:
        is_prompt = row.position < len(prompt.token_ids)
        assert row.phase is (Phase.PREFILL if is_prompt else Phase.DECODE)


def expect_ids_of(expected: Expected, request: RecordedRequest) -> int:
    """Compare a request's rows with the weights' own routing; how many layers were compared."""
    compared = 0
    clear, first_clear = expected.is_clear(), expected.has_clear_first()
    for row in request.rows:
        if row.phase is Phase.DRAFT:
            continue
        if row.position == len(clear):  # an answer's last token, which was a draft
            continue
        for layer in range(LAYERS):
            wanted = expected.order[row.position, layer]
            if clear[row.position, layer]:
                assert {*row.expert_ids[layer].tolist()} == {*wanted[:TOP_K].tolist()}
                compared += 1
            if clear[row.position, layer] and first_clear[row.position, layer]:
                assert row.top1 is not None
                assert row.expert_ids[layer][row.top1[layer]] == wanted[0]
    return compared


def expect_same_choice(one: RecordedRow, other: RecordedRow, clear: NDArray[np.bool_]) -> int:
    """Two computations of one token, where rounding does not decide; how many layers that was."""
    for layer in np.flatnonzero(clear).tolist():
        assert {*one.expert_ids[layer].tolist()} == {*other.expert_ids[layer].tolist()}
    return int(clear.sum())


def expect_ids_of_weights(model: Any, served: Served) -> int:
    """The same for all requests."""
    return sum(
        expect_ids_of(expected_routing(model, computed_tokens(prompt, reply)), request)
        for prompt, reply, request in served.whole()
    )


def test_eager_routing_is_that_of_the_weights(pressed: Served, model: Any, verified: Any) -> None:
    """Every row of an eager engine, recomputed ones included, has the ids of its own token."""
    compared = expect_ids_of_weights(model, pressed)
    rows = sum(len(request.rows) for _, _, request in pressed.whole())
    assert compared > 0.95 * rows * LAYERS
    verified(subject=SUBJECT, what="ids and top-1, eager")


def test_a_server_says_as_it_starts_what_is_in_force(pressed: Served) -> None:
    """Who looks for `moescope` in its log finds what was set, in one line for the engine."""
    lines = pressed.server.log_text().splitlines()
    (line,) = [line for line in lines if "moescope: " in line]
    assert f"moescope: routing of model {MODEL_NAME}, revision r7 " in line
    assert " is recorded as node pressed in " in line
    assert line.endswith("; fidelity full, token ids plain, content keys no.")


def test_compiled_routing_is_that_of_the_weights(
    compiled: Served, model: Any, verified: Any
) -> None:
    """The same where the model was compiled, the router's arithmetic with it."""
    compared = expect_ids_of_weights(model, compiled)
    rows = sum(len(request.rows) for _, _, request in compiled.whole())
    assert compared > 0.95 * rows * LAYERS
    verified(subject=SUBJECT, what="ids and top-1, compiled")


def test_every_computed_token_is_recorded_once(
    pressed: Served, compiled: Served, verified: Any
) -> None:
    """Under chunked prefill, concurrency and preemption: no token missing, none twice."""
    for server in (pressed, compiled):
        for prompt, reply, request in server.whole():
            expect_each_token_once(prompt, reply, request)
    verified(subject=SUBJECT, what="positions and phases, chunked prefill, concurrent clients")


def test_prefix_cache_hits_are_the_missing_rows(pressed: Served, verified: Any) -> None:
    """Blocks that came from the cache are `cached_tokens`, and have no rows."""
    by_id = {prompt.request_id: prompt for prompt in pressed.prompts}
    shared = pressed.request(by_id["shared"])
    assert shared.cached_tokens == 85 // BLOCK * BLOCK
    assert min(row.position for row in shared.rows) == shared.cached_tokens
    verified(subject=SUBJECT, what="prefix-cache hits as cached tokens")


def test_without_a_prefix_cache_equal_prompts_are_recorded_alike(
    compiled: Served, model: Any, verified: Any
) -> None:
    """Nothing is cached: the second time has all rows, with the ids of the first."""
    by_id = {prompt.request_id: prompt for prompt in compiled.prompts}
    replies = dict(zip(by_id, compiled.replies, strict=True))
    compared = 0
    for name, prompt in by_id.items():
        if name.startswith("again-"):
            first, again = (
                compiled.request(by_id[name.removeprefix("again-")]),
                compiled.request(prompt),
            )
            assert again.cached_tokens == 0
            tokens = computed_tokens(prompt, replies[name])
            assert tokens == computed_tokens(prompt, replies[name.removeprefix("again-")])
            clear = expected_routing(model, tokens).is_clear()
            for one, other in zip(first.rows, again.rows, strict=True):
                assert one.position == other.position
                compared += expect_same_choice(one, other, clear[one.position])
    assert compared > 0
    verified(subject=SUBJECT, what="prefix cache off")


def test_preempted_requests_keep_their_first_attempt(
    pressed: Served, model: Any, verified: Any
) -> None:
    """What is computed again after preemption is recorded, flagged, and never counts."""
    redone = 0
    for prompt, reply, request in pressed.whole():
        clear = expected_routing(model, computed_tokens(prompt, reply)).is_clear()
        passes = [row.pass_id or 0 for row in request.rows]
        assert passes == sorted(passes)  # in the order in which they were computed
        first: dict[int, RecordedRow] = {}
        for row in request.rows:
            is_again = row.position in first
            assert bool(row.flags & RowFlag.RECOMPUTED) is is_again
            if is_again:
                redone += 1
                expect_same_choice(first[row.position], row, clear[row.position])
            first.setdefault(row.position, row)
        counted = request.countable()
        assert len(counted) == len(first)
        assert all(row is first[row.position] for row in counted)
    assert redone > 0
    verified(subject=SUBJECT, what="preemption: first attempt counts")


def test_requests_have_the_names_of_the_answers_and_end(pressed: Served, verified: Any) -> None:
    """Ids and tasks are the API's ids, and finished and aborted requests end at once."""
    for prompt, reply in zip(pressed.prompts, pressed.replies, strict=True):
        assert reply.response_id == f"cmpl-{prompt.request_id}"
        request = pressed.request(prompt)
        assert request.task == reply.response_id
        assert request.has_ended or prompt is pressed.prompts[-1]
    assert len(pressed.recorded.requests) == len(pressed.prompts)
    verified(subject=SUBJECT, what="request ids of the API, ends, aborts")


def test_headers_say_what_was_served(pressed: Served, compiled: Served, verified: Any) -> None:
    """Model, layers, order, mode and losses; nothing of warm-up got in."""
    for server, mode in ((pressed, "eager"), (compiled, "compiled")):
        for header in server.recorded.headers:
            assert (header.model, header.experts, header.top_k) == (MODEL_NAME, 32, TOP_K)
            assert header.layers.tolist() == [*range(LAYERS)]
            assert header.engine == "vllm"
            assert header.labels["exec_mode"] == mode
            assert header.id_space is IdSpace.LOGICAL
            assert header.score_kind is ScoreKind.SOFTMAX
            assert header.rank_order is RankOrder.SELECTION_SCORE
            assert header.drops.lost_rows == 0
    assert {header.node for header in pressed.recorded.headers} == {"pressed"}
    assert {header.revision for header in pressed.recorded.headers} == {"r7"}
    verified(subject=SUBJECT, what="headers; warm-up not recorded")


def test_weights_and_token_ids_belong_to_their_rows(
    pressed: Served, model: Any, verified: Any
) -> None:
    """Weights are the router's (8 bits of them), token ids those of the position."""
    prompt, reply, request = next(pressed.whole())
    expected = expected_routing(model, computed_tokens(prompt, reply))
    clear = expected.is_clear()
    for row in request.rows:
        assert row.token_id == computed_tokens(prompt, reply)[row.position]
        assert row.weights is not None
        for layer in range(LAYERS):
            if clear[row.position, layer]:
                share = dict(
                    zip(
                        expected.order[row.position, layer].tolist(),
                        expected.shares[row.position, layer].tolist(),
                        strict=True,
                    )
                )
                wanted = [share[one] for one in row.expert_ids[layer].tolist()]
                assert row.weights[:, layer] == pytest.approx(wanted, rel=0.06, abs=2e-3)
    verified(subject=SUBJECT, what="weights, token ids")


def test_passes_hold_the_tokens_that_were_computed_together(pressed: Served) -> None:
    """A pass has at most the tokens that the engine batches, and concurrent requests share some."""
    by_pass: dict[int, set[str]] = {}
    rows: dict[int, int] = {}
    for name, request in pressed.recorded.requests.items():
        for row in request.rows:
            assert row.pass_id is not None
            by_pass.setdefault(row.pass_id, set()).add(name)
            rows[row.pass_id] = rows.get(row.pass_id, 0) + 1
    assert max(rows.values()) <= 48
    assert max(map(len, by_pass.values())) >= 3


@pytest.mark.parametrize(
    "options",
    [
        {"n": 3, "temperature": 1.0},
        {"logprobs": 3, "temperature": 0, "return_tokens_as_token_ids": True},
        {"prompt_logprobs": 2, "temperature": 0, "return_tokens_as_token_ids": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_rows_are_exact_whatever_a_client_asks_for(
    pressed: Served, folder: Path, model: Any, options: dict[str, Any], verified: Any
) -> None:
    """Several samples, or log-probabilities of what was generated or asked, in tiny chunks."""
    kind = next(iter(options))
    (prompt,) = prompts_of(len(kind), [70], 9)
    prompt = replace(prompt, request_id=f"asked-{kind}")
    response = complete_whole(pressed.server, prompt, options)
    samples = [choice["token_ids"] for choice in response["choices"]]
    assert len(samples) == options.get("n", 1)
    complete_all(pressed.server, prompts_of(98, [5], 2))
    found = recorded(folder / "pressed", folder / "pressed-log")
    replies = [
        Reply(response_id=response["id"], token_ids=tokens, sent_ns=0, arrived_ns=[])
        for tokens in samples
    ]
    for sample, reply in enumerate(replies):
        name = f"{response['id']}#{sample}" if sample else response["id"]
        request = found.requests[name]
        expect_each_token_once(prompt, reply, request)
        assert request.task == response["id"]
        expect_ids_of(expected_routing(model, computed_tokens(prompt, reply)), request)
    verified(subject=SUBJECT, what=f"ids and positions with `{kind}`")


def test_rejected_drafts_are_labelled_and_accepted_ones_count(
    drafting: Served, model: Any, verified: Any
) -> None:
    """Speculative decoding: each of the answer's tokens once, what was rejected as `draft`."""
    drafts = 0
    steps_saved = 0
    for prompt, reply, request in drafting.whole():
        expect_each_token_once(prompt, reply, request)
        drafts += sum(row.phase is Phase.DRAFT for row in request.rows)
        passes = {row.pass_id for row in request.rows}
        steps_saved += prompt.tokens - len(passes)
    assert drafts > 0
    assert steps_saved > 0  # else no draft was ever accepted
    assert expect_ids_of_weights(model, drafting) > 0
    verified(subject=SUBJECT, what="n-gram drafts: accepted ones count, rejected are `draft`")


def test_a_dense_model_is_served_as_if_the_plugin_were_not_there(
    servers: dict[str, VllmServer], folder: Path, verified: Any
) -> None:
    """No MoE layers: no ring, no complaint, and answers."""
    server = servers["dense"]
    wait_until_ready(server)
    (reply,) = complete_all(server, prompts_of(5, [10], 4))
    assert len(reply.token_ids) == 4
    assert not (folder / "dense").exists()
    assert "moescope: the model has no MoE layers" in server.log_text()
    verified(subject=SUBJECT, what="dense model: nothing happens")
