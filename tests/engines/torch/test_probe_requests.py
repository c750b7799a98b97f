from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
transformers = pytest.importorskip("transformers", reason="`make engines` has transformers")

from support.torch_models import Recording, assert_routed_as, expected_routing, make_model

from moescope.producers import attach
from moescope.producers.torch_probe import RequestFacts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from moescope.producers.torch_probe import Probe

SEQUENCES = {"left": [5, 9, 11, 2, 40], "right": [7, 7, 21, 3, 18, 44, 6]}
PROMPT = 3


@pytest.fixture
def model() -> Any:
    """A tiny OLMoE."""
    return make_model("olmoe")


@pytest.fixture
def recording(model: Any, tmp_path: Path) -> Recording:
    """Its recorder."""
    return Recording(model, tmp_path)


def logits(model: Any, tokens: list[int]) -> None:
    """One forward pass."""
    with torch.no_grad():
        model(torch.tensor([tokens]))


def steps(model: Any, tokens: list[int]) -> Iterator[None]:
    """A prompt, then a token at a time."""
    cache = transformers.DynamicCache(config=model.config)
    parts = [tokens[:PROMPT], *([token] for token in tokens[PROMPT:])]
    for part in parts:
        with torch.no_grad():
            model(torch.tensor([part]), cache=cache, use_cache=True)
        yield


def in_turns(*streams: Iterator[None]) -> None:
    """Resume each in turn until all are over."""
    waiting = list(streams)
    while waiting:
        waiting = [stream for stream in waiting if next(stream, waiting) is not waiting]


def assert_both(model: Any, recording: Recording) -> None:
    """Each sequence is recorded whole, as its own request."""
    rows = recording.rows()
    for name, tokens in SEQUENCES.items():
        mine = [row for row in rows if row.request == name]
        assert_routed_as(mine, expected_routing(model, tokens), range(len(tokens)))
    assert len(rows) == sum(map(len, SEQUENCES.values()))


@contextlib.contextmanager
def traced(probe: Probe, name: str) -> Iterator[None]:
    """A context manager of the program's own around the probe's."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(probe.request(name))
        yield


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_generators_that_take_turns_keep_their_requests(
    model: Any,
    recording: Recording,
    is_wrapped: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """Streams in one thread are not mixed up, and nobody's pass is neither's."""

    def stream(probe: Probe, name: str) -> Iterator[None]:
        with traced(probe, name) if is_wrapped else probe.request(name):
            yield from steps(model, SEQUENCES[name])

    with attach(model, recording.recorder) as probe:
        left, right = (stream(probe, name) for name in SEQUENCES)
        next(left)
        logits(model, [1, 2])  # between the turns: neither's
        in_turns(right, left)
        assert probe.counters.unattributed_rows == 2
        logits(model, [1, 2, 3, 4])
        assert probe.counters.unattributed_rows == 2 + 4
    assert recording.recorder.counters().unseen_rows == 2
    assert_both(model, recording)


def test_tasks_keep_their_requests(model: Any, recording: Recording) -> None:
    """Tasks of asyncio that take turns, one of which computes in a worker thread."""

    async def in_loop(probe: Probe) -> None:
        with probe.request("left"):
            for _ in steps(model, SEQUENCES["left"]):
                await asyncio.sleep(0)

    async def in_worker(probe: Probe) -> None:
        with probe.request("right"):
            await asyncio.to_thread(lambda: list(steps(model, SEQUENCES["right"])))

    async def both(probe: Probe) -> None:
        await asyncio.gather(in_loop(probe), in_worker(probe))

    with attach(model, recording.recorder) as probe:
        asyncio.run(both(probe))
        assert probe.counters.refused_passes == probe.counters.unattributed_rows == 0
    assert_both(model, recording)


def test_requests_opened_by_hand_are_not_guessed(
    model: Any, recording: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    """Where nothing tells which of two requests computes, it is said and counted."""

    def opened(probe: Probe, name: str) -> contextlib.ExitStack:
        stack = contextlib.ExitStack()
        stack.enter_context(probe.request(name))
        return stack

    with attach(model, recording.recorder) as probe:
        with opened(probe, "left"):
            with opened(probe, "right"):
                logits(model, SEQUENCES["right"])
            assert probe.counters.refused_passes == 1
        with opened(probe, "third"):
            logits(model, SEQUENCES["left"])
        assert probe.counters.passed_rows == len(SEQUENCES["left"])
    assert recording.recorder.counters().unseen_rows == len(SEQUENCES["right"])
    assert any("several requests open" in record.message for record in caplog.records)
    assert {row.request for row in recording.rows()} == {"third"}


def test_an_inner_request_hides_the_outer_one(model: Any, recording: Recording) -> None:
    """Blocks in blocks: the innermost is meant, and the outer goes on behind it."""
    cache = transformers.DynamicCache(config=model.config)
    left = torch.tensor([SEQUENCES["left"]])
    with attach(model, recording.recorder) as probe, torch.no_grad(), probe.request("left"):
        model(left[:, :-1], cache=cache, use_cache=True)
        with probe.request("right"):
            logits(model, SEQUENCES["right"])
        model(left[:, -1:], cache=cache, use_cache=True)
    assert_both(model, recording)


def test_a_thread_that_was_told_nothing_is_missed(
    model: Any, recording: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    """`Thread(target=generate)` inside a block: its rows lower the coverage, and how to is said."""
    with attach(model, recording.recorder) as probe:
        logits(model, [1, 2, 3, 4])  # before any request: no one misses it
        with probe.request("left"):
            thread = threading.Thread(target=logits, args=(model, SEQUENCES["left"]))
            thread.start()
            thread.join(timeout=60)
        assert probe.counters.unattributed_rows == 4 + len(SEQUENCES["left"])
    assert recording.recorder.counters().unseen_rows == len(SEQUENCES["left"])
    assert any("in its own thread" in record.message for record in caplog.records)


@pytest.mark.parametrize("prompt_tokens", [None, 8])
def test_drafts_are_no_prompt(model: Any, recording: Recording, prompt_tokens: int | None) -> None:
    """Drafted tokens that are checked together with the prompt are not recorded as any of it."""
    prompt = torch.tensor([[5, 9, 11, 5, 9, 11, 5, 9]])
    with attach(model, recording.recorder) as probe:
        with probe.request("one", prompt_tokens=prompt.shape[1] if prompt_tokens else None):
            model.generate(
                prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=8,
                prompt_lookup_num_tokens=3,
            )  # fmt: skip
        assert probe.counters.passed_rows == probe.counters.errors == 0
    assert recording.recorder.counters().unseen_rows >= prompt.shape[1]
    assert recording.rows() == []


def test_rows_behind_the_prompt_are_not_taken_for_it(model: Any, recording: Recording) -> None:
    """A first pass that is longer than the prompt holds what nobody has generated yet."""
    with attach(model, recording.recorder) as probe:
        with probe.request("one", prompt_tokens=PROMPT):
            logits(model, SEQUENCES["left"])
        assert probe.counters.refused_passes == 1
    assert recording.recorder.counters().unseen_rows == len(SEQUENCES["left"])


def generated(model: Any, width: int = 2, **options: Any) -> Any:
    """Six new tokens behind each of several prompts."""
    prompts = torch.tensor([[5, 9, 11], [7, 7, 21]])[:width]
    return model.generate(
        prompts, attention_mask=torch.ones_like(prompts), do_sample=False, max_new_tokens=6,
        pad_token_id=0, **options,
    )  # fmt: skip


def test_another_end_token_of_one_row_loses_nothing(model: Any, recording: Recording) -> None:
    """Of one request, each computed row is a token, whatever the model's own end token is."""
    tokens = generated(model, 1, eos_token_id=None)[0].tolist()
    model.generation_config.eos_token_id = tokens[PROMPT]
    with attach(model, recording.recorder) as probe, probe.request("one"):
        again = generated(model, 1, eos_token_id=[49])
    assert again[0].tolist() == tokens
    assert_routed_as(recording.rows(), expected_routing(model, tokens), range(len(tokens) - 1))


@pytest.mark.parametrize("is_told", [False, True])
def test_another_end_token_of_a_batch(
    model: Any,
    recording: Recording,
    is_told: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """Rows behind what may have been an end are told as unseen, or recorded where it is said."""
    tokens = generated(model, eos_token_id=None)
    model.generation_config.eos_token_id = int(tokens[0, PROMPT])
    facts = [RequestFacts(id="left"), RequestFacts(id="right")]
    with attach(model, recording.recorder) as probe:
        with probe.batch(facts, end_tokens=[49] if is_told else None):
            again = generated(model, eos_token_id=[49])
        counted = probe.counters
    assert again.tolist() == tokens.tolist()
    computed = 2 * (tokens.shape[1] - 1)
    lost = recording.recorder.counters().unseen_rows
    assert counted.passed_rows + lost == computed
    assert counted.padding_rows == 0
    assert counted.doubtful_rows == lost
    assert (lost == 0) is is_told
