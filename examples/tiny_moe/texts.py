"""Slices of the token streams: the texts of requests, none twice as long as there are enough."""

from __future__ import annotations

import random
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from examples.tiny_moe.corpus import SCENES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from examples.tiny_moe.pools import Pools

_SHIFT: Final = 37
"""Tokens by which the slices of a second round lie apart from those of the first."""


class Slicer:
    """Takes consecutive slices of each scene's stream, from a start that a name gives.

    Args:
        pools: All token streams.
        part: `recorded` or `held_out`.
        name: Of the recording.
    """

    def __init__(self, pools: Pools, part: str, name: str) -> None:
        self._streams = {scene: pools[scene, part] for scene in SCENES}
        draw = generator(f"start of {name}")
        self._starts = {scene: draw.randrange(len(self._streams[scene])) for scene in SCENES}
        self._taken = dict.fromkeys(SCENES, 0)

    def take(self, scene: str, tokens: int) -> NDArray[np.int64]:
        """The next slice of a scene."""
        stream = self._streams[scene]
        while True:
            round_number, place = divmod(self._taken[scene], len(stream))
            start = (self._starts[scene] + place + round_number * _SHIFT) % len(stream)
            if start + tokens <= len(stream):
                self._taken[scene] += tokens
                return stream[start : start + tokens]
            self._taken[scene] += len(stream) - start  # a slice never joins the stream's ends


def generator(purpose: str) -> random.Random:
    """Random numbers for one purpose, always the same."""
    return random.Random(f"tiny-moe {purpose}")  # noqa: S311 - reproducible, no secret


def shuffled_scenes(count: int, draw: random.Random) -> list[str]:
    """Scenes of a number of requests, a third each, in random order."""
    scenes = [SCENES[number % len(SCENES)] for number in range(count)]
    draw.shuffle(scenes)
    return scenes


def digest_of(tokens: NDArray[np.int64]) -> str:
    """Tells token sequences apart in the manifest, without storing them."""
    return blake2b(tokens.astype("<i8").tobytes(), digest_size=8).hexdigest()
