"""Rows per expert of each forward pass: which pass a row is of, and how uneven each is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.router_sums import FIXED_POINT
from moescope.core.vocabulary import Phase, RowFlag
from moescope.processors.compilation import compiled
from moescope.processors.kernels.ranks import BLOCK, WORD, ranks_of_block, word_of_block
from moescope.processors.kernels.records import NO_TIME, NONE
from moescope.processors.kernels.tally import BYTES, MOST_ROWS_OF_WORDS, count_bits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moescope.processors.kernels.tally import Counters

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
def order_by_pass(pass_of_row: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Rows of each pass side by side: those of pass p are `starts[p] … starts[p + 1]`.

    Args:
        pass_of_row: int64 [T]; −1 where a row does not count.
        starts: out, int64 [passes + 1].

    Returns:
        uint64 [counted rows]: numbers that cannot be negative need no check.
    """
    passes = len(starts) - 1
    places = np.zeros(passes, np.int64)
    for row in range(len(pass_of_row)):
        if pass_of_row[row] >= 0:
            places[pass_of_row[row]] += 1
    total = 0
    for index in range(passes):
        starts[index] = total
        total += places[index]
        places[index] = starts[index]
    starts[passes] = total
    order = np.empty(total, np.uint64)
    for row in range(len(pass_of_row)):
        if pass_of_row[row] >= 0:
            order[places[pass_of_row[row]]] = row
            places[pass_of_row[row]] += 1
    return order


@compiled
def load_passes(
    gaps: NDArray[np.unsignedinteger[Any]],
    relabelling: NDArray[np.uint16],
    skipped_layers: NDArray[np.bool_],
    order: NDArray[np.uint64],
    starts: NDArray[np.int64],
    kept_as: NDArray[np.int64],
    kept: NDArray[np.uint32],
    imbalance: NDArray[np.int64],
) -> None:
    """Count the rows of each pass by expert, and say how uneven they are.

    Up to 64 experts, a row is a word with a bit per rank; making more words per row would take
    longer than counting its ranks one by one.

    Args:
        gaps: uint8 or uint16 [k, L, T]. relabelling: uint16 [L, E]. skipped_layers: bool [L].
        order, starts: as `order_by_pass` gives them.
        kept_as: int64 [passes], place in `kept`; −1: the pass begins and ends in this batch.
        kept: uint32 [., L, E], rows per expert of passes that go beyond the batch; added to.
        imbalance: out, int64 [passes, L]: E · max(c) / Σ c, fixed-point; 0 without a row.
    """
    top_k, layers, total = gaps.shape
    experts = relabelling.shape[1]
    counted = len(order)
    as_words = experts <= WORD
    ranks = np.empty((top_k, BLOCK), np.uint16)
    sums = np.empty(BLOCK, np.uint16)
    bad_of_block = np.empty(BLOCK, np.uint8)
    bad = np.empty(total, np.uint8)
    words = np.empty(total if as_words else 0, np.uint64)
    by_pass = np.empty(counted if as_words else 0, np.uint64)
    planes = np.empty((0 if as_words else top_k, total), np.uint16)
    counters = np.empty(BYTES, np.uint64)
    counts = np.empty(WORD if as_words else experts, np.uint32)
    scale = FIXED_POINT * experts
    for layer in range(layers):
        any_bad = skipped_layers[layer]
        for block in range(0, total, BLOCK):
            end_of_block = min(block + BLOCK, total)
            width = end_of_block - block
            any_bad |= ranks_of_block(gaps, layer, block, width, experts, ranks, bad_of_block, sums)
            bad[block:end_of_block] = bad_of_block[:width]
            if as_words:
                word_of_block(ranks, width, words[block:end_of_block])
            for j in range(len(planes)):
                planes[j, block:end_of_block] = ranks[j, :width]
        if skipped_layers[layer]:
            bad[:] = 1
        for i in range(len(by_pass)):
            by_pass[i] = words[order[i]]
        if any_bad:
            for i in range(len(by_pass)):
                if bad[order[i]]:
                    by_pass[i] = 0
        for index in range(len(kept_as)):
            begin, end = starts[index], starts[index + 1]
            place = kept_as[index]
            load = top_k * (end - begin)
            if any_bad:
                for i in range(begin, end):
                    load -= top_k * np.int64(bad[order[i]] != 0)
            largest = np.uint32(0)
            if place < 0 and as_words and end - begin <= MOST_ROWS_OF_WORDS:
                largest = _largest_of_words(by_pass[begin:end], counters)
            else:
                counts[:] = 0
                if as_words:
                    _add_words(by_pass[begin:end], counters, counts)
                else:
                    _add_ranks(planes, bad, order[begin:end], counts)
                if place >= 0:
                    for rank in range(experts):
                        expert = relabelling[layer, rank]
                        load += np.int64(kept[place, layer, expert])
                        kept[place, layer, expert] += counts[rank]
                        counts[rank] = kept[place, layer, expert]
                for rank in range(experts):
                    largest = max(largest, counts[rank])
            imbalance[index, layer] = 0
            if load > 0:
                imbalance[index, layer] = np.int64(largest) * scale // load


@compiled
def _keep(bits: Counters, counters: NDArray[np.uint64]) -> None:
    """Write counters one by one: assigning the tuple to a slice takes longer."""
    counters[0], counters[1], counters[2], counters[3] = bits[0], bits[1], bits[2], bits[3]
    counters[4], counters[5], counters[6], counters[7] = bits[4], bits[5], bits[6], bits[7]


@compiled
def _largest_of_words(words: NDArray[np.uint64], counters: NDArray[np.uint64]) -> np.uint32:
    """Most of some words that share a bit, of at most 255; counters uint64 [8] are overwritten."""
    _keep(count_bits(words), counters)
    largest = np.uint8(0)
    for count in counters.view(np.uint8):
        largest = max(largest, count)
    return np.uint32(largest)


@compiled
def _add_words(
    words: NDArray[np.uint64], counters: NDArray[np.uint64], counts: NDArray[np.uint32]
) -> None:
    """Add words to counts by rank, some at a time."""
    byte = np.uint64(0xFF)
    for first in range(0, len(words), MOST_ROWS_OF_WORDS):
        _keep(count_bits(words[first : first + MOST_ROWS_OF_WORDS]), counters)
        for place in range(BYTES):
            for bit in range(BYTES):
                count = (counters[bit] >> np.uint64(BYTES * place)) & byte
                counts[place * BYTES + bit] += np.uint32(count)


@compiled
def _add_ranks(
    planes: NDArray[np.uint16],
    bad: NDArray[np.uint8],
    rows: NDArray[np.uint64],
    counts: NDArray[np.uint32],
) -> None:
    """The same from ranks [k, T], of more experts than one word is made for."""
    for row in rows:
        if not bad[row]:
            for j in range(len(planes)):
                counts[planes[j, row]] += np.uint32(1)
