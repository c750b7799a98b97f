"""Generation: sampled healthy traffic, and long greedy answers beside sampled ones."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from examples.tiny_moe.computing import GENERATED, TOP_P, Planned, generate
from examples.tiny_moe.scenario import Made, Scenario, Workshop
from examples.tiny_moe.texts import Slicer, digest_of, generator, shuffled_scenes
from examples.tiny_moe.timetable import SLOTS, decode_time_us
from examples.tiny_moe.writing import TimedRows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from examples.tiny_moe.capture import Routed

HEALTHY_BLOCKS: Final = 20
HELD_OUT_BLOCKS: Final = 10
LONG_BLOCKS: Final = 4
PROMPT_TOKENS: Final = (64, 96, 128)

_SEEDS: Final = {"healthy_decode": 11, "healthy_decode_held_out": 12, "long_sampled": 13}


def _prompts(
    workshop: Workshop, name: str, prompts_of: str, part: str, blocks: int
) -> list[Planned]:
    slicer = Slicer(workshop.pools, part, prompts_of)
    draw = generator(f"prompts of {prompts_of}")
    scenes = shuffled_scenes(blocks * SLOTS, draw)
    return [
        Planned(
            f"{name}.b{number // SLOTS:03d}-s{number % SLOTS:02d}",
            scene,
            slicer.take(scene, draw.choice(PROMPT_TOKENS)).copy(),
        )
        for number, scene in enumerate(scenes)
    ]


def decode_rows(planned: list[Planned], routed: dict[str, Routed]) -> Iterator[TimedRows]:
    """The prompt with the first decode step, then 32 tokens per request and tick."""
    for number, request in enumerate(planned):
        block = number // SLOTS
        prompt = len(request.tokens)
        steps = np.array([decode_time_us(block, step) for step in range(GENERATED)], np.int64)
        times = np.concatenate([np.full(prompt, steps[0]), steps])
        borders = [0, *(prompt + step for step in range(32, GENERATED + 1, 32))]
        for start, stop in pairwise(borders):
            rows = slice(start, stop)
            yield TimedRows(routed[request.id], times[rows], rows, stop == len(times))


def _decoded(
    name: str, prompts_of: str, part: str, blocks: int, *, sampled: bool, **told: Any
) -> Scenario:
    def make(workshop: Workshop) -> Made:
        planned = _prompts(workshop, name, prompts_of, part, blocks)
        routed = generate(workshop.model, planned, sampled=sampled, seed=_SEEDS.get(name, 0))
        how = f"sampled at temperature 1, top-p {TOP_P}" if sampled else "greedy"
        return Made(
            description=f"Prompts of 64, 96 or 128 tokens and {GENERATED} generated ones, {how}; "
            f"documents of the part {part}. With entropy and margin.",
            phases=("prefill", "decode"),
            timed=list(decode_rows(planned, routed)),
            blocks=blocks,
            schedule="decode",
            prefixes=[digest_of(request.tokens) for request in planned],
            facts={"documents": part, "sampled": sampled},
            **told,
        )

    return name, make


SCENARIOS: Final[tuple[Scenario, ...]] = (
    _decoded("healthy_decode", "healthy_decode", "recorded", HEALTHY_BLOCKS, sampled=True),
    _decoded(
        "healthy_decode_held_out", "healthy_decode_held_out", "held_out", HELD_OUT_BLOCKS,
        sampled=True,
    ),
    _decoded(
        "long_greedy", "long", "recorded", LONG_BLOCKS, sampled=False, shows="long_greedy",
        right_answer="late_convergence", twin="long_sampled",
    ),
    _decoded("long_sampled", "long", "recorded", LONG_BLOCKS, sampled=True),
)  # fmt: skip
