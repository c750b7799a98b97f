"""Requests that share a prefix: fixed system prompts, and collisions of concurrent requests."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from examples.tiny_moe.computing import Planned
from examples.tiny_moe.corpus import SCENES
from examples.tiny_moe.scenario import (
    Made,
    PlacedRequest,
    Scenario,
    Workshop,
    computed,
    ordinary,
    request_id,
)
from examples.tiny_moe.texts import Slicer, digest_of, generator, shuffled_scenes
from examples.tiny_moe.timetable import (
    CHUNK,
    SHORT_TICKS,
    SLOTS,
    Place,
    aligned,
    in_a_row,
    short_unaligned,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

BLOCKS: Final = 20
SYSTEM_TICKS: Final = 4
"""A system prompt has 4 × 64 tokens."""
SHARED_TICKS: Final = (2, 3, 4)
"""Ticks of the common prefix, block by block."""
COLLISION_TICK: Final = 2
"""Where 16 requests begin together with one prefix."""
COLLISION_END: Final = 8
CACHED_TICK: Final = 4
"""Where those begin that find the prefix in the cache, which one request has computed by then."""
CACHED_END: Final = 6

_SHARED: Final = tuple(SHARED_TICKS[block % len(SHARED_TICKS)] for block in range(BLOCKS))


class _Recording:
    """Places and texts of one recording: a prefix per block, each of the next scene."""

    def __init__(self, workshop: Workshop, name: str, prefix_ticks: Iterable[int]) -> None:
        self.name = name
        self.slicer = Slicer(workshop.pools, "recorded", name)
        self.prefixes: list[NDArray[np.int64]] = [
            self.slicer.take(SCENES[block % len(SCENES)], ticks * CHUNK).copy()
            for block, ticks in enumerate(prefix_ticks)
        ]

    def texts(
        self, places: Iterable[Place], wears_prefix: Callable[[Place], bool]
    ) -> list[PlacedRequest]:
        """Ordinary requests, with the block's prefix in place of their first tokens where worn."""
        return [
            self._put_on(item) if wears_prefix(item.place) else item
            for item in ordinary(self.name, places, self.slicer)
        ]

    def behind_cache(self, places: Iterable[Place]) -> list[PlacedRequest]:
        """Requests whose prefix is in the cache: their places compute only what follows."""
        places = list(places)
        scenes = shuffled_scenes(len(places), generator(f"cached scenes of {self.name}"))
        found = []
        for place, scene in zip(places, scenes, strict=True):
            prefix = self.prefixes[place.block]
            tokens = np.concatenate([prefix, self.slicer.take(scene, place.tokens)])
            found.append(
                PlacedRequest(
                    place, Planned(request_id(self.name, place), scene, tokens, len(prefix))
                )
            )
        return found

    def _put_on(self, item: PlacedRequest) -> PlacedRequest:
        prefix = self.prefixes[item.place.block]
        tokens = np.concatenate([prefix, item.request.tokens[len(prefix) :]])
        return replace(item, request=replace(item.request, tokens=tokens))

    def digests(self) -> list[str]:
        """Of the prefixes, by block."""
        return [digest_of(prefix) for prefix in self.prefixes]


def _fixed_system_prompt(
    name: str, schedule: Callable[[int], Iterator[Place]], ticks: tuple[int, int], twin: str
) -> Scenario:
    def make(workshop: Workshop) -> Made:
        recording = _Recording(workshop, name, [SYSTEM_TICKS] * BLOCKS)
        places = [place for block in range(BLOCKS) for place in schedule(block)]
        placed = recording.texts(places, lambda place: place.ticks > SYSTEM_TICKS)
        return Made(
            description="In each block all requests of more than 256 tokens begin with the block's "
            "system prompt of 256 tokens, then differ; prefix cache off.",
            phases=("prefill",),
            timed=computed(workshop, placed),
            blocks=BLOCKS,
            shows="fixed_system_prompt",
            right_answer="fixed_prefix",
            twin=twin,
            schedule=schedule.__name__,
            prefixes=recording.digests(),
            facts={"prefix_tokens": SYSTEM_TICKS * CHUNK, "incident_ticks": list(ticks)},
        )

    return name, make


def _fixed_system_prompt_cached(workshop: Workshop) -> Made:
    recording = _Recording(workshop, "fixed_system_prompt_cached", [SYSTEM_TICKS] * BLOCKS)
    computed_once, cached = [], []
    for block in range(BLOCKS):
        computed_once.append(Place(block, 0, 0, SHORT_TICKS))
        for slot in range(1, SLOTS):
            first = SYSTEM_TICKS + (slot + block) % 2
            before, behind = in_a_row(block, slot, (first, SHORT_TICKS - first))
            computed_once.append(before)
            cached.append(behind)
    placed = recording.texts(computed_once, lambda place: place.slot == 0)
    return Made(
        description="A system prompt of 256 tokens per block, prefix cache on: the first request "
        "computes it, the others of the block (one per slot) compute only what follows it.",
        phases=("prefill",),
        timed=computed(workshop, placed + recording.behind_cache(cached)),
        blocks=BLOCKS,
        shows="fixed_system_prompt_cached",
        right_answer="not present",
        twin="healthy_prefill",
        schedule="behind_cache",
        prefixes=recording.digests(),
        facts={"prefix_tokens": SYSTEM_TICKS * CHUNK},
    )


def _before_and_after(block: int, slot: int, begin: int, end: int, last: int) -> list[Place]:
    """Ordinary requests up to `begin`, staggered by slot, and from `end` to `last`."""
    early = (slot + block) % begin
    after = [Place(block, slot, end, last - end)] if last > end else []
    return [*in_a_row(block, slot, (early, begin - early)), *after]


def _user_ticks(block: int, slot: int) -> int:
    return 1 + (slot + block) % 2


def _collision(workshop: Workshop) -> Made:
    recording = _Recording(workshop, "common_prefix_concurrency", _SHARED)
    places, colliding = [], set()
    for block, ticks in enumerate(_SHARED):
        for slot in range(SLOTS):
            length = ticks + _user_ticks(block, slot)
            colliding.add(Place(block, slot, COLLISION_TICK, length))
            places += _before_and_after(
                block, slot, COLLISION_TICK, COLLISION_TICK + length, COLLISION_END
            )
    places += sorted(colliding, key=lambda place: (place.block, place.slot))
    placed = recording.texts(places, lambda place: place in colliding)
    return Made(
        description="In each block 16 requests begin together with one prefix of 128, 192 or 256 "
        "tokens, amid ordinary traffic; prefix cache off.",
        phases=("prefill",),
        timed=computed(workshop, placed),
        blocks=BLOCKS,
        shows="common_prefix_concurrency",
        right_answer="concurrency_collision",
        twin="healthy_prefill",
        schedule="collision",
        prefixes=recording.digests(),
        facts={
            "prefix_tokens": [ticks * CHUNK for ticks in _SHARED],
            "incident_ticks": [[COLLISION_TICK, COLLISION_TICK + ticks] for ticks in _SHARED],
        },
    )


def _collision_cached(workshop: Workshop) -> Made:
    recording = _Recording(workshop, "common_prefix_concurrency_cached", _SHARED)
    computed_once, cached = [], []
    firsts = set()
    for block, ticks in enumerate(_SHARED):
        first = Place(block, 0, CACHED_TICK - ticks, ticks + CACHED_END - CACHED_TICK)
        firsts.add(first)
        computed_once += [first, *in_a_row(block, 0, (first.tick,))]
        for slot in range(1, SLOTS):
            user = _user_ticks(block, slot)
            cached.append(Place(block, slot, CACHED_TICK, user))
            computed_once += _before_and_after(
                block, slot, CACHED_TICK, CACHED_TICK + user, CACHED_END
            )
    placed = recording.texts(computed_once, lambda place: place in firsts)
    return Made(
        description="The same with prefix cache on: one request computes the prefix just before, "
        "the others that share it compute only what follows.",
        phases=("prefill",),
        timed=computed(workshop, placed + recording.behind_cache(cached)),
        blocks=BLOCKS,
        shows="common_prefix_concurrency_cached",
        right_answer="not present",
        twin="healthy_prefill",
        schedule="collision",
        prefixes=recording.digests(),
        facts={"prefix_tokens": [ticks * CHUNK for ticks in _SHARED]},
    )


SCENARIOS: Final[tuple[Scenario, ...]] = (
    _fixed_system_prompt("fixed_system_prompt_aligned", aligned, (0, 4), "healthy_aligned"),
    _fixed_system_prompt(
        "fixed_system_prompt_unaligned", short_unaligned, (1, 6), "healthy_prefill"
    ),
    ("fixed_system_prompt_cached", _fixed_system_prompt_cached),
    ("common_prefix_concurrency", _collision),
    ("common_prefix_concurrency_cached", _collision_cached),
)
