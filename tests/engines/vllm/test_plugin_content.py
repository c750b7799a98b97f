"""Content keys of real servers: against the prompts and answers, and joined with another engine."""

from __future__ import annotations

import base64
import io
import json
import subprocess
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from support.vllm_client import Prompt, complete_all, complete_whole
from support.vllm_server import TINY_MOE, ServerOptions, wait_until_ready

torch = pytest.importorskip("torch", reason="`make engines` has torch")
pytest.importorskip("vllm", reason="`make engines` has vLLM")

from moescope.core.batchlog import BatchLogReader, partition_names
from moescope.core.vocabulary import Phase, RowFlag
from moescope.core.wire import decode_batch
from moescope.producers import Recorder, attach
from moescope.producers.agent import Agent
from moescope.producers.torch_probe import router_shape

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from support.vllm_server import VllmNursery, VllmServer

MOESCOPE = Path(__file__).resolve().parents[3] / ".venv/bin/moescope"
"""The command of the project's own environment: an engine's has no server packages."""

SUBJECT = "vLLM plugin"
SECRET = b"canaries of the tests"
BLOCK = 32
VOCABULARY = 2048

pytestmark = pytest.mark.timeout(900)


class KeyedRow(NamedTuple):
    """One row of a log; `key` is None where it has none."""

    position: int
    phase: Phase
    flags: RowFlag
    key: int | None


@dataclass(frozen=True)
class Served:
    """A server that has answered.

    Attributes:
        data: Its folder of ring and log.
        texts: Prompt and answer by request, as its clients know them.
        rows: By request, as its plugin recorded them.
    """

    data: Path
    texts: dict[str, list[int]]
    rows: dict[str, list[KeyedRow]]

    def own_rows(self) -> Iterator[tuple[list[int], KeyedRow]]:
        """All but rejected drafts, with the texts to which they belong."""
        for name, text in self.texts.items():
            assert self.rows[name]
            for row in self.rows[name]:
                if row.phase is not Phase.DRAFT:
                    yield text, row


def key_of(tokens: Sequence[int]) -> int:
    """Key of a text's last token, as its definition says."""
    text = b"".join(token.to_bytes(4, "little") for token in tokens)
    digest = blake2b(text, key=SECRET, digest_size=8, person=b"moescope content").digest()
    return int.from_bytes(digest, "little")


def prompts_of(seed: int, lengths: Sequence[int], tokens: int) -> list[Prompt]:
    """Random prompts."""
    random = np.random.default_rng(seed)
    return [
        Prompt(
            request_id=f"{seed}-{index}",
            token_ids=random.integers(3, VOCABULARY, length).tolist(),
            tokens=tokens,
        )
        for index, length in enumerate(lengths)
    ]


def answered(server: VllmServer, waves: Sequence[Sequence[Prompt]]) -> dict[str, list[int]]:
    """Send waves of concurrent prompts; their texts."""
    wait_until_ready(server)
    texts = {}
    for wave in waves:
        for prompt, reply in zip(wave, complete_all(server, wave), strict=True):
            assert len(reply.token_ids) == prompt.tokens
            texts[reply.response_id] = [*prompt.token_ids, *reply.token_ids]
    return texts


def recorded(data: Path) -> dict[str, list[KeyedRow]]:
    """Ship what a ring holds; all rows of its log."""
    with Agent(data / "ring", data / "log") as agent:
        agent.drain()
    rows: dict[str, list[KeyedRow]] = {}
    for partition in partition_names(data / "log"):
        with BatchLogReader(data / "log", partition) as reader:
            for record in reader.read(0).records:
                batch = decode_batch(record.payload)
                tokens = batch.tokens
                for at in range(0 if tokens is None else len(tokens)):
                    assert tokens is not None
                    assert tokens.token_id is None  # which nobody asked for
                    flags = RowFlag(int(tokens.flags[at]))
                    if not flags & RowFlag.CONTEXT:
                        rows.setdefault(batch.requests.ids[tokens.request[at]], []).append(
                            KeyedRow(
                                int(tokens.position[at]), Phase(int(tokens.phase[at])), flags,
                                None if tokens.content_key is None
                                else int(tokens.content_key[at]),
                            )
                        )  # fmt: skip
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For rings, logs and the secret."""
    return tmp_path_factory.mktemp("content")


@pytest.fixture(scope="module")
def servers(nursery: VllmNursery, folder: Path) -> Iterator[dict[str, VllmServer]]:
    """Both servers of this module, started beside one another."""
    secret = folder / "secret"
    secret.touch(mode=0o600)
    secret.write_bytes(SECRET + b"\n")
    environment = {"MOESCOPE_CONTENT_KEY_FILE": str(secret)}
    drafting = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1,
                "prompt_lookup_max": 3}  # fmt: skip
    options = {
        "pressed": ServerOptions(
            ring=folder / "pressed" / "ring", kv_blocks=10, block_size=BLOCK, max_model_len=256,
            arguments=("--max-num-batched-tokens", "48", "--enable-prompt-embeds"),
            environment=environment,
        ),
        "drafting": ServerOptions(
            ring=folder / "drafting" / "ring", block_size=BLOCK, max_model_len=256,
            prefix_caching=False, arguments=("--speculative-config", json.dumps(drafting)),
            environment=environment,
        ),
    }  # fmt: skip
    launched = {name: nursery.launch(f"content-{name}", one) for name, one in options.items()}
    yield launched
    for server in launched.values():
        server.kill()


@pytest.fixture(scope="module")
def pressed(servers: dict[str, VllmServer], folder: Path) -> Served:
    """Chunked prefill, a prefix cache, and too few KV blocks for its clients."""
    server, (first,) = servers["pressed"], prompts_of(1, [100], 4)
    shared = Prompt(request_id="shared", token_ids=[*first.token_ids[:85], 7, 8, 9], tokens=4)
    crowd = prompts_of(2, [90, 75, 60, 96, 81, 66], 50)
    texts = answered(server, [[first], [shared], crowd])
    (prompt,) = prompts_of(3, [40], 8)
    several = complete_whole(server, prompt, {"n": 3, "temperature": 1.0})
    for number, choice in enumerate(several["choices"]):
        name = f"{several['id']}#{number}" if number else several["id"]
        texts[name] = [*prompt.token_ids, *choice["token_ids"]]
    return Served(folder / "pressed", texts, recorded(folder / "pressed"))


@pytest.fixture(scope="module")
def drafting(servers: dict[str, VllmServer], folder: Path) -> Served:
    """Speculative decoding by n-grams, on prompts that repeat themselves; no cache."""
    random = np.random.default_rng(4)
    prompts = [
        Prompt(
            request_id=f"drafts-{index}",
            token_ids=random.integers(3, VOCABULARY, 6).tolist() * 8,
            tokens=40,
        )
        for index in range(4)
    ]
    again = [
        Prompt(request_id=f"again-{one.request_id}", token_ids=one.token_ids, tokens=one.tokens)
        for one in prompts[:1]
    ]
    texts = answered(servers["drafting"], [prompts, again])
    return Served(folder / "drafting", texts, recorded(folder / "drafting"))


def test_keys_are_those_of_prompt_and_answer(pressed: Served, verified: Any) -> None:
    """In chunks, from a cache, preempted and computed again, sampled three times: row by row."""
    again = cached = 0
    for text, row in pressed.own_rows():
        assert row.key == key_of(text[: row.position + 1])
        again += bool(row.flags & RowFlag.RECOMPUTED)
    cached = min(row.position for row in pressed.rows["cmpl-shared"])
    assert again > 0
    assert cached == 85 // BLOCK * BLOCK
    verified(subject=SUBJECT, what="content keys: chunks, prefix cache, preemption, samples")


def test_drafts_do_not_enter_the_keys(drafting: Served, verified: Any) -> None:
    """Accepted ones are the text; a rejected one has the key of what it was computed from."""
    for text, row in drafting.own_rows():
        assert row.key == key_of(text[: row.position + 1])
    rejected = [
        (row.key, key_of(text[: row.position + 1]))
        for name, text in drafting.texts.items()
        for row in drafting.rows[name]
        if row.phase is Phase.DRAFT and row.position < len(text) - 1
    ]
    assert rejected
    assert all(key is not None and key != own for key, own in rejected)
    one, other = (
        {row.position: row.key for row in drafting.rows[f"cmpl-{name}"]}
        for name in ("drafts-0", "again-drafts-0")
    )
    assert [one[position] for position in range(48)] == [other[position] for position in range(48)]
    verified(subject=SUBJECT, what="content keys: n-gram drafts, no prefix cache")


def test_embeddings_have_no_keys(
    servers: dict[str, VllmServer], pressed: Served, verified: Any
) -> None:
    """Nobody has the tokens of such a prompt; requests beside it keep their keys."""
    vectors = io.BytesIO()
    torch.save(
        torch.randn((20, hidden_size()), generator=torch.Generator().manual_seed(1)), vectors
    )
    (prompt,) = prompts_of(5, [30], 12)
    embedded = Prompt(request_id="vectors", token_ids=[], tokens=12)
    options = {"prompt_embeds": base64.b64encode(vectors.getvalue()).decode(), "prompt": None}
    complete_whole(servers["pressed"], embedded, options)
    texts = answered(servers["pressed"], [[prompt]])
    rows = recorded(pressed.data)
    assert {row.key for row in rows["cmpl-vectors"]} == {None}
    assert len(rows["cmpl-vectors"]) == 20 + 12 - 1
    for name, text in texts.items():
        assert [row.key for row in rows[name]] == [
            key_of(text[: row.position + 1]) for row in rows[name]
        ]
    verified(subject=SUBJECT, what="content keys: none for prompts of embeddings")


def hidden_size() -> int:
    """Of the served model."""
    config = json.loads((TINY_MOE / "config.json").read_text("utf-8"))
    return int(config["hidden_size"])


def replayed(data: Path, texts: dict[str, list[int]]) -> None:
    """Put texts through the same model in transformers, watched by the torch probe."""
    import transformers

    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(TINY_MOE, dtype="float32").eval()
    shape = router_shape(model)
    recorder = Recorder(
        model="tiny-moe",
        revision="trainer",
        layers=shape.layers,
        experts=shape.experts,
        top_k=shape.top_k,
        rank_order="selection_score",
        score_kind="softmax",
        directory=data / "ring",
        node="trainer",
    )
    with torch.inference_mode(), attach(model, recorder, content_key=SECRET) as probe:
        for number, text in enumerate(texts.values()):
            with probe.request(f"sample-{number}"):
                model(torch.tensor([text]))
    with Agent(data / "ring", data / "log") as agent:
        agent.drain()
    recorder.close()


@pytest.mark.skipif(not MOESCOPE.exists(), reason="`make setup-dev` installs moescope")
def test_a_rollout_is_compared_with_a_replay_by_content(
    drafting: Served, tmp_path: Path, verified: Any
) -> None:
    """Logs of vLLM and of the torch probe have nothing in common but the tokens."""
    replayed(tmp_path, drafting.texts)
    printed = subprocess.run(
        [MOESCOPE, "report", "compare", drafting.data, tmp_path, "--a", "phase=decode", "--json"],
        check=True,
        capture_output=True,
        text=True,
    )
    report = json.loads(printed.stdout)
    decoded = {
        row.key
        for name in drafting.texts
        for row in drafting.rows[name]
        if row.phase is Phase.DECODE and row.position < len(drafting.texts[name])
    }
    assert report["mode"] == "pairs"
    assert report["by"] == "content"
    assert report["tokens"] == len(decoded) > 100
    # One precision, two implementations: only choices that rounding decides may differ.
    assert min(layer["overlap"]["value"] for layer in report["layers"]) > 0.99
    verified(subject=SUBJECT, what="content keys join its log with the torch probe's")
