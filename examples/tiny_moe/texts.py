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

LONGEST: Final = 512
"""Most tokens of one slice."""

_SHIFT: Final = 37
"""Tokens by which the slices of a second round lie apart from those of the first."""


class Slicer:
    """Takes slices from all over each scene's stream, in an order that a name gives.

    Slices that follow each other in a stream come from one document, and requests about one
    document are no independent sample of the traffic. So a stream is cut into cells of 512
    tokens, the cells are shuffled, and each slice begins at the next one.

    Args:
        pools: All token streams.
        part: `recorded` or `held_out`.
        name: Of the recording.
    """

    def __init__(self, pools: Pools, part: str, name: str) -> None:
        self._streams = {scene: pools[scene, part] for scene in SCENES}
        self._cells = {
            scene: list(range(0, len(stream) - 2 * LONGEST, LONGEST))
            for scene, stream in self._streams.items()
        }
        draw = generator(f"cells of {name}")
        for scene in SCENES:
            draw.shuffle(self._cells[scene])
        self._taken = dict.fromkeys(SCENES, 0)

    def take(self, scene: str, tokens: int) -> NDArray[np.int64]:
        """The next slice of a scene, at most 512 tokens."""
        if tokens > LONGEST:
            raise ValueError(f"a slice has at most {LONGEST} tokens, not {tokens}")
        cells = self._cells[scene]
        round_number, place = divmod(self._taken[scene], len(cells))
        self._taken[scene] += 1
        start = cells[place] + round_number * _SHIFT % LONGEST
        return self._streams[scene][start : start + tokens]


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
