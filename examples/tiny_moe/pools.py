"""The corpus as token ids: one stream per scene and part, documents one after the other."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from examples.tiny_moe.corpus import PARTS, SCENES

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray

    from examples.tiny_moe.corpus import Document

END_TOKEN: Final = 0
_ORDER_SEED: Final = 7

Pools = dict[tuple[str, str], "NDArray[np.int64]"]
"""(scene, part) → token ids."""


def encode_pools(tokenizer: Any, found: Iterable[Document]) -> Pools:
    """Tokenize documents, in a shuffled but fixed order, each followed by `END_TOKEN`."""
    shuffled = sorted(found, key=lambda document: document.name)
    random.Random(_ORDER_SEED).shuffle(shuffled)  # noqa: S311 - reproducible, no secret
    parts: dict[tuple[str, str], list[int]] = {(s, p): [] for s in SCENES for p in PARTS}
    for document in shuffled:
        parts[document.scene, document.part] += [*tokenizer.encode(document.text).ids, END_TOKEN]
    return {key: np.array(ids, np.int64) for key, ids in parts.items()}


def save_pools(path: Path, pools: Pools) -> None:
    """Keep the streams, so that recording need not tokenize again."""
    np.savez(path, **{f"{scene}.{part}": ids for (scene, part), ids in pools.items()})  # type: ignore[arg-type]  # no name is `allow_pickle`


def load_pools(path: Path) -> Pools:
    """What `save_pools` kept."""
    with np.load(path) as stored:
        return {(scene, part): stored[f"{scene}.{part}"] for scene in SCENES for part in PARTS}
