"""Rows per expert of each forward pass: which pass a row is of, and how uneven each is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.router_sums import FIXED_POINT
from moescope.core.vocabulary import Phase, RowFlag
from moescope.processors.compilation import compiled
from moescope.processors.kernels.ranks import BLOCK, ranks_of_block
from moescope.processors.kernels.records import NO_TIME, NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NOT_EXECUTED = int(RowFlag.CONTEXT | RowFlag.PADDING)
_RECOMPUTED = int(RowFlag.RECOMPUTED)
_WARMUP, _DRAFT = int(Phase.WARMUP), int(Phase.DRAFT)
_MIX = 0x9E3779B97F4A7C15
_SHIFT = 29


@compiled
def index_passes(
    pass_id: NDArray[np.int64],
    time: NDArray[np.int64],
    step: NDArray[np.int64],
    phase: NDArray[np.uint8],
    flags: NDArray[np.uint8],
    cell_of_row: NDArray[np.int32],
    table: NDArray[np.int64],
    pass_of_row: NDArray[np.int64],
    first_row: NDArray[np.int64],
    phases: NDArray[np.int64],
    steps: NDArray[np.int64],
) -> int:
    """Number the passes of a batch, in the order of their first rows.

    Rows count that were accepted, and those that were executed without saying anything about
    health (recomputed, drafts, warm-up); not what is padding, repeated or suspicious. A negative
    pass id means that there is none.

    Args:
        pass_id, time: int64 [T]; both together name a pass of a node. step: int64 [T] or empty.
        phase, flags: uint8 [T]. cell_of_row: int32 [T], negative where a row was not accepted.
        table: int64 [power of two above T], filled with −1; overwritten.
        pass_of_row: out, int64 [T]; −1 where a row does not count.
        first_row: out, int64 [T], by pass.
        phases: out, int64 [T], by pass: bits of the phases with accepted rows.
        steps: out, int64 [T], by pass: the greatest step, or `NO_TIME`.

    Returns:
        Number of passes.
    """
    places = np.uint64(len(table) - 1)
    passes = 0
    for row in range(len(pass_id)):
        pass_of_row[row] = NONE
        accepted = cell_of_row[row] >= 0
        executed = accepted or (
            not flags[row] & _NOT_EXECUTED
            and (flags[row] & _RECOMPUTED or phase[row] == _WARMUP or phase[row] == _DRAFT)
        )
        if not executed or pass_id[row] < 0 or time[row] == NO_TIME:
            continue
        mixed = (np.uint64(pass_id[row]) * np.uint64(_MIX)) ^ np.uint64(time[row])
        mixed *= np.uint64(_MIX)
        place = (mixed >> np.uint64(_SHIFT)) & places
        while True:
            known = table[place]
            if known == NONE:
                known = passes
                table[place] = known
                first_row[known] = row
                phases[known] = 0
                steps[known] = NO_TIME
                passes += 1
                break
            first = first_row[known]
            if pass_id[first] == pass_id[row] and time[first] == time[row]:
                break
            place = (place + np.uint64(1)) & places
        pass_of_row[row] = known
        if accepted:
            phases[known] |= 1 << phase[row]
        if len(step) > 0:
            steps[known] = max(steps[known], step[row])
    return passes


@compiled
def load_passes(
    gaps: NDArray[np.unsignedinteger[Any]],
    relabelling: NDArray[np.uint16],
    skipped_layers: NDArray[np.bool_],
    pass_of_row: NDArray[np.int64],
    kept_as: NDArray[np.int64],
    kept: NDArray[np.uint32],
    imbalance: NDArray[np.int64],
) -> None:
    """Count the rows of each pass by expert, and say how uneven they are.

    Args:
        gaps: uint8 or uint16 [k, L, T]. relabelling: uint16 [L, E]. skipped_layers: bool [L].
        pass_of_row: int64 [T]; the number of passes where a row does not count.
        kept_as: int64 [passes], place in `kept`; −1: the pass begins and ends in this batch.
        kept: uint32 [., L, E], rows per expert of passes that go beyond the batch; added to.
        imbalance: out, int64 [passes, L]: E · max(c) / Σ c, fixed-point; 0 without a row.
    """
    top_k, layers, total = gaps.shape
    experts = relabelling.shape[1]
    passes = len(kept_as)
    ranks = np.empty((top_k, BLOCK), np.uint16)
    sums = np.empty(BLOCK, np.uint16)
    bad = np.empty(BLOCK, np.uint8)
    # One row more than passes: what does not count is counted there.
    counts = np.zeros((passes + 1, experts), np.uint32)
    scale = FIXED_POINT * experts
    for layer in range(layers):
        counts[:] = 0
        for index in range(passes):
            place = kept_as[index]
            if place >= 0:
                for rank in range(experts):
                    counts[index, rank] = kept[place, layer, relabelling[layer, rank]]
        for block in range(0, 0 if skipped_layers[layer] else total, BLOCK):
            width = min(BLOCK, total - block)
            here = pass_of_row[block : block + width]
            any_bad = ranks_of_block(gaps, layer, block, width, experts, ranks, bad, sums)
            for j in range(top_k):
                plane = ranks[j, :width]
                if any_bad:
                    for i in range(width):
                        if not bad[i]:
                            counts[here[i], plane[i]] += np.uint32(1)
                else:
                    for i in range(width):
                        counts[here[i], plane[i]] += np.uint32(1)
        for index in range(passes):
            row = counts[index]
            largest, load = np.uint32(0), np.uint32(0)
            for rank in range(experts):
                largest = max(largest, row[rank])
                load += row[rank]
            imbalance[index, layer] = 0
            if load > 0:
                imbalance[index, layer] = np.int64(largest) * scale // np.int64(load)
            place = kept_as[index]
            if place >= 0:
                for rank in range(experts):
                    kept[place, layer, relabelling[layer, rank]] = row[rank]
