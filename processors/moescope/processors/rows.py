"""Which rows of a batch count, and where their token windows start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.vocabulary import UNCOUNTED_FLAGS, Phase, RowFlag
from moescope.processors.kernels.records import CONTEXT, COUNTABLE, SKIPPED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moescope.core.batch import Requests

_IS_UNCOUNTED = np.isin(np.arange(256), (int(Phase.WARMUP), int(Phase.DRAFT)))
_COUNTED, _CONTEXT, _PADDING, _RECOMPUTED, _UNCOUNTED_PHASE = range(5)
_STATUS = np.array([COUNTABLE, CONTEXT, SKIPPED, SKIPPED, SKIPPED], np.uint8)
"""Of each kind of row."""
_KIND_OF_FLAGS = np.full(int(UNCOUNTED_FLAGS) + 1, _COUNTED, np.uint8)
for _flag, _kind in (
    (RowFlag.RECOMPUTED, _RECOMPUTED),
    (RowFlag.PADDING, _PADDING),
    (RowFlag.CONTEXT, _CONTEXT),
):
    _KIND_OF_FLAGS[(np.arange(len(_KIND_OF_FLAGS)) & int(_flag)) != 0] = _kind


@dataclass(slots=True)
class RowAccount:
    """What became of a record's rows."""

    rows: int = 0
    accepted: int = 0
    context: int = 0
    padding: int = 0
    recomputed: int = 0
    stale: int = 0
    late: int = 0
    uncounted_phase: int = 0
    suspicious_pairs: int = 0
    reasons: tuple[str, ...] = ()
    stale_rows: tuple[int, ...] = ()


def phase_anchors(requests: Requests) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where token windows of each phase start.

    Returns:
        Anchors int64 [R, phases] = max(phase start, cached tokens), and bool [R, phases]: the
        phase has no anchor (decode or eval with an unknown start), so it forms no token windows.
    """
    starts = requests.phase_starts.astype(np.int64)
    unanchored = np.zeros(starts.shape, np.bool_)
    for phase in (Phase.DECODE, Phase.EVAL):
        unanchored[:, phase] = starts[:, phase] < 0
    anchors = np.maximum(np.maximum(starts, 0), requests.cached_tokens[:, None].astype(np.int64))
    return anchors, unanchored


def classify_rows(
    phase: NDArray[np.uint8], flags: NDArray[np.uint8], tokens: NDArray[np.int32] | None = None
) -> tuple[RowAccount, NDArray[np.uint8]]:
    """Sort rows (or pieces of `tokens` rows each) into counted, left out and context rows.

    Returns:
        The account as far as flags and phases decide it, and the status uint8 [T] for `plan`.
    """
    kind = _KIND_OF_FLAGS[flags & int(UNCOUNTED_FLAGS)]
    kind[_IS_UNCOUNTED[phase] & (kind == _COUNTED)] = _UNCOUNTED_PHASE
    # Whole numbers below 2^53: floats add them up exactly.
    rows = np.bincount(kind, tokens, len(_STATUS)).astype(np.int64).tolist()
    account = RowAccount(
        rows=sum(rows),
        context=rows[_CONTEXT],
        padding=rows[_PADDING],
        recomputed=rows[_RECOMPUTED],
        uncounted_phase=rows[_UNCOUNTED_PHASE],
    )
    return account, _STATUS[kind]


def counts_that_add_up(
    counts: NDArray[np.uint32], tokens: NDArray[np.integer[Any]], top_k: int
) -> tuple[NDArray[np.uint32], int]:
    """Take out the layers whose counts are not tokens × k.

    Args:
        counts: uint32 [B, L, E].
        tokens: [B].
        top_k: k.

    Returns:
        Counts with zeros where they did not add up, and the number of (row, layer) pairs there.
    """
    wrong = counts.sum(axis=2, dtype=np.int64) != tokens[:, None].astype(np.int64) * top_k
    if not wrong.any():
        return counts, 0
    return np.where(wrong[:, :, None], np.uint32(0), counts), int((tokens[:, None] * wrong).sum())
