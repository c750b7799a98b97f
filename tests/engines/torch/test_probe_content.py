from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
transformers = pytest.importorskip("transformers", reason="`make engines` has transformers")

from support.torch_models import Recording, make_model

from moescope.core.batchlog import BatchLogReader
from moescope.core.errors import InputError
from moescope.core.wire import decode_batch
from moescope.producers import attach
from moescope.producers.content_keys import content_keys
from moescope.producers.torch_probe import RequestFacts, probe_of

if TYPE_CHECKING:
    from pathlib import Path

SECRET = b"canaries of the tests"
PROMPTS = [[5, 9, 11, 2, 40, 17, 33], [7, 7, 21]]
WIDTH = max(map(len, PROMPTS))
FACTS = [RequestFacts(id="long"), RequestFacts(id="short")]
LEFT = torch.tensor([[0] * (WIDTH - len(p)) + p for p in PROMPTS])
MASK = torch.tensor([[0] * (WIDTH - len(p)) + [1] * len(p) for p in PROMPTS])

Keys = dict[tuple[str, int], int | None]


@pytest.fixture(scope="module")
def model() -> Any:
    """A tiny OLMoE."""
    return make_model("olmoe")


@pytest.fixture
def recording(model: Any, tmp_path: Path) -> Recording:
    """Its recorder."""
    return Recording(model, tmp_path)


def recorded_keys(recording: Recording) -> Keys:
    """By request and position; None where the row has none."""
    recording.rows()
    with BatchLogReader(recording.folder / "log", "node") as reader:
        batches = [decode_batch(record.payload) for record in reader.read(0).records]
    keys: Keys = {}
    for batch in batches:
        tokens = batch.tokens
        assert tokens is not None
        for row in range(len(tokens)):
            name = batch.requests.ids[tokens.request[row]]
            key = None if tokens.content_key is None else int(tokens.content_key[row])
            keys[name, int(tokens.position[row])] = key
    return keys


def expected_keys(name: str, tokens: list[int]) -> Keys:
    """Of one whole request."""
    keys: list[int] = content_keys(tokens, key=SECRET).tolist()
    return {(name, position): key for position, key in enumerate(keys)}


def test_generations_have_the_keys_of_their_texts(
    model: Any, recording: Recording, verified: Any
) -> None:
    """Prompt and generated tokens, in a padded batch: as if each text had been hashed alone."""
    with attach(model, recording.recorder, content_key=SECRET) as probe:
        with probe.batch(FACTS):
            output = model.generate(
                LEFT, attention_mask=MASK, do_sample=False, max_new_tokens=6, min_new_tokens=6
            )
        assert probe.counters.errors == 0
    wanted: Keys = {}
    for number, (facts, prompt) in enumerate(zip(FACTS, PROMPTS, strict=True)):
        whole = prompt + output[number, WIDTH:].tolist()
        wanted |= expected_keys(facts.id, whole[:-1])
    assert recorded_keys(recording) == wanted
    verified(subject="torch probe", what="content keys")


def test_a_prefix_that_was_not_seen_has_no_key(model: Any, recording: Recording) -> None:
    """A key of the tokens behind a cached prefix, or behind embeddings, would be another text's."""
    whole = PROMPTS[0]
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        model(torch.tensor([whole[:4]]), cache=cache, use_cache=True)
        with attach(model, recording.recorder, content_key=SECRET) as probe:
            with probe.request("late"):
                model(torch.tensor([whole[4:]]), cache=cache, use_cache=True)
            with probe.request("embedded"):
                model(inputs_embeds=model.get_input_embeddings()(torch.tensor([whole])))
            with probe.request("whole"):
                model(torch.tensor([whole]))
            assert probe.counters.errors == 0
    keys = recorded_keys(recording)
    without = {key: None for key in keys if key[0] != "whole"}
    assert len(without) == len(whole[4:]) + len(whole)
    assert keys == without | expected_keys("whole", whole)


@pytest.mark.parametrize("secret", [b"", b"short"])
def test_a_secret_that_can_be_guessed_is_refused(
    model: Any, recording: Recording, secret: bytes
) -> None:
    """As in a key file of the plugin; and nothing stays on the model."""
    with pytest.raises(InputError, match="16 to 64 bytes"):
        attach(model, recording.recorder, content_key=secret)
    assert probe_of(model) is None


def test_without_a_secret_there_are_no_keys(model: Any, recording: Recording) -> None:
    """Keys tell which requests begin alike: nobody gets them who did not ask."""
    with attach(model, recording.recorder) as probe, torch.no_grad(), probe.request("one"):
        model(torch.tensor([PROMPTS[0]]))
    assert set(recorded_keys(recording).values()) == {None}
