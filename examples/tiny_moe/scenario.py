"""What a recording is made of: rows with event times, and what the manifest says about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from examples.tiny_moe.computing import Planned, prefill
from examples.tiny_moe.texts import Slicer, generator, shuffled_scenes
from examples.tiny_moe.timetable import Place, prefill_chunks, prefill_time_us
from examples.tiny_moe.writing import TimedRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from examples.tiny_moe.capture import Routed
    from examples.tiny_moe.pools import Pools


@dataclass(frozen=True, slots=True)
class Workshop:
    """What recordings are made with."""

    model: Any
    pools: Pools
    folder: Path


@dataclass(slots=True)
class Made:
    """A recording before it is written.

    Attributes:
        phases: Names, in the order in which a request goes through them.
        shows: The incident, or `healthy`.
        right_answer: What a detector should say: `healthy`, the incident's name, or `not present`.
        twin: Healthy recording of the same schedule; empty for a healthy one.
        prefixes: Digests of the token sequences (shared prefixes, or prompts) that the incident
            consists of, one per occasion.
        facts: Further facts, for the manifest.
    """

    description: str
    phases: tuple[str, ...]
    timed: list[TimedRows]
    blocks: int
    shows: str = "healthy"
    right_answer: str = "healthy"
    twin: str = ""
    schedule: str = "unaligned"
    prefixes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


Scenario = tuple[str, "Callable[[Workshop], Made]"]


@dataclass(frozen=True, slots=True)
class PlacedRequest:
    """A prompt, and where it is computed."""

    place: Place
    request: Planned


def ordinary(
    name: str, places: Iterable[Place], slicer: Slicer, scenes: Sequence[str] | None = None
) -> list[PlacedRequest]:
    """Requests with texts of their own for these places.

    Args:
        name: Of the recording.
        places: One request each.
        slicer: Where texts come from.
        scenes: One per place; by default a third each, shuffled.
    """
    places = list(places)
    if scenes is None:
        scenes = shuffled_scenes(len(places), generator(f"scenes of {name}"))
    return [
        PlacedRequest(
            place, Planned(request_id(name, place), scene, slicer.take(scene, place.tokens).copy())
        )
        for place, scene in zip(places, scenes, strict=True)
    ]


def request_id(name: str, place: Place) -> str:
    """Unique among all recordings, so that several can go into one store."""
    return f"{name}.b{place.block:03d}-s{place.slot:02d}-t{place.tick:02d}"


def prefill_rows(placed: Iterable[PlacedRequest], routed: dict[str, Routed]) -> Iterator[TimedRows]:
    """Computed prompts at the event times of their chunks."""
    for item in placed:
        for chunk in prefill_chunks(item.place):
            yield TimedRows(
                routed[item.request.id],
                np.full(chunk.stop - chunk.start, prefill_time_us(chunk), np.int64),
                slice(chunk.start, chunk.stop),
                chunk.stop == item.place.tokens,
            )


def computed(
    workshop: Workshop, placed: list[PlacedRequest], *, scores: bool = False
) -> list[TimedRows]:
    """Compute prompts and place their rows."""
    routed = prefill(workshop.model, (item.request for item in placed), scores=scores)
    return list(prefill_rows(placed, routed))
