from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
transformers = pytest.importorskip("transformers", reason="`make engines` has transformers")

from support.torch_models import (
    EXPERTS,
    SIZES,
    Recording,
    assert_routed_as,
    expected_routing,
    make_model,
)

from moescope.core.vocabulary import Phase
from moescope.producers import attach
from moescope.producers.torch_probe import RequestFacts

if TYPE_CHECKING:
    from pathlib import Path

PROMPTS = [[5, 9, 11, 2, 40, 17, 33], [7, 7, 21]]
WIDTH = max(map(len, PROMPTS))
FACTS = [RequestFacts(id="long"), RequestFacts(id="short")]
LEFT = torch.tensor([[0] * (WIDTH - len(p)) + p for p in PROMPTS])
MASK = torch.tensor([[0] * (WIDTH - len(p)) + [1] * len(p) for p in PROMPTS])


@pytest.fixture
def model() -> Any:
    """A tiny OLMoE."""
    return make_model("olmoe")


@pytest.fixture
def recording(model: Any, tmp_path: Path) -> Recording:
    """Its recorder."""
    return Recording(model, tmp_path)


def generated(model: Any, **options: Any) -> Any:
    """Six tokens behind each prompt."""
    return model.generate(
        LEFT, attention_mask=MASK, do_sample=False, max_new_tokens=6, min_new_tokens=6, **options
    )


def assert_generation(model: Any, recording: Recording, output: Any) -> None:
    """Each request's prompt and generated tokens are recorded, placed and routed as they are."""
    rows = recording.rows()
    for number, prompt in enumerate(PROMPTS):
        whole = prompt + output[number, WIDTH:].tolist()
        mine = [row for row in rows if row.request == FACTS[number].id]
        assert_routed_as(mine, expected_routing(model, whole), range(len(whole) - 1))
        prefill = [row.position for row in mine if row.phase is Phase.PREFILL]
        assert prefill == list(range(len(prompt)))


@pytest.mark.parametrize(
    "options",
    [{"cache_implementation": "static"}, {"use_cache": False}],
    ids=["static cache", "no cache"],
)
def test_caches_of_every_kind(
    model: Any, recording: Recording, options: dict[str, Any], verified: Any
) -> None:
    """Masks of four dimensions, and prefixes that are computed again and again."""
    with attach(model, recording.recorder) as probe:
        with probe.batch(FACTS):
            output = generated(model, **options)
        assert probe.counters.refused_passes == probe.counters.errors == 0
    if options == {"use_cache": False}:
        # The recorder flags what it saw before; the first attempt is what counts.
        assert recording.recorder.counters().recomputed_rows > 0
    else:
        assert_generation(model, recording, output)
    verified(subject="torch probe", what="no cache" if "use_cache" in options else "static cache")


def test_a_sliding_window_does_not_move_positions(tmp_path: Path, verified: Any) -> None:
    """A cache that forgets its beginning still tells how many tokens there were."""
    torch.manual_seed(3)
    config = transformers.MixtralConfig(**SIZES, num_local_experts=EXPERTS, sliding_window=4)
    model = transformers.MixtralForCausalLM(config).eval()
    recording = Recording(model, tmp_path)
    with attach(model, recording.recorder) as probe, probe.batch(FACTS):
        output = generated(model)
    assert_generation(model, recording, output)
    verified(subject="torch probe", what="sliding window")


def test_a_prompt_in_pieces_is_one_prompt(model: Any, recording: Recording, verified: Any) -> None:
    """Chunked prefill by several passes on one cache, with and without a mask."""
    cache = transformers.DynamicCache(config=model.config)
    tokens = PROMPTS[0]
    with (
        attach(model, recording.recorder) as probe,
        torch.no_grad(),
        probe.request("one", prompt_tokens=len(tokens)),
    ):
        model(torch.tensor([tokens[:3]]), cache=cache, use_cache=True)
        model(
            torch.tensor([tokens[3:5]]), attention_mask=torch.ones(1, 5, dtype=torch.long),
            cache=cache, use_cache=True,
        )  # fmt: skip
        model(torch.tensor([tokens[5:]]), cache=cache, use_cache=True)
    rows = recording.rows()
    assert_routed_as(rows, expected_routing(model, tokens), range(len(tokens)))
    assert {row.phase for row in rows} == {Phase.PREFILL}
    verified(subject="torch probe", what="prompt in pieces")


def test_embeddings_in_place_of_ids(model: Any, recording: Recording, verified: Any) -> None:
    """A pass that was given embeddings has rows like any other."""
    tokens = torch.tensor([PROMPTS[0]])
    with attach(model, recording.recorder) as probe, torch.no_grad(), probe.request("one"):
        model(inputs_embeds=model.get_input_embeddings()(tokens))
    assert_routed_as(recording.rows(), expected_routing(model, PROMPTS[0]), range(WIDTH))
    verified(subject="torch probe", what="embeddings in place of ids")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"num_beams": 2}, "rows unlike the requests"),
        ({"prompt_lookup_num_tokens": 2}, "tokens"),
    ],
    ids=["beam search", "assisted"],
)
def test_generations_that_cannot_be_followed_are_refused(
    model: Any, recording: Recording, options: dict[str, Any], reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Beams and drafts: nothing of them is recorded as what a request decoded, and it is told."""
    prompt = torch.tensor([[5, 9, 11, 5, 9, 11, 5, 9]])
    arguments = {
        "attention_mask": torch.ones_like(prompt), "do_sample": False, "max_new_tokens": 12,
    }  # fmt: skip
    plain = model.generate(prompt, **arguments, **options)
    with attach(model, recording.recorder) as probe:
        with probe.request("one", prompt_tokens=prompt.shape[1]):
            watched = model.generate(prompt, **arguments, **options)
        assert probe.counters.refused_passes > 0
        assert probe.counters.errors == 0
    assert torch.equal(plain, watched)
    assert recording.recorder.counters().unseen_rows > 0
    assert any(reason in record.message for record in caplog.records)


def test_packed_sequences_are_refused(model: Any, recording: Recording, verified: Any) -> None:
    """Positions that begin anew within a row tell of several requests in it."""
    with attach(model, recording.recorder) as probe, torch.no_grad(), probe.request("one"):
        model(torch.tensor([[5, 9, 11, 2, 40]]), position_ids=torch.tensor([[0, 1, 2, 0, 1]]))
        assert probe.counters.refused_passes == 1
    assert recording.rows() == []
    verified(subject="torch probe", what="refused: packed sequences")


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_layers_count_once(
    model: Any,
    recording: Recording,
    reentrant: bool,  # noqa: FBT001 - pytest names it
    verified: Any,
) -> None:
    """Gradient checkpointing of both kinds, over two micro-batches."""
    model.train()
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    ids = torch.tensor([PROMPTS[0]])
    with attach(model, recording.recorder) as probe:
        for micro_batch in range(2):
            with probe.batch(
                [RequestFacts(id=f"{micro_batch}")], phase=Phase.TRAIN, step=micro_batch
            ):
                model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        assert probe.counters.passed_rows == 2 * WIDTH
        assert probe.counters.errors == probe.counters.incomplete_passes == 0
    assert model.model.layers[0].mlp.gate.weight.grad is not None
    verified(
        subject="torch probe",
        what=f"gradient checkpointing, {'' if reentrant else 'not '}reentrant",
    )


def test_token_ids_are_hashed_before_they_are_recorded(
    model: Any, tmp_path: Path, verified: Any
) -> None:
    """What the recorder gets is the hash of the token, row by row."""
    recording = Recording(model, tmp_path, token_id_kind="keyed_hash")
    with (
        attach(model, recording.recorder, token_hash=lambda t: t.astype("uint64") * 3) as probe,
        torch.no_grad(),
        probe.batch(FACTS),
    ):
        model(LEFT, attention_mask=MASK)
    hashes = [row.token for row in recording.rows()]
    assert hashes == [3 * token for prompt in PROMPTS for token in prompt]
    verified(subject="torch probe", what="hashed token ids")
