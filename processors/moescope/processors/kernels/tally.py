"""Adding a run of rows to the counts of its cell at one layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moescope.processors.compilation import compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

BYTES = 8
"""Counters in a word; also bits of one."""

MOST_ROWS_OF_WORDS = 255
"""Words that `count_bits` can add up: its counters are bytes."""

Counters = tuple[
    np.uint64, np.uint64, np.uint64, np.uint64, np.uint64, np.uint64, np.uint64, np.uint64
]
"""Eight counters in each of eight words."""


@compiled
def count_bits(words: NDArray[np.uint64]) -> Counters:
    """Count the bits of words by their places: byte j of counter b counts bit 8 j + b.

    Eight additions per word, however many bits it has.

    Args:
        words: uint64 [rows], at most `MOST_ROWS_OF_WORDS`.
    """
    ones = np.uint64(0x0101010101010101)
    zero = np.uint64(0)
    c0, c1, c2, c3, c4, c5, c6, c7 = zero, zero, zero, zero, zero, zero, zero, zero
    for i in range(len(words)):
        word = words[i]
        c0 += word & ones
        c1 += (word >> np.uint64(1)) & ones
        c2 += (word >> np.uint64(2)) & ones
        c3 += (word >> np.uint64(3)) & ones
        c4 += (word >> np.uint64(4)) & ones
        c5 += (word >> np.uint64(5)) & ones
        c6 += (word >> np.uint64(6)) & ones
        c7 += (word >> np.uint64(7)) & ones
    return c0, c1, c2, c3, c4, c5, c6, c7


@compiled
def count_words(
    words: NDArray[np.uint64], table: NDArray[np.uint16], target: NDArray[np.uint16]
) -> None:
    """Count ranks below 64 from words that have a bit per rank.

    Args:
        words: uint64 [rows], at most `MOST_ROWS_OF_WORDS`.
        table: uint16 [a multiple of 8, at most 64], rank to expert; where no row has the rank,
            any expert.
        target: uint16 [E], added to.
    """
    c0, c1, c2, c3, c4, c5, c6, c7 = count_bits(words)
    byte = np.uint64(0xFF)
    for first in range(0, len(table), BYTES):
        place = np.uint64(first)
        target[table[first]] += np.uint16((c0 >> place) & byte)
        target[table[first + 1]] += np.uint16((c1 >> place) & byte)
        target[table[first + 2]] += np.uint16((c2 >> place) & byte)
        target[table[first + 3]] += np.uint16((c3 >> place) & byte)
        target[table[first + 4]] += np.uint16((c4 >> place) & byte)
        target[table[first + 5]] += np.uint16((c5 >> place) & byte)
        target[table[first + 6]] += np.uint16((c6 >> place) & byte)
        target[table[first + 7]] += np.uint16((c7 >> place) & byte)


@compiled
def count_short_run(
    ranks: NDArray[np.uint16],
    begin: int,
    end: int,
    table: NDArray[np.uint16],
    target: NDArray[np.uint16],
) -> None:
    """Count a run row by row: neighbouring ranks differ, so no increment waits for another."""
    for row in range(begin, end):
        for j in range(len(ranks)):
            target[table[ranks[j, row]]] += np.uint16(1)


@compiled
def count_doubtful_run(
    ranks: NDArray[np.uint16],
    bad: NDArray[np.uint8],
    begin: int,
    end: int,
    table: NDArray[np.uint16],
    target: NDArray[np.uint16],
) -> int:
    """Count the sound rows of a run; says how many are not."""
    doubtful = 0
    for row in range(begin, end):
        if bad[row]:
            doubtful += 1
            continue
        for j in range(len(ranks)):
            target[table[ranks[j, row]]] += np.uint16(1)
    return doubtful


@compiled
def count_long_run(
    ranks: NDArray[np.uint16],
    begin: int,
    end: int,
    table: NDArray[np.uint16],
    even: NDArray[np.uint16],
    odd: NDArray[np.uint16],
    target: NDArray[np.uint16],
) -> None:
    """Count a run with two counters per rank, which are all zero before and after.

    A plane of sorted ranks often holds the same rank in neighbouring rows; incrementing one
    counter twice in a row would wait for the first increment to reach memory.
    """
    top_k = len(ranks)
    j = 0
    while j + 4 <= top_k:
        first, second = ranks[j, begin:end], ranks[j + 1, begin:end]
        third, fourth = ranks[j + 2, begin:end], ranks[j + 3, begin:end]
        rows = len(first)
        row = 0
        while row + 1 < rows:
            even[first[row]] += np.uint16(1)
            even[second[row]] += np.uint16(1)
            even[third[row]] += np.uint16(1)
            even[fourth[row]] += np.uint16(1)
            odd[first[row + 1]] += np.uint16(1)
            odd[second[row + 1]] += np.uint16(1)
            odd[third[row + 1]] += np.uint16(1)
            odd[fourth[row + 1]] += np.uint16(1)
            row += 2
        if row < rows:
            even[first[row]] += np.uint16(1)
            even[second[row]] += np.uint16(1)
            even[third[row]] += np.uint16(1)
            even[fourth[row]] += np.uint16(1)
        j += 4
    while j < top_k:
        for row in range(begin, end):
            even[ranks[j, row]] += np.uint16(1)
        j += 1
    for rank in range(len(even)):
        target[table[rank]] += even[rank] + odd[rank]
        even[rank] = 0
        odd[rank] = 0
