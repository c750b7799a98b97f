"""What the recorder is told about tokens that a pass did not compute: another cache had them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
transformers = pytest.importorskip("transformers", reason="`make engines` has transformers")

from support.torch_models import Recording, make_model

from moescope.core.batchlog import BatchLogReader
from moescope.core.vocabulary import Phase, RowFlag
from moescope.core.wire import decode_batch
from moescope.producers import attach
from moescope.producers.torch_probe import RequestFacts

if TYPE_CHECKING:
    from pathlib import Path

PROMPT = [5, 9, 11, 2, 40, 17, 33]
CACHED = 4
GENERATED = 3
"""Passes behind the prompt's own."""


class Told(NamedTuple):
    """What batches say about a request."""

    cached_tokens: int
    decode_start: int
    positions: dict[Phase, list[int]]


@pytest.fixture(scope="module")
def model() -> Any:
    """A tiny OLMoE."""
    return make_model("olmoe")


@pytest.fixture
def recording(model: Any, tmp_path: Path) -> Recording:
    """Its recorder."""
    return Recording(model, tmp_path)


def told(recording: Recording) -> dict[str, Told]:
    """By request."""
    recording.rows()
    requests: dict[str, Told] = {}
    with BatchLogReader(recording.folder / "log", "node") as reader:
        batches = [decode_batch(record.payload) for record in reader.read(0).records]
    for batch in batches:
        tokens = batch.tokens
        if tokens is None:
            continue
        for row in np.flatnonzero((tokens.flags & RowFlag.CONTEXT) == 0).tolist():
            number = int(tokens.request[row])
            facts = (
                int(batch.requests.cached_tokens[number]),
                int(batch.requests.phase_starts[number, Phase.DECODE]),
            )
            found = requests.setdefault(batch.requests.ids[number], Told(*facts, {}))
            assert found[:2] == facts
            phase = Phase(int(tokens.phase[row]))
            found.positions.setdefault(phase, []).append(int(tokens.position[row]))
    return requests


def prefilled(model: Any, tokens: list[list[int]], mask: list[list[int]] | None = None) -> Any:
    """A key-value cache of tokens that nobody watched."""
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        model(
            torch.tensor(tokens),
            attention_mask=None if mask is None else torch.tensor(mask),
            cache=cache,
            use_cache=True,
        )
    return cache


def generate(model: Any, cache: Any, tokens: list[int]) -> None:
    """The rest of a prompt in one pass, then token after token."""
    with torch.no_grad():
        model(torch.tensor([tokens]), cache=cache, use_cache=True)
        for token in range(20, 20 + GENERATED):
            model(torch.tensor([[token]]), cache=cache, use_cache=True)


@pytest.mark.parametrize(
    ("given", "said"),
    [(None, CACHED), (CACHED, CACHED), (2, 2), (0, 0)],
    ids=["by default", "as it is", "a part", "none"],
)
def test_a_cached_prefix_is_told_and_not_recorded(
    model: Any, recording: Recording, given: int | None, said: int
) -> None:
    """Windows begin where the cache ends: one token off, and each covers what it does not hold."""
    cache = prefilled(model, [PROMPT[:CACHED]])
    with attach(model, recording.recorder) as probe:
        with probe.request("one", cached_tokens=given):
            generate(model, cache, PROMPT[CACHED:])
        assert probe.counters.errors == probe.counters.refused_passes == 0
    assert told(recording) == {
        "one": Told(
            said,
            len(PROMPT),
            {
                Phase.PREFILL: [*range(CACHED, len(PROMPT))],
                Phase.DECODE: [*range(len(PROMPT), len(PROMPT) + GENERATED)],
            },
        )
    }


def test_a_prompt_that_was_not_cached_says_so(model: Any, recording: Recording) -> None:
    """By default nothing is cached that a pass computed itself."""
    cache = transformers.DynamicCache(config=model.config)
    with attach(model, recording.recorder) as probe, probe.request("one"):
        generate(model, cache, PROMPT)
    (found,) = told(recording).values()
    assert (found.cached_tokens, found.decode_start) == (0, len(PROMPT))
    assert found.positions[Phase.PREFILL] == [*range(len(PROMPT))]


def test_a_whole_prompt_may_be_cached(model: Any, recording: Recording) -> None:
    """A request that begins with decode has its prompt from the cache, and not one token more."""
    cache = prefilled(model, [PROMPT[:CACHED]])
    with attach(model, recording.recorder) as probe:
        with probe.request("at its end", prompt_tokens=CACHED), torch.no_grad():
            model(torch.tensor([PROMPT[CACHED : CACHED + 1]]), cache=cache)
        # Its first generated token was computed before anybody watched.
        with probe.request("behind", prompt_tokens=CACHED), torch.no_grad():
            model(torch.tensor([PROMPT[CACHED + 1 : CACHED + 2]]), cache=cache)
        assert probe.counters.errors == probe.counters.refused_passes == 0
    assert told(recording) == {
        "at its end": Told(CACHED, CACHED, {Phase.DECODE: [CACHED]}),
        "behind": Told(CACHED, CACHED, {Phase.DECODE: [CACHED + 1]}),
    }


def test_rows_of_a_batch_have_each_their_own_prefix(model: Any, recording: Recording) -> None:
    """Padding in the cache is no token: a padded row has fewer cached, unless it says else."""
    before = [[1, 1, 1, 1], [0, 0, 1, 1], [0, 1, 1, 1]]
    tokens = [[token * seen for token, seen in zip(PROMPT[:4], row, strict=True)] for row in before]
    cache = prefilled(model, tokens, before)
    facts = [RequestFacts(id="full"), RequestFacts(id="padded"),
             RequestFacts(id="told", cached_tokens=1)]  # fmt: skip
    mask = torch.tensor([[*row, 1, 1, 1] for row in before])
    with attach(model, recording.recorder) as probe:
        with probe.batch(facts), torch.no_grad():
            model(torch.tensor([PROMPT[4:]] * 3), attention_mask=mask, cache=cache)
        assert probe.counters.errors == probe.counters.refused_passes == 0
    assert told(recording) == {
        "full": Told(4, 7, {Phase.PREFILL: [4, 5, 6]}),
        "padded": Told(2, 5, {Phase.PREFILL: [2, 3, 4]}),
        "told": Told(1, 6, {Phase.PREFILL: [3, 4, 5]}),
    }
