"""Baseline references, and the shifts of baseline windows from references made without them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moescope.core.thresholds import BaselineReference
from moescope.core.vocabulary import ScopeKind, WindowKind
from moescope.jobs.calibration.sample import is_timed
from moescope.processors.metrics import (
    UNKNOWN_MIX,
    baseline_loads,
    distinct_mixes,
    mix_shift,
    routing_shift,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from moescope.jobs.baselines import BaselineWindows

FOLDS = 5
_CHUNK_ENTRIES = 200_000
"""Of float64 arrays that are worked on at a time: they fit into a processor's cache."""


@dataclass(frozen=True, slots=True)
class FoldedReference:
    """Expert loads of a phase by scene, in parts that can be left out.

    Attributes:
        parts: Folds touched (bits) → scene → counts int64 [L, E].
        tokens: Folds touched → scene → tokens.
    """

    parts: Mapping[int, Mapping[str, NDArray[np.int64]]]
    tokens: Mapping[int, Mapping[str, int]]

    def without(self, folds: int) -> BaselineReference | None:
        """The reference made of all windows that touch none of these folds; None: of none."""
        scenes: dict[str, NDArray[np.int64]] = {}
        tokens: dict[str, int] = {}
        for touched, part in self.parts.items():
            if touched & folds:
                continue
            for scene, counts in part.items():
                scenes[scene] = scenes.get(scene, 0) + counts
                tokens[scene] = tokens.get(scene, 0) + self.tokens[touched][scene]
        return BaselineReference(scenes=scenes, tokens=tokens) if scenes else None

    @property
    def whole(self) -> BaselineReference | None:
        """The reference made of everything."""
        return self.without(0)


def folds_touched(windows: BaselineWindows, block_us: int) -> NDArray[np.int64]:
    """Folds of each window as bits, int64 [W].

    Blocks of event time go to folds in turn. Windows without times go by their task (or request),
    so that a token window and the task that holds it are in the same fold.
    """
    masks = np.zeros(len(windows), np.int64)
    timed = is_timed(windows)
    first, last = windows.first_us[timed] // block_us, windows.last_us[timed] // block_us
    found = np.zeros(len(first), np.int64)
    for ahead in range(FOLDS):
        found |= np.where(first + ahead <= last, 1 << ((first + ahead) % FOLDS), 0)
    masks[timed] = found
    for window in np.flatnonzero(~timed):
        label = windows.task[window] or windows.request[window]
        masks[window] = 1 << (zlib.crc32(label.encode("utf-8", "surrogatepass")) % FOLDS)
    return masks


def fold_reference(
    candidates: Sequence[BaselineWindows], top_k: int, block_us: int
) -> FoldedReference | None:
    """The reference of one phase, from the kind of window that holds most tokens of known scene.

    Args:
        candidates: All kinds of window of the phase.
        top_k: k.
        block_us: Length of blocks.

    Returns:
        None where no window is of one scene alone.
    """
    best, most = None, 0.0
    for windows in candidates:
        scenes = _known_scenes(windows)
        if scenes is None:
            continue
        weight = windows.weight * (scenes != "")
        tokens = float((windows.counts[:, 0].sum(axis=1) * weight).sum()) / top_k
        if tokens > most:
            best, most = (windows, scenes), tokens
    if best is None:
        return None
    windows, scenes = best
    weight = windows.weight.astype(np.int64)
    masks = folds_touched(windows, block_us)
    parts: dict[int, dict[str, NDArray[np.int64]]] = {}
    amounts: dict[int, dict[str, int]] = {}
    for mask in np.unique(masks).tolist():
        for scene in sorted(set(scenes[masks == mask].tolist()) - {""}):
            chosen = (masks == mask) & (scenes == scene)
            counts = np.einsum("wle,w->le", windows.counts[chosen], weight[chosen])
            parts.setdefault(mask, {})[scene] = counts
            amounts.setdefault(mask, {})[scene] = int(counts.sum(axis=1).max()) // top_k
    return FoldedReference(parts, amounts)


def _known_scenes(windows: BaselineWindows) -> NDArray[np.object_] | None:
    """The one scene of each window; None for kinds whose rows would count twice or by node."""
    if windows.scope_kind == ScopeKind.SCENE:
        return windows.scope_value
    if windows.kind in {WindowKind.TOKEN, WindowKind.TASK}:
        return windows.scene
    return None


def cross_fitted_shifts(
    windows: BaselineWindows, reference: FoldedReference, block_us: int
) -> dict[str, NDArray[np.float64]]:
    """`routing_shift` and `mix_shift` of baseline windows, float64 [W, L] each.

    A window's reference is made without the folds that it touches, so that it is never compared
    with itself. NaN where that leaves nothing of one of its scenes.
    """
    shape = windows.counts.shape[:2]
    routing, mix = np.full(shape, np.nan), np.full(shape, np.nan)
    masks = folds_touched(windows, block_us)
    for mask in np.unique(masks).tolist():
        others = reference.without(mask)
        if others is not None:
            members = np.flatnonzero(masks == mask)
            routing[members], mix[members] = _shifts(windows, members, others)
    return {"routing_shift": routing, "mix_shift": mix}


def shifts_from(
    windows: BaselineWindows, reference: BaselineReference
) -> dict[str, NDArray[np.float64]]:
    """The same against one reference for all windows, as window closing measures them."""
    routing, mix = _shifts(windows, np.arange(len(windows)), reference)
    return {"routing_shift": routing, "mix_shift": mix}


def _shifts(
    windows: BaselineWindows, members: NDArray[np.int64], reference: BaselineReference
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Routing and mix shift of some windows, float64 [members, L] each."""
    layers, experts = windows.counts.shape[1:]
    shape = (len(members), layers)
    routing, mix = np.full(shape, np.nan), np.full(shape, np.nan)
    loads = baseline_loads(reference)
    mixes = distinct_mixes(loads, [windows.scene_tokens[window] for window in members.tolist()])
    known = np.flatnonzero(mixes.place != UNKNOWN_MIX)
    place = mixes.place[known]
    chunk = max(_CHUNK_ENTRIES // (layers * experts), 1)
    mix[known] = mix_shift(loads, mixes.q)[place]
    for begin in range(0, len(known), chunk):
        some = slice(begin, begin + chunk)
        counts = windows.counts[members[known[some]]]
        routing[known[some]] = routing_shift(counts, mixes.q[place[some]])
    return routing, mix
