from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
pytest.importorskip("transformers", reason="`make engines` has transformers")

from engines.torch.training_oracle import LENGTH, Labels, make_model, make_recorder, recorded

from moescope.core.vocabulary import Phase
from moescope.producers import attach
from moescope.producers.training import TrainingLoop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from moescope.producers import Recorder


class Watched:
    """A loop over a tiny model, whose every sequence has a text of its own."""

    def __init__(self, folder: Path, recorder: Recorder) -> None:
        self.folder = folder
        self.recorder = recorder
        self.model = make_model().train()
        self.computed: Counter[Labels] = Counter()
        self._texts = 0

    def compute(self, block: AbstractContextManager[None] | None, step: int, *sources: str) -> None:
        """Train on a micro-batch of new sequences, in a block or in the one that is open."""
        if block is not None:
            with block:
                self.compute(None, step, *sources)
            return
        first = self._texts + 1
        self._texts += len(sources)
        texts = torch.arange(first, first + len(sources))
        self.model(texts[:, None].expand(-1, LENGTH))
        for text, source in zip(texts.tolist(), sources, strict=True):
            self.computed[Labels(text, step, Phase.TRAIN, source)] += LENGTH

    def is_recorded(self) -> bool:
        """Whether just what was computed is recorded."""
        return recorded(self.recorder, self.folder) == self.computed


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[Watched, TrainingLoop]]:
    """A model with a probe, and the loop that labels it."""
    run = Watched(tmp_path, make_recorder(tmp_path))
    with attach(run.model, run.recorder) as probe:
        yield run, TrainingLoop(probe, run="run")
        assert probe.counters.errors == 0


def test_micro_batches_are_counted_where_nobody_numbers_them(
    watched: tuple[Watched, TrainingLoop],
) -> None:
    """Micro-batches of one step are different sequences, also without a number."""
    run, loop = watched
    for step in (0, 0, 0, 1, 1):
        run.compute(loop.micro_batch(step, sources=["code", "json"]), step, "code", "json")
    assert run.is_recorded()


def test_steps_that_are_trained_anew_are_other_sequences(
    watched: tuple[Watched, TrainingLoop], caplog: pytest.LogCaptureFixture
) -> None:
    """Back at a checkpoint a run does steps again: none is taken for the old one."""
    run, loop = watched
    for step in (0, 1, 2, 1, 2, 0, 1):
        run.compute(loop.micro_batch(step, rows=1, micro_batch=0), step, "unknown")
    assert run.is_recorded()
    assert caplog.text.count("is trained behind step") == 1


def test_blocks_within_blocks_and_forgotten_ends_are_no_ones_else(
    watched: tuple[Watched, TrainingLoop],
) -> None:
    """A pass belongs to the block that was entered last, also where one is never left."""
    run, loop = watched
    forgotten = loop.micro_batch(0, sources=["code"])
    forgotten.__enter__()
    run.compute(None, 0, "code")
    outer = loop.micro_batch(1, sources=["prose"])
    with outer:
        run.compute(loop.micro_batch(2, sources=["json"]), 2, "json")
        run.compute(None, 1, "prose")
    run.compute(loop.micro_batch(3, sources=["code"]), 3, "code")
    assert run.is_recorded()
    forgotten.__exit__(None, None, None)


def test_sources_may_be_numbers_but_not_one_text(watched: tuple[Watched, TrainingLoop]) -> None:
    """Numbers of data sets are their names; the letters of one text are no sources."""
    run, loop = watched
    numbers: list[Any] = [[7, 8], torch.tensor([7, 8])]
    for step, sources in enumerate(numbers):
        run.compute(loop.micro_batch(step, sources=sources), step, "7", "8")
    with pytest.raises(ValueError, match="'js' is one text"), loop.micro_batch(2, sources="js"):
        pytest.fail("not reached")
    assert run.is_recorded()


@pytest.mark.parametrize("step", [-1, 2.5, "3", 1 << 70])
def test_a_step_that_is_none_costs_its_rows_alone(
    watched: tuple[Watched, TrainingLoop], step: Any
) -> None:
    """Whatever a loop takes for a step, training goes on, and what is not recorded is counted."""
    run, loop = watched
    with loop.micro_batch(step, rows=1):
        run.model(torch.full((1, LENGTH), 199))
    run.compute(loop.micro_batch(4, rows=1), 4, "unknown")
    assert run.recorder.counters().rejected_rows == LENGTH
    assert run.is_recorded()
