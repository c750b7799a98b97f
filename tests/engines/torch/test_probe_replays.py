"""Graphs that a program captures itself, replayed on the CPU operator by operator."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
pytest.importorskip("transformers", reason="`make engines` has transformers")

from support.torch_models import Recording, assert_routed_as, expected_routing, make_model
from torch.utils._python_dispatch import TorchDispatchMode

from moescope.core.errors import InputError
from moescope.producers import attach
from moescope.producers.torch_probe import RequestFacts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROMPTS = [[5, 9, 11, 2, 40, 17, 33], [7, 7, 21, 3, 3, 18, 44]]
LENGTH = len(PROMPTS[0])
WRONG = [[1] * LENGTH, [2] * LENGTH]
FACTS = [RequestFacts(id="first"), RequestFacts(id="second")]


class Graph(TorchDispatchMode):  # type: ignore[misc] # torch is untyped here
    """Operators as they were called; a replay calls them again, into the same tensors.

    As a CUDA graph does, it knows nothing of Python: no hook runs in a replay.
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call, and remember the call."""
        del types
        result = func(*args, **(kwargs or {}))
        self._calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        """Compute again from what the input tensors hold now."""
        with torch.no_grad():
            for func, args, kwargs, result in self._calls:
                again = func(*args, **kwargs)
                for old, new in zip(leaves(result), leaves(again), strict=True):
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)


def leaves(result: Any) -> list[Any]:
    """Tensors of a call's result."""
    parts = result if isinstance(result, list | tuple) else [result]
    return [part for part in parts if isinstance(part, torch.Tensor)]


@contextmanager
def capturing() -> Iterator[Graph]:
    """What torch says while a stream is captured; the only part that needs a device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_initialized", lambda: True)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        with Graph() as graph:
            yield graph


class Engine:
    """A program that captures a graph of one pass over two requests."""

    def __init__(self, model: Any, ids: list[list[int]] = WRONG) -> None:
        self.ids = torch.tensor(ids)
        self._model = model
        with torch.no_grad():
            model(self.ids, use_cache=False)  # nobody captures a model that was never warm
            with capturing() as self._graph:
                self.logits = model(self.ids, use_cache=False).logits

    def compute(self, prompts: list[list[int]]) -> Self:
        """Fill the inputs in and replay."""
        self.ids.copy_(torch.tensor(prompts))
        self._graph.replay()
        return self


@pytest.fixture(params=["olmoe", "mixtral"])
def model(request: pytest.FixtureRequest) -> Any:
    """Both families."""
    return make_model(request.param)


@pytest.fixture
def recording(model: Any, tmp_path: Path) -> Recording:
    """Its recorder."""
    return Recording(model, tmp_path)


def test_replays_are_recorded_as_what_they_computed(
    model: Any, recording: Recording, verified: Any, not_verified: Any
) -> None:
    """Each replay overwrites the buffers: ids, entropy and margin are those of its own inputs."""
    with attach(model, recording.recorder, static_rows=3 * LENGTH) as probe:
        engine = Engine(model)
        with probe.batch(FACTS):
            engine.compute(PROMPTS)
            probe.after_replay(engine.ids)
        with probe.request("third"):
            engine.compute([PROMPTS[1], PROMPTS[0]])
            probe.after_replay(engine.ids[:1])  # the second row only fills the graph up
        counters = probe.counters
    assert (counters.passed_rows, counters.errors, counters.refused_passes) == (3 * LENGTH, 0, 0)
    with torch.no_grad():
        eager = model(torch.tensor([PROMPTS[1], PROMPTS[0]]), use_cache=False).logits
    torch.testing.assert_close(engine.logits, eager)
    rows = recording.rows()
    wanted = {"first": PROMPTS[0], "second": PROMPTS[1], "third": PROMPTS[1]}
    for name, prompt in wanted.items():
        mine = [row for row in rows if row.request == name]
        assert_routed_as(mine, expected_routing(model, prompt), range(LENGTH))
    verified(subject="torch probe", what="captured graphs, their operators replayed on a CPU")
    not_verified(subject="torch probe", what="CUDA graphs", why="there was no GPU to test on")


def test_replayed_decode_steps_do_not_wait_for_each_other(model: Any, recording: Recording) -> None:
    """The next replay writes into the same buffers: each step is what it computed itself."""
    said = [[3, 4], [5, 6], [7, 8], [9, 10]]
    with attach(model, recording.recorder, static_rows=2 * LENGTH) as probe:
        prompt, step = Engine(model), Engine(model, [[1], [2]])
        with probe.batch(FACTS):
            prompt.compute(PROMPTS)
            probe.after_replay(prompt.ids, torch.ones(2, LENGTH, dtype=torch.long))
            for columns, tokens in enumerate(said, LENGTH + 1):
                step.compute([[token] for token in tokens])
                probe.after_replay(step.ids, torch.ones(2, columns, dtype=torch.long))
        assert probe.counters.refused_passes == probe.counters.errors == 0
    rows = recording.rows()
    for row, name in enumerate(("first", "second")):
        mine = [each for each in rows if each.request == name][LENGTH:]
        # Without a cache each step knows nothing but its own token.
        wanted = [expected_routing(model, [tokens[row]])[0].order for tokens in said]
        assert [each.position for each in mine] == list(range(LENGTH, LENGTH + len(said)))
        assert [each.experts for each in mine] == [[set(layer) for layer in one] for one in wanted]


def test_what_an_earlier_replay_left_is_not_recorded_again(
    model: Any, recording: Recording
) -> None:
    """Told of a replay that computed nothing for the probe, it counts rows as invalid."""
    with attach(model, recording.recorder, static_rows=2 * LENGTH) as probe:
        engine = Engine(model)
        with probe.batch(FACTS):
            engine.compute(PROMPTS)
            probe.after_replay(engine.ids)
            probe.after_replay(engine.ids)
        assert (probe.counters.passed_rows, probe.counters.invalid_rows) == (2 * LENGTH, 2 * LENGTH)
        engine.compute(WRONG)
        probe.after_replay(engine.ids)  # nobody's
        with probe.batch([RequestFacts(id="a"), RequestFacts(id="b")]):
            probe.after_replay(engine.ids)
        assert probe.counters.passed_rows == 2 * LENGTH
    assert recording.recorder.counters().unseen_rows == 4 * LENGTH


@pytest.mark.parametrize(("static_rows", "reason"), [(None, "without static_rows"), (3, "of 3")])
def test_a_graph_without_room_is_refused(
    model: Any,
    recording: Recording,
    static_rows: int | None,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing waits for a device that is being captured, and the reason is told."""
    with attach(model, recording.recorder, static_rows=static_rows) as probe:
        engine = Engine(model)
        with probe.batch(FACTS):
            engine.compute(PROMPTS)
            probe.after_replay(engine.ids)
        assert probe.counters.passed_rows == probe.counters.errors == 0
        assert probe.counters.refused_passes == 2  # the capture, and the replay
    assert any(reason in record.message for record in caplog.records)
    assert recording.rows() == []


def test_a_number_of_rows_that_is_none_is_refused(model: Any, recording: Recording) -> None:
    """It shows at the start."""
    with pytest.raises(InputError, match="static_rows is 0"):
        attach(model, recording.recorder, static_rows=0)
