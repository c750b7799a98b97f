"""Passes that go by unrecorded amid a request, and what may be said of those behind them."""

from __future__ import annotations

import contextvars
import copy
import threading
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
transformers = pytest.importorskip("transformers", reason="`make engines` has transformers")

from support.torch_models import Recording, make_model

from moescope.producers import attach
from moescope.producers.torch_probe import RequestFacts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.engines
FACTS = [RequestFacts(id="a"), RequestFacts(id="b")]
END, PADDING = 49, 0
DOUBTFUL = "rows that may be padding behind an end that passed unseen"
MAY_HAVE_ENDED = "an end token may have passed unseen"


@pytest.fixture
def model() -> Any:
    """A tiny OLMoE, whose generations end with one token, and are padded with another."""
    model = make_model("olmoe")
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = END, PADDING
    return model


@pytest.fixture
def recording(model: Any, tmp_path: Path) -> Recording:
    """Its recorder."""
    return Recording(model, tmp_path)


class Loop:
    """Feeds one model, step by step, what a test says; some steps go by unrecorded."""

    def __init__(self, model: Any, recording: Recording) -> None:
        self._model = model
        self._recording = recording
        self._cache = transformers.DynamicCache(config=model.config)

    def feed(self, *columns: tuple[int, ...]) -> None:
        """One pass for each column of a batch."""
        for tokens in columns:
            self.prompt([[token] for token in tokens])

    def prompt(self, rows: list[list[int]]) -> None:
        """One pass."""
        with torch.no_grad():
            self._model(torch.tensor(rows), cache=self._cache)

    def feed_unseen(self, cause: str, *columns: tuple[int, ...]) -> None:
        """Passes that are not recorded: switched off, refused, or beside the block."""
        if cause == "switched off":
            self._recording.switch(on=False)
            self.feed(*columns)
            self._recording.switch(on=True)
        elif cause == "beside the block":  # a thread begins without the block of its starter
            thread = threading.Thread(target=self.feed, args=columns)
            thread.start()
            thread.join()
        else:
            layer = self._model.model.layers[0]

            def route_twice(_module: object, given: tuple[Any, ...]) -> None:
                layer.mlp.gate(given[0].flatten(0, 1))

            hook = layer.register_forward_pre_hook(route_twice)
            self.feed(*columns)
            hook.remove()


@pytest.fixture
def loop(model: Any, recording: Recording) -> Loop:
    """Over the model."""
    return Loop(model, recording)


@pytest.fixture(params=["switched off", "refused", "beside the block"])
def cause(request: pytest.FixtureRequest) -> str:
    """Why steps go by unrecorded."""
    found: str = request.param
    return found


def test_padding_behind_an_end_that_nobody_saw_is_no_token(
    model: Any, recording: Recording, loop: Loop, cause: str
) -> None:
    """A request may end while nothing is recorded: it has no tokens when recording goes on."""
    with attach(model, recording.recorder) as probe, probe.batch(FACTS):
        loop.prompt([[5, 9, 41], [7, 3, 2]])
        loop.feed((11, 12), (13, 14))
        probe.flush()
        loop.feed_unseen(cause, (15, END), (16, PADDING))
        loop.feed((17, PADDING), (18, PADDING), (19, PADDING))
    assert probe.counters.doubtful_rows == 1  # of the request that does go on: its next token
    assert recording.positions() == {"a": [0, 1, 2, 3, 4, 8, 9], "b": [0, 1, 2, 3, 4]}
    assert recording.unseen()[DOUBTFUL] == 1
    assert sum(recording.unseen().values()) == 5


def test_padding_of_a_generation_of_its_own_is_told_apart_by_its_sameness(
    model: Any, recording: Recording, loop: Loop, cause: str
) -> None:
    """`generate` may be given another padding: who is fed one token only may have ended."""
    with attach(model, recording.recorder) as probe, probe.batch(FACTS):
        loop.prompt([[5, 9, 41], [7, 3, 2]])
        loop.feed((11, 12))
        probe.flush()
        loop.feed_unseen(cause, (13, END), (14, 33))
        loop.feed((15, 33), (15, 33), (16, 33), (17, 33))
    assert recording.positions() == {"a": [0, 1, 2, 3, 8, 9], "b": [0, 1, 2, 3]}
    assert recording.unseen()[DOUBTFUL] == 6


def test_a_second_gap_makes_no_token_of_doubtful_ones(
    model: Any, recording: Recording, loop: Loop
) -> None:
    """What was in doubt before it stays in doubt."""
    with attach(model, recording.recorder, held_steps=1) as probe, probe.batch(FACTS):
        loop.prompt([[5, 9, 41], [7, 3, 2]])
        loop.feed_unseen("refused", (13, END), (14, 33))
        loop.feed((15, 33))
        loop.feed_unseen("refused", (16, 33))
        loop.feed((17, 33), (18, 33))
    assert recording.positions() == {"a": [0, 1, 2, 8], "b": [0, 1, 2]}


def test_named_ends_are_not_guessed_behind_a_gap(
    model: Any, recording: Recording, loop: Loop, cause: str
) -> None:
    """Behind an end token that the batch names a row is fed anything: nothing tells, all count."""
    with attach(model, recording.recorder) as probe, probe.batch(FACTS, end_tokens=[END]):
        loop.prompt([[5, 9, 41], [7, 3, 2]])
        loop.feed((11, 12), (13, 14))
        probe.flush()
        loop.feed_unseen(cause, (15, END), (16, 21))
        loop.feed((17, 22), (18, 23), (19, 24))
    assert recording.positions() == {"a": [0, 1, 2, 3, 4], "b": [0, 1, 2, 3, 4]}
    assert recording.unseen()[MAY_HAVE_ENDED] == 6
    assert sum(recording.unseen().values()) == 10


def test_an_end_that_passed_before_anything_was_recorded_is_not_guessed(
    model: Any, recording: Recording, loop: Loop
) -> None:
    """A batch whose prompts and first steps are missed has no pass to go on from."""
    facts = [RequestFacts(id=each.id, prompt_tokens=3) for each in FACTS]
    with attach(model, recording.recorder) as probe, probe.batch(facts, end_tokens=[END]):
        loop.feed_unseen("switched off", (5, 7), (9, 3), (41, 2), (11, END))
        loop.feed((13, 21), (14, 22))
    assert recording.positions() == {}
    assert recording.unseen()[MAY_HAVE_ENDED] == 4


def test_a_missed_prompt_hides_no_end_and_was_no_cache_hit(
    model: Any, recording: Recording, loop: Loop
) -> None:
    """All generated tokens are there, and those of the prompt are lost: they were computed."""
    facts = [RequestFacts(id=each.id, prompt_tokens=3) for each in FACTS]
    with attach(model, recording.recorder) as probe, probe.batch(facts):
        loop.feed_unseen("switched off", (5, 7), (9, 3), (41, 2))
        loop.feed((11, 12), (13, END), (14, PADDING))
    assert recording.positions() == {"a": [3, 4, 5], "b": [3]}
    assert probe.counters.doubtful_rows == 0
    cached = [batch.requests.cached_tokens.tolist() for batch in recording.batches()]
    assert {number for numbers in cached for number in numbers} == {0}
    assert sum(recording.unseen().values()) == 6


def test_a_block_that_begins_amid_a_generation_is_no_gap(
    model: Any, recording: Recording, loop: Loop
) -> None:
    """A server may open a block for each step: nothing was missed, and nothing is in doubt."""
    with attach(model, recording.recorder) as probe:
        with probe.batch([RequestFacts(id="a"), RequestFacts(id="b")]):
            loop.prompt([[5, 9, 41], [7, 3, 2]])
        for tokens in ((11, 12), (13, 14)):
            with probe.batch([RequestFacts(id=each.id, prompt_tokens=3) for each in FACTS]):
                loop.feed(tokens)
    assert recording.positions() == {"a": [0, 1, 2, 3, 4], "b": [0, 1, 2, 3, 4]}
    assert recording.unseen() == {}


def left_and_right() -> Iterator[Any]:
    """Two prompts of 6 and 2 tokens, padded on either side, in pieces of so many columns."""
    for side in ("left", "right"):
        for pieces in ((1, 1, 1, 1, 1, 1), (5, 1), (1, 5), (3, 3), (2, 1, 1, 2)):
            yield pytest.param(side, pieces, id=f"{side}-{pieces}")


@pytest.mark.parametrize("held", [1, 16])
@pytest.mark.parametrize(("side", "pieces"), [*left_and_right()])
def test_a_padded_prompt_in_pieces_is_counted_over_its_tokens(
    model: Any, recording: Recording, side: str, pieces: tuple[int, ...], held: int
) -> None:
    """Columns of padding move no position, also where a piece is one column wide."""
    short = [0, 0, 0, 0, 11, 12] if side == "left" else [11, 12, 0, 0, 0, 0]
    ids = torch.tensor([[5, 6, 7, 8, 9, 10], short])
    mask = (ids != 0).long()
    facts = [RequestFacts(id="a", prompt_tokens=6), RequestFacts(id="b", prompt_tokens=2)]
    cache = transformers.DynamicCache(config=model.config)
    with (
        attach(model, recording.recorder, held_steps=held) as probe,
        torch.no_grad(),
        probe.batch(facts),
    ):
        begin = 0
        for length in pieces:
            end = begin + length
            model(ids[:, begin:end], attention_mask=mask[:, :end], cache=cache)
            begin = end
        for tokens in ([20, 21], [22, 23], [24, 25]):
            mask = torch.cat([mask, torch.ones(2, 1, dtype=torch.long)], dim=1)
            model(torch.tensor(tokens)[:, None], attention_mask=mask, cache=cache)
    assert recording.positions() == {"a": list(range(9)), "b": list(range(5))}
    phases = {(row.request, row.position): row.phase.name for row in recording.rows()}
    prompts = {"a": 6, "b": 2}
    assert phases == {
        (request, at): "PREFILL" if at < prompts[request] else "DECODE" for request, at in phases
    }


def test_a_chunked_prefill_of_generate_is_counted_over_its_tokens(
    model: Any, recording: Recording
) -> None:
    """Chunks of one column are what a careful user of memory asks for."""
    ids = torch.tensor([[5, 6, 7, 8, 9], [0, 0, 0, 11, 12]])
    facts = [RequestFacts(id="a", prompt_tokens=5), RequestFacts(id="b", prompt_tokens=2)]
    model.generation_config.eos_token_id = None
    with attach(model, recording.recorder) as probe, probe.batch(facts):
        model.generate(
            ids, attention_mask=(ids != 0).long(), do_sample=False, max_new_tokens=4,
            prefill_chunk_size=1,
        )  # fmt: skip
    assert recording.positions() == {"a": list(range(8)), "b": list(range(5))}


def test_ends_that_embeddings_hide_are_refused(model: Any, recording: Recording) -> None:
    """A batch that names end tokens, and feeds no token ids, would have padding recorded."""
    cache = transformers.DynamicCache(config=model.config)
    embed = model.get_input_embeddings()
    with (
        attach(model, recording.recorder) as probe,
        torch.no_grad(),
        probe.batch(FACTS, end_tokens=[END]),
    ):
        model(inputs_embeds=embed(torch.tensor([[5, 9, 41], [7, 3, 2]])), cache=cache)
        for tokens in ([11, END], [12, PADDING]):
            model(inputs_embeds=embed(torch.tensor(tokens)[:, None]), cache=cache)
    assert recording.positions() == {"a": [0, 1, 2], "b": [0, 1, 2]}
    assert recording.unseen() == {"end_tokens without token ids": 4}


@pytest.mark.parametrize("held", [1, 16])
def test_named_ends_count_in_a_batch_of_one(model: Any, recording: Recording, held: int) -> None:
    """A server of a fixed number of steps feeds padding to whom it has alone, too."""
    cache = transformers.DynamicCache(config=model.config)
    with (
        attach(model, recording.recorder, held_steps=held) as probe,
        torch.no_grad(),
        probe.batch([RequestFacts(id="a")], end_tokens=[2]),
    ):
        for tokens in ([5, 6, 7], [11], [2], [0], [0]):
            model(torch.tensor([tokens]), cache=cache)
    assert recording.positions() == {"a": [0, 1, 2, 3]}
    assert recording.unseen() == {}


def test_passes_of_one_request_at_one_time_are_refused(model: Any, recording: Recording) -> None:
    """Which one the next goes on from is not known: once one has overtaken another, none counts."""
    second_is_in, first_is_over = threading.Event(), threading.Event()

    def meet(*_given: object) -> None:
        if threading.current_thread().name == "first":
            assert second_is_in.wait(60.0)
        elif threading.current_thread().name == "second":
            second_is_in.set()
            assert first_is_over.wait(60.0)

    def compute() -> None:
        with torch.no_grad():
            model(torch.tensor([[5, 9, 41]]), use_cache=False)

    begun = threading.Event()
    model.model.layers[0].register_forward_pre_hook(lambda *_: begun.set())
    model.model.layers[0].register_forward_pre_hook(meet)
    with attach(model, recording.recorder) as probe, probe.request("one"):
        threads = [
            threading.Thread(target=contextvars.copy_context().run, args=(compute,), name=name)
            for name in ("first", "second")
        ]
        threads[0].start()
        assert begun.wait(60.0)
        threads[1].start()
        threads[0].join()
        first_is_over.set()
        threads[1].join()
        compute()
    assert recording.positions() == {}
    assert recording.unseen() == {"passes of one request at one time": 9}


def test_an_interrupt_amid_recording_is_counted_and_goes_on(
    model: Any, recording: Recording, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C belongs to the user; the rows that it cost are told."""
    given = recording.recorder.record

    def interrupted(*_given: object, **_columns: object) -> None:
        raise KeyboardInterrupt

    with attach(model, recording.recorder, held_steps=1) as probe, probe.batch(FACTS):
        loop.prompt([[5, 9, 41], [7, 3, 2]])
        monkeypatch.setattr(type(recording.recorder), "record", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loop.feed((11, 12))
        monkeypatch.setattr(
            type(recording.recorder),
            "record",
            lambda _self, *args, **kwargs: given(*args, **kwargs),
        )
        loop.feed((13, 14))
    assert recording.unseen()["recording was interrupted"] == 2


def test_a_router_put_in_anothers_place_is_named(
    model: Any, recording: Recording, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    """Its rows are counted as unseen, and the log says what to do."""
    with attach(model, recording.recorder) as probe, probe.batch(FACTS):
        layer = model.model.layers[0]
        layer.mlp.gate = copy.deepcopy(layer.mlp.gate)
        loop.prompt([[5, 9, 41], [7, 3, 2]])
    assert recording.unseen() == {"a router that did not run just once": 6}
    assert "attach anew" in caplog.text
