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
    uncounted = _IS_UNCOUNTED[phase]
    status = np.full(len(phase), COUNTABLE, np.uint8)
    if not (flags & int(UNCOUNTED_FLAGS)).any() and not uncounted.any():
        return RowAccount(rows=len(phase) if tokens is None else int(tokens.sum())), status
    weight = np.ones(len(phase), np.int64) if tokens is None else tokens
    context = (flags & RowFlag.CONTEXT) != 0
    padding = ~context & ((flags & RowFlag.PADDING) != 0)
    recomputed = ~context & ~padding & ((flags & RowFlag.RECOMPUTED) != 0)
    uncounted &= (flags & int(UNCOUNTED_FLAGS)) == 0
    status[padding | recomputed | uncounted] = SKIPPED
    status[context] = CONTEXT
    account = RowAccount(
        rows=int(weight.sum()),
        context=int(weight[context].sum()),
        padding=int(weight[padding].sum()),
        recomputed=int(weight[recomputed].sum()),
        uncounted_phase=int(weight[uncounted].sum()),
    )
    return account, status


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
