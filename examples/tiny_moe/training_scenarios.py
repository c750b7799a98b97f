"""Two short training runs that differ in the order of their data only."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from examples.tiny_moe.capture import Capture
from examples.tiny_moe.corpus import SCENES
from examples.tiny_moe.model import load_model
from examples.tiny_moe.scenario import Made, Scenario, Workshop
from examples.tiny_moe.texts import generator
from examples.tiny_moe.timetable import START_US, TICK_US, TICKS
from examples.tiny_moe.train import optimizer_of, train_step
from examples.tiny_moe.writing import TimedRows
from moescope.core.vocabulary import Phase
from moescope.producers import attach
from moescope.producers.torch_probe import RequestFacts

STEPS: Final = 72
SEQUENCES: Final = 4
LENGTH: Final = 256
RECORDED_SEQUENCES: Final = 2
RATE: Final = 4e-4


def _sequences(workshop: Workshop) -> list[tuple[str, np.ndarray]]:
    """The data of both runs, in the order of the sorted one."""
    draw = np.random.default_rng(5)
    per_scene = STEPS * SEQUENCES // len(SCENES)
    found = []
    for scene in SCENES:
        stream = workshop.pools[scene, "train"]
        starts = draw.integers(0, len(stream) - LENGTH, per_scene).tolist()
        found += [(scene, stream[start : start + LENGTH]) for start in starts]
    return found


def _training(name: str, *, is_sorted: bool) -> Scenario:
    def make(workshop: Workshop) -> Made:
        data = _sequences(workshop)
        if not is_sorted:
            generator("training order").shuffle(data)
        model = load_model(workshop.folder / "model").train()
        optimizer = optimizer_of(model)
        capture, losses = Capture(), []
        with attach(model, capture, scores=False) as probe:
            for step in range(STEPS):
                rows = data[step * SEQUENCES : (step + 1) * SEQUENCES]
                batch = torch.from_numpy(np.stack([tokens for _, tokens in rows]))
                facts = [
                    RequestFacts(id=f"{name}.step-{step:03d}-row-{row}", scene=scene)
                    for row, (scene, _) in enumerate(rows)
                ]
                with probe.batch(facts, phase=Phase.TRAIN, step=step):
                    losses.append(round(train_step(model, optimizer, batch, RATE), 3))
            if probe.counters.errors or probe.counters.incomplete_passes:
                raise RuntimeError(f"the probe reports {probe.counters}")
        timed = [
            TimedRows(
                capture.requests[f"{name}.step-{step:03d}-row-{row}"],
                np.full(LENGTH, START_US + step * TICK_US, np.int64),
                slice(0, LENGTH),
                is_last=True,
            )
            for step in range(STEPS)
            for row in range(RECORDED_SEQUENCES)
        ]
        order = "one scene after the other" if is_sorted else "shuffled"
        return Made(
            description=f"{STEPS} optimizer steps of {SEQUENCES} × {LENGTH} tokens, from the "
            f"trained model on, data {order}; {RECORDED_SEQUENCES} a step recorded.",
            phases=("train",),
            timed=timed,
            blocks=STEPS // TICKS,
            shows="training_sorted" if is_sorted else "healthy",
            right_answer="data_order_drift" if is_sorted else "healthy",
            twin="training_shuffled" if is_sorted else "",
            schedule="train",
            facts={
                "scene_of_step": [
                    [scene for scene, _ in data[step * SEQUENCES : (step + 1) * SEQUENCES]]
                    for step in range(STEPS)
                ]
                if not is_sorted
                else [data[step * SEQUENCES][0] for step in range(STEPS)],
                "loss": losses[:: STEPS // 18],
            },
        )

    return name, make


SCENARIOS: Final[tuple[Scenario, ...]] = (
    _training("training_shuffled", is_sorted=False),
    _training("training_sorted", is_sorted=True),
)
