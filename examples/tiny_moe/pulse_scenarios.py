"""JSON whose structure repeats after an exact number of tokens, beside ordinary JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from tokenizers import Tokenizer

from examples.tiny_moe.computing import Planned
from examples.tiny_moe.model import LENGTH
from examples.tiny_moe.scenario import (
    Made,
    PlacedRequest,
    Scenario,
    Workshop,
    computed,
    ordinary,
    request_id,
)
from examples.tiny_moe.texts import Slicer, digest_of, generator
from examples.tiny_moe.timetable import SLOTS, aligned_512

if TYPE_CHECKING:
    import random

    from numpy.typing import NDArray

BLOCKS: Final = 2
PERIODS: Final = (16, 32, 64, 128)

_KEYS: Final = (
    "id", "name", "value", "status", "count", "price", "level", "time", "line", "key", "type",
    "min", "max", "ok", "user", "group",
)  # fmt: skip
_WORDS: Final = ("open", "paid", "error", "debug", "info", "true", "none", "name", "value", "list")
_SAMPLES: Final = 24


def _record(draw: random.Random, fields: list[tuple[str, bool]]) -> str:
    """One line with these keys, each with a number or a word."""
    values: dict[str, Any] = {
        key: draw.randint(100, 999) if is_number else draw.choice(_WORDS)
        for key, is_number in fields
    }
    return json.dumps(values)


def periodic_tokens(tokenizer: Any, period: int, draw: random.Random) -> NDArray[np.int64]:
    """`LENGTH` tokens of records with the same keys, each exactly `period` tokens long.

    Values differ from record to record. Records are tokenized one by one, and line ends (white
    space that JSON allows) fill each up.
    """
    (line_end,) = tokenizer.encode("\n").ids
    fields: list[tuple[str, bool]] = []
    fitting: list[list[int]] = []
    while True:
        number = len(fields)
        key = draw.choice(_KEYS) + (str(number) if number >= len(_KEYS) // 2 else "")
        fields.append((key, draw.random() < 0.5))  # noqa: PLR2004 - a coin
        sampled = [tokenizer.encode(_record(draw, fields)).ids for _ in range(_SAMPLES)]
        if max(map(len, sampled)) >= period:
            break
        fitting = sampled + [
            tokenizer.encode(_record(draw, fields)).ids
            for _ in range(max(0, LENGTH // period - _SAMPLES))
        ]
    records = [ids + [line_end] * (period - len(ids)) for ids in fitting]
    if any(len(record) != period for record in records) or not records:
        return periodic_tokens(tokenizer, period, draw)
    return np.concatenate(records[: LENGTH // period]).astype(np.int64)


def _pulse(workshop: Workshop) -> Made:
    draw = generator("json pulse")
    tokenizer = Tokenizer.from_file(str(workshop.folder / "tokenizer.json"))
    placed, periods = [], {}
    for place in (place for block in range(BLOCKS) for place in aligned_512(block)):
        period = PERIODS[(place.block * SLOTS + place.slot) % len(PERIODS)]
        request = Planned(
            request_id("json_pulse", place), "json", periodic_tokens(tokenizer, period, draw)
        )
        periods[request.id] = period
        placed.append(PlacedRequest(place, request))
    return Made(
        description="JSON of 512 tokens whose structure repeats every 16, 32, 64 or 128 tokens.",
        phases=("prefill",),
        timed=computed(workshop, placed),
        blocks=BLOCKS,
        shows="json_pulse",
        right_answer="periodic_pulse",
        twin="json_ordinary",
        schedule="aligned_512",
        prefixes=[digest_of(item.request.tokens) for item in placed],
        facts={"period_of_request": periods},
    )


def _ordinary_json(workshop: Workshop) -> Made:
    name = "json_ordinary"
    places = [place for block in range(BLOCKS) for place in aligned_512(block)]
    slicer = Slicer(workshop.pools, "recorded", name)
    placed = ordinary(name, places, slicer, ["json"] * len(places))
    return Made(
        description="JSON of 512 tokens without a strict period.",
        phases=("prefill",),
        timed=computed(workshop, placed),
        blocks=BLOCKS,
        schedule="aligned_512",
    )


SCENARIOS: Final[tuple[Scenario, ...]] = (
    ("json_pulse", _pulse),
    ("json_ordinary", _ordinary_json),
)
