from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
pytest.importorskip("transformers", reason="`make engines` has transformers")

from moescope.core.batchlog import BatchLogReader
from moescope.core.vocabulary import Phase, RowFlag
from moescope.core.wire import decode_batch
from moescope.producers.agent import Agent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moescope.core.batch import RoutingBatch

PAGES = Path(__file__).resolve().parents[3] / "docs/how-to"
STEPS, MICRO_BATCHES, SEQUENCES, LENGTH = 20, 2, 4, 64


def programs(page: str) -> list[str]:
    """The programs of a page, in its order."""
    return re.findall(r"```py\n(.*?)```", (PAGES / page).read_text(encoding="utf-8"), re.DOTALL)


def run(program: str) -> dict[str, Any]:
    """Run a program in the current folder, and return its names."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(program, "page", "exec"), names)  # noqa: S102 - a page of this repository
    return names


def recorded(folder: Path) -> Iterator[RoutingBatch]:
    """Batches with tokens that the one producer of a data directory has recorded."""
    with Agent(folder / "ring", folder / "log") as agent:
        agent.drain()
    (node,) = (path.name for path in (folder / "log").iterdir() if path.is_dir())
    with BatchLogReader(folder / "log", node) as reader:
        for record in reader.read(0).records:
            batch = decode_batch(record.payload)
            if batch.tokens is not None:
                yield batch


def steps_and_sources(folder: Path) -> Counter[tuple[Phase, int, str]]:
    """How many rows count, by phase, optimizer step and source."""
    found: Counter[tuple[Phase, int, str]] = Counter()
    for batch in recorded(folder):
        tokens = batch.tokens
        assert tokens is not None
        assert tokens.step is not None
        for row in np.flatnonzero((tokens.flags & RowFlag.CONTEXT) == 0).tolist():
            source = batch.requests.scenes[int(tokens.request[row])]
            found[Phase(int(tokens.phase[row])), int(tokens.step[row]), source] += 1
    return found


@pytest.mark.filterwarnings("ignore:'pin_memory' argument:UserWarning")
def test_the_program_for_the_trainer_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever pastes it gets each step's tokens, with the sources of the data set."""
    monkeypatch.chdir(tmp_path)
    trainer, _ = programs("watch-training.md")
    run(trainer)
    rows = steps_and_sources(tmp_path / "moescope-data")
    by_step, by_source = Counter[int](), Counter[str]()
    for (phase, step, source), count in rows.items():
        assert phase is Phase.TRAIN
        by_step[step] += count
        by_source[source] += count
    assert by_step == dict.fromkeys(range(STEPS), MICRO_BATCHES * SEQUENCES * LENGTH)
    assert by_source == {"code": 80 * LENGTH, "prose": 80 * LENGTH}


def test_the_program_for_a_loop_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever pastes it gets training by step and source, and evaluation apart."""
    monkeypatch.chdir(tmp_path)
    _, loop = programs("watch-training.md")
    run(loop)
    rows = steps_and_sources(tmp_path / "moescope-data")
    assert rows == {
        (Phase.TRAIN, step, source): MICRO_BATCHES * SEQUENCES // 2 * LENGTH
        for step in range(STEPS)
        for source in ("code", "prose")
    } | {(Phase.EVAL, STEPS, "unknown"): SEQUENCES * LENGTH}


def test_the_declared_router_is_recorded_as_it_routes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever pastes it records the experts that the page's own router returns, the best first."""
    monkeypatch.chdir(tmp_path)
    (program,) = programs("declare-a-router.md")
    names = run(program)
    (batch,) = recorded(tmp_path / "moescope-data")
    routes = batch.routes
    assert routes is not None
    assert routes.top1 is not None
    assert None not in (routes.weights, routes.entropy, routes.margin)
    with torch.no_grad():
        hidden = names["model"].embedding(names["ids"])
        for place, layer in enumerate(names["model"].layers):
            _, ids = layer.router(hidden.flatten(0, 1))
            found = routes.expert_ids[:, place]
            assert np.sort(found).tolist() == np.sort(ids.numpy()).tolist()
            best = np.take_along_axis(found, routes.top1[place, :, None], axis=1)
            assert best[:, 0].tolist() == ids[:, 0].tolist()
            hidden = layer(hidden)
