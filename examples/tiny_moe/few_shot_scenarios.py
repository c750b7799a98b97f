"""The same questions with and without three examples before them."""

from __future__ import annotations

from typing import Final

import numpy as np

from examples.tiny_moe.computing import Planned
from examples.tiny_moe.corpus import SCENES
from examples.tiny_moe.scenario import Made, PlacedRequest, Scenario, Workshop, computed
from examples.tiny_moe.texts import Slicer, digest_of
from examples.tiny_moe.timetable import CHUNK, SLOTS, Place

QUESTIONS: Final = 64
PER_EXAMPLE_SET: Final = 2
EXAMPLES: Final = 3
QUESTION_TICKS: Final = 4


def _few_shot(name: str, label: str, *, with_examples: bool) -> Scenario:
    def make(workshop: Workshop) -> Made:
        slicer = Slicer(workshop.pools, "recorded", "few_shot")
        placed, sets = [], []
        examples = np.empty(0, np.int64)
        for number in range(QUESTIONS):
            scene = SCENES[number // PER_EXAMPLE_SET % len(SCENES)]
            if number % PER_EXAMPLE_SET == 0:
                examples = np.concatenate([slicer.take(scene, CHUNK) for _ in range(EXAMPLES)])
                sets.append(digest_of(examples))
            question = slicer.take(scene, QUESTION_TICKS * CHUNK)
            tokens = np.concatenate([examples, question]) if with_examples else question.copy()
            place = Place(number // SLOTS, number % SLOTS, 0, len(tokens) // CHUNK)
            request = Planned(f"question-{number:03d}", scene, tokens, task=f"{label}-{number:03d}")
            placed.append(PlacedRequest(place, request))
        described = "Questions of 256 tokens" + (
            ", each behind three examples of 64 tokens that two questions share."
            if with_examples
            else ": those of few_shot_with, without the examples."
        )
        return Made(
            description=described + " Same request ids in both recordings.",
            phases=("prefill",),
            timed=computed(workshop, placed),
            blocks=QUESTIONS // SLOTS,
            shows="few_shot_examples" if with_examples else "healthy",
            right_answer="few_shot_pull" if with_examples else "healthy",
            twin="few_shot_without" if with_examples else "",
            schedule="aligned",
            prefixes=sets,
            facts={"question_starts_at": EXAMPLES * CHUNK if with_examples else 0},
        )

    return name, make


SCENARIOS: Final[tuple[Scenario, ...]] = (
    _few_shot("few_shot_with", "with", with_examples=True),
    _few_shot("few_shot_without", "without", with_examples=False),
)
