"""What a trainer evaluates, and which of several ranks it is, in the ids of what is recorded."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
pytest.importorskip("transformers", reason="`make engines` has transformers")
pytest.importorskip("accelerate", reason="`make engines` has accelerate")

import numpy as np
from engines.torch.training_oracle import (
    EVALUATED,
    LENGTH,
    make_model,
    make_recorder,
    make_trainer,
)
from support.rings import logged

from moescope.core.vocabulary import Phase, RowFlag
from moescope.producers import Recorder, attach
from moescope.producers.agent import Agent
from moescope.producers.training import RoutingCallback, TrainingLoop

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.engines


def rows_of_requests(recorder: Recorder, folder: Path, phase: Phase) -> Counter[str]:
    """How many rows of a phase each request has, by its id."""
    recorder.close()
    with Agent(folder / "ring", folder / "log") as agent:
        agent.drain()
    found: Counter[str] = Counter()
    for batch, *_ in logged(folder / "log", "node"):
        tokens = batch.tokens
        if tokens is None:
            continue
        counts = ((tokens.flags & RowFlag.CONTEXT) == 0) & (tokens.phase == phase)
        found.update(batch.requests.ids[each] for each in tokens.request[np.flatnonzero(counts)])
    return found


def test_batches_of_one_evaluation_are_other_requests(tmp_path: Path) -> None:
    """Nothing is trained between them: only their number tells one sequence from another."""
    model = make_model()
    recorder = make_recorder(tmp_path)
    with attach(model, recorder) as probe, torch.no_grad():
        loop = TrainingLoop(probe, run="run")
        for first in range(3):
            with loop.evaluation(5, rows=2):
                model(torch.full((2, LENGTH), first + 1))
    assert rows_of_requests(recorder, tmp_path, Phase.EVAL) == {
        f"run.rank-0.step-5.eval-{number}.row-{row}": LENGTH
        for number in range(3)
        for row in range(2)
    }


def test_a_callback_of_another_rank_names_other_sequences(tmp_path: Path) -> None:
    """Processes that compute different sequences at one step would else share requests."""
    recorder = make_recorder(tmp_path)
    with RoutingCallback(recorder, run="run", rank=3, source_column="source") as callback:
        trainer = make_trainer(tmp_path, callback, model=make_model(), max_steps=1)
        trainer.train()
        trainer.evaluate()
    evaluated = rows_of_requests(recorder, tmp_path, Phase.EVAL)
    trained = rows_of_requests(recorder, tmp_path, Phase.TRAIN)
    assert evaluated == {
        f"run.rank-3.step-1.eval-{number}.row-{row}": LENGTH
        for number, rows in enumerate((4, 4, EVALUATED - 8))
        for row in range(rows)
    }
    assert trained == {
        f"run.rank-3.step-0.micro-{number}.row-{row}": LENGTH
        for number in range(2)
        for row in range(3)
    }
