"""Healthy prefill traffic, and traffic of one scene only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from examples.tiny_moe.corpus import SCENES
from examples.tiny_moe.scenario import Made, Scenario, Workshop, computed, ordinary
from examples.tiny_moe.texts import Slicer
from examples.tiny_moe.timetable import aligned, short_unaligned, unaligned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from examples.tiny_moe.timetable import Place

HEALTHY_BLOCKS: Final = 50
HELD_OUT_BLOCKS: Final = 25
ALIGNED_BLOCKS: Final = 10
DOMAIN_BLOCKS: Final = 20


def _healthy(
    name: str, part: str, blocks: int, schedule: Callable[[int], Iterator[Place]]
) -> Scenario:
    def make(workshop: Workshop) -> Made:
        places = [place for block in range(blocks) for place in schedule(block)]
        placed = ordinary(name, places, Slicer(workshop.pools, part, name))
        return Made(
            description=f"Prompts of three scenes, a third each, {schedule.__name__} schedule, "
            f"documents of the part {part}.",
            phases=("prefill",),
            timed=computed(workshop, placed),
            blocks=blocks,
            schedule=schedule.__name__,
            facts={"documents": part},
        )

    return name, make


def _single_domain(workshop: Workshop) -> Made:
    name = "single_domain"
    blocks = range(DOMAIN_BLOCKS)
    places = [place for block in blocks for place in short_unaligned(block)]
    scenes = [SCENES[place.block % len(SCENES)] for place in places]
    placed = ordinary(name, places, Slicer(workshop.pools, "recorded", name), scenes)
    return Made(
        description="Every block has prompts of one scene only: traffic changed, not the router.",
        phases=("prefill",),
        timed=computed(workshop, placed),
        blocks=DOMAIN_BLOCKS,
        shows="single_domain",
        right_answer="mix_shift",
        twin="healthy_prefill",
        schedule=short_unaligned.__name__,
        facts={"scene_of_block": [SCENES[block % len(SCENES)] for block in blocks]},
    )


SCENARIOS: Final[tuple[Scenario, ...]] = (
    _healthy("healthy_prefill", "recorded", HEALTHY_BLOCKS, unaligned),
    _healthy("healthy_prefill_held_out", "held_out", HELD_OUT_BLOCKS, unaligned),
    _healthy("healthy_aligned", "recorded", ALIGNED_BLOCKS, aligned),
    ("single_domain", _single_domain),
)
