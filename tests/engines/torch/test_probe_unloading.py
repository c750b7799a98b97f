"""A model that is unloaded amid a request: the same numbers until then, and each row accounted for.

A program unloads a model by letting go of it, or (offloading) by emptying its weights while others
still hold the modules. Each is compared with the same program without a probe.
"""

from __future__ import annotations

import gc
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
transformers = pytest.importorskip("transformers", reason="`make engines` has transformers")

from support.torch_models import Recording, assert_routed_as, expected_routing, make_model

from moescope.core.batchlog import BatchLogReader
from moescope.core.wire import decode_batch
from moescope.producers import attach
from moescope.producers.torch_probe import RequestFacts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROMPT: Final = [5, 9, 11, 2, 40]
STEPS: Final = 9
LONGEST_S: Final = 60.0
UNLOADED: Final = "the model was unloaded amid a request"
WHAT: Final = "same output, and counted: a model unloaded amid a request"


class Decoding(NamedTuple):
    """What a request has computed so far.

    Attributes:
        logits: Of the last position of each pass.
        tokens: The prompt, and what the model was given behind it.
        cache: Of its keys and values.
    """

    logits: list[Any]
    tokens: list[int]
    cache: Any


def decoded(model: Any, steps: int) -> Decoding:
    """A prompt and some greedy steps of one request."""
    cache = transformers.DynamicCache(config=model.config)
    done = Decoding([], list(PROMPT), cache)
    given = torch.tensor([PROMPT])
    with torch.no_grad():
        for _ in range(steps + 1):
            output = model(given, cache=cache)
            done.logits.append(output.logits[0, -1].clone())
            given = output.logits[:, -1:].argmax(-1)
            done.tokens.append(int(given))
    done.tokens.pop()
    return done


def parts_of(model: Any) -> list[Any]:
    """Weak references to all modules and weights of a model."""
    return [weakref.ref(part) for part in (*model.modules(), *model.parameters(), *model.buffers())]


def alive(parts: list[Any]) -> list[str]:
    """What is still there of them."""
    gc.collect()
    return [type(part()).__name__ for part in parts if part() is not None]


def unseen_reasons(recording: Recording) -> dict[str, int]:
    """Rows told as unseen, by reason, as the batches have them."""
    with BatchLogReader(recording.folder / "log", "node") as reader:
        headers = [decode_batch(record.payload).header for record in reader.read(0).records]
    return {
        header.labels["unseen_reason"]: header.drops.unseen_rows
        for header in headers
        if header.drops.unseen_rows
    }


def assert_same(one: list[Any], other: list[Any]) -> None:
    """Bit for bit."""
    assert len(one) == len(other)
    assert all(torch.equal(mine, yours) for mine, yours in zip(one, other, strict=True))


def leave_the_block(_probe: Any, _recording: Recording) -> None:
    """Nobody asks for the steps before their block ends."""


def detach(probe: Any, _recording: Recording) -> None:
    """The program detaches the probe of the model that it has let go of."""
    probe.detach()


def close_the_recorder(_probe: Any, recording: Recording) -> None:
    """The program closes what it recorded with."""
    recording.recorder.close()


def wait_for_the_late_thread(_probe: Any, recording: Recording) -> None:
    """No further step comes: a thread reads those that wait."""
    ends = time.monotonic() + LONGEST_S
    while time.monotonic() < ends:
        if recording.recorder.counters().unseen_rows:
            return
        time.sleep(0.01)
    pytest.fail("the steps that waited were never told")


@pytest.mark.parametrize("family", ["olmoe", "mixtral"])
@pytest.mark.parametrize(
    "end", [leave_the_block, detach, close_the_recorder, wait_for_the_late_thread]
)
def test_a_model_dropped_between_decode_steps(
    family: str, end: Callable[[Any, Recording], None], tmp_path: Path, verified: Any
) -> None:
    """Steps that wait to be read are told as unseen; nothing of the model is kept for them."""
    plain = decoded(make_model(family), STEPS)
    model = make_model(family)
    expected = expected_routing(model, plain.tokens)
    recording = Recording(model, tmp_path)
    parts = parts_of(model)
    probe = attach(model, recording.recorder)
    if end is not wait_for_the_late_thread:
        probe._clock = lambda: 0.0  # else a slow machine reads the steps before the model goes
    with probe.request("one"):
        done = decoded(model, STEPS)
        read = probe.counters.passed_rows
        assert read < len(done.tokens)  # some steps wait
        del model
        assert alive(parts) == []
        end(probe, recording)
    assert_same(done.logits, plain.logits)
    assert done.tokens == plain.tokens
    probe.detach()
    counted = recording.recorder.counters()
    assert (probe.counters.errors, probe.counters.passed_rows) == (0, read)
    assert counted.recorded_rows == read
    assert counted.recorded_rows + counted.unseen_rows == len(done.tokens)
    assert_routed_as(recording.rows(), expected, range(read))
    assert unseen_reasons(recording) == {UNLOADED: len(done.tokens) - read}
    verified(subject="torch probe", what=WHAT)


def test_a_model_dropped_behind_its_prompt(tmp_path: Path) -> None:
    """A pass that is read at once needs no model: all its rows are recorded."""
    model = make_model("olmoe")
    expected = expected_routing(model, PROMPT)
    recording = Recording(model, tmp_path)
    parts = parts_of(model)
    probe = attach(model, recording.recorder)
    with probe.request("one"):
        decoded(model, 0)
        del model
        assert alive(parts) == []
    probe.detach()
    assert_routed_as(recording.rows(), expected, range(len(PROMPT)))
    assert recording.recorder.counters().unseen_rows == 0


def test_the_model_loaded_in_its_place_is_recorded(tmp_path: Path, verified: Any) -> None:
    """A probe of its own and the same recorder: each of its rows, as if none had gone before."""
    plain = decoded(make_model("olmoe"), STEPS)
    model = make_model("olmoe")
    recording = Recording(model, tmp_path)
    first = attach(model, recording.recorder)
    with first.request("one"):
        decoded(model, STEPS)
        del model
        gc.collect()
    loaded = make_model("olmoe")
    with attach(loaded, recording.recorder) as second, second.request("two"):
        again = decoded(loaded, STEPS)
    assert_same(again.logits, plain.logits)
    first.detach()
    rows = [row for row in recording.rows() if row.request == "two"]
    assert_routed_as(rows, expected_routing(loaded, again.tokens), range(len(again.tokens)))
    verified(subject="torch probe", what="a model loaded in the place of an unloaded one")


class Generated(NamedTuple):
    """What a generation whose weights went away had computed, and how it ended."""

    scores: list[Any]
    error: str


def generated_until_unloaded(model: Any, passes: int) -> Generated:
    """Generate for two requests; in a later pass, between two layers, all weights are emptied.

    Args:
        model: Which has no weights afterwards.
        passes: How many are whole.
    """
    scores: list[Any] = []

    def note(_ids: Any, given: Any) -> Any:
        scores.append(given.clone())
        return given

    def unload(_module: Any, _given: Any) -> None:
        if len(scores) == passes:
            for weight in model.parameters():
                weight.data = weight.data.new_empty(0)

    model.model.layers[1].mlp.register_forward_pre_hook(unload)
    prompts = torch.tensor([[0, 5, 9], [7, 30, 2]])
    with pytest.raises(RuntimeError) as raised:
        model.generate(
            prompts, attention_mask=(prompts != 0).long(), max_new_tokens=passes + 5,
            min_new_tokens=passes + 5, logits_processor=[note],
        )  # fmt: skip
    return Generated(scores, str(raised.value))


@pytest.mark.parametrize("passes", [1, 2, 12])
def test_weights_emptied_amid_a_pass_of_generate(
    passes: int, tmp_path: Path, verified: Any
) -> None:
    """The model fails as it does alone; of the passes before it each row is told, of it none."""
    plain = generated_until_unloaded(make_model("olmoe"), passes)
    model = make_model("olmoe")
    recording = Recording(model, tmp_path)
    parts = parts_of(model)
    facts = [RequestFacts(id="padded"), RequestFacts(id="full")]
    probe = attach(model, recording.recorder)
    with probe.batch(facts):
        watched = generated_until_unloaded(model, passes)
        del model
    assert watched.error == plain.error
    assert_same(watched.scores, plain.scores)
    assert len(plain.scores) == passes
    assert alive(parts) == []
    probe.detach()
    counted = recording.recorder.counters()
    computed = 2 + 3 + 2 * (passes - 1)
    assert probe.counters.errors == 0
    assert counted.recorded_rows + counted.unseen_rows == computed
    rows = recording.rows()
    for name, prompt in (("padded", 2), ("full", 3)):
        found = [row.position for row in rows if row.request == name]
        assert found == list(range(len(found)))
        assert len(found) >= prompt
    assert unseen_reasons(recording).keys() <= {UNLOADED}
    verified(subject="torch probe", what=WHAT)
