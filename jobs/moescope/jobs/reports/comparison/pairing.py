"""Which rows of two sides are about the same token."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from moescope.jobs.reports.comparison.spilling import DEEPEST, PARTS, RowParts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from moescope.jobs.reports.comparison.reading import Rows

_BUFFER_SHARE: Final = 8


class Workspace(NamedTuple):
    """What joining may use.

    Attributes:
        folder: For parts that have to be dealt out once more.
        memory_bytes: Parts with more rows than fit into this are.
    """

    folder: Path
    memory_bytes: int


class Pairs(NamedTuple):
    """Rows [N] of both sides, one below the other."""

    a: Rows
    b: Rows


Repeats = Callable[[str, Pairs], None]
"""Takes a side's name, and its later sightings beside their first ones."""


@dataclass(slots=True)
class PairingCounts:
    """What became of the rows.

    Attributes:
        pairs: Compared.
        a_unmatched, b_unmatched: First sightings that the other side does not have.
        a_duplicates, b_duplicates: Later sightings of a key and position, left out.
        other_content: Joined by request, but the content keys differ: left out.
    """

    pairs: int = 0
    a_unmatched: int = 0
    b_unmatched: int = 0
    a_duplicates: int = 0
    b_duplicates: int = 0
    other_content: int = 0


def paired_rows(
    a: RowParts,
    b: RowParts,
    counts: PairingCounts,
    space: Workspace,
    repeats: Repeats,
    *,
    level: int = 0,
) -> Iterator[Pairs]:
    """Pair the first sightings of both sides, part by part.

    Args:
        a: Rows of one side; used up.
        b: Rows of the other; used up.
        counts: Filled on the way.
        space: Memory and disk.
        repeats: Told what each side saw again, part by part.
        level: Of the parts.

    Yields:
        Pairs, as many as fit into the memory at once.

    Raises:
        OSError: The disk refused.
    """
    for number in range(PARTS):
        size = a.bytes_of(number) + b.bytes_of(number)
        if size == 0:
            continue
        if size > space.memory_bytes and level + 1 < DEEPEST:
            a_again = _dealt_again(a, number, space, level)
            b_again = _dealt_again(b, number, space, level)
            yield from paired_rows(a_again, b_again, counts, space, repeats, level=level + 1)
            continue
        a_rows, b_rows = a.rows_of(number), b.rows_of(number)
        a.forget(number)
        b.forget(number)
        yield _pairs_of(a_rows, b_rows, counts, repeats)


def repeated_rows(
    a: RowParts, counts: PairingCounts, space: Workspace, *, level: int = 0
) -> Iterator[Pairs]:
    """Pair the first sighting of each key and position with each later one.

    Args, yields and raises as `paired_rows`; what was seen once is unmatched.
    """
    for number in range(PARTS):
        size = a.bytes_of(number)
        if size == 0:
            continue
        if size > space.memory_bytes and level + 1 < DEEPEST:
            again = _dealt_again(a, number, space, level)
            yield from repeated_rows(again, counts, space, level=level + 1)
            continue
        rows, is_first = _in_order(a.rows_of(number))
        a.forget(number)
        seen_once = is_first & np.append(is_first[1:], np.True_)
        counts.a_unmatched += int(np.count_nonzero(seen_once))
        pairs = _with_their_first(rows, is_first)
        counts.pairs += len(pairs.a)
        yield pairs


def _dealt_again(parts: RowParts, number: int, space: Workspace, level: int) -> RowParts:
    """A part's rows as parts of the next level."""
    folder = Path(tempfile.mkdtemp(dir=space.folder))
    buffer_bytes = space.memory_bytes // _BUFFER_SHARE
    finer = RowParts(folder, parts.row_type, buffer_bytes=buffer_bytes, level=level + 1)
    for block in parts.blocks(number):
        finer.add(block)
    parts.forget(number)
    return finer


def _pairs_of(a: Rows, b: Rows, counts: PairingCounts, repeats: Repeats) -> Pairs:
    a, counts_of_a = _first_sightings("A", a, repeats)
    b, counts_of_b = _first_sightings("B", b, repeats)
    counts.a_duplicates += counts_of_a
    counts.b_duplicates += counts_of_b
    keys = np.concatenate([a["key"], b["key"]])
    positions = np.concatenate([a["position"], b["position"]])
    order = np.lexsort((positions, keys))
    keys, positions = keys[order], positions[order]
    met = np.flatnonzero((keys[1:] == keys[:-1]) & (positions[1:] == positions[:-1]))
    # The sort is stable, so that of two equal ones A's comes first.
    pairs = Pairs(a[order[met]], b[order[met + 1] - len(a)])
    counts.a_unmatched += len(a) - len(met)
    counts.b_unmatched += len(b) - len(met)
    differ = (pairs.a["content"] != pairs.b["content"]) & (
        (pairs.a["content"] != 0) & (pairs.b["content"] != 0)
    )
    counts.other_content += int(np.count_nonzero(differ))
    counts.pairs += int(np.count_nonzero(~differ))
    return Pairs(pairs.a[~differ], pairs.b[~differ]) if differ.any() else pairs


def _first_sightings(name: str, rows: Rows, repeats: Repeats) -> tuple[Rows, int]:
    """First sightings, and how many later ones there are."""
    ordered, is_first = _in_order(rows)
    later = len(ordered) - int(np.count_nonzero(is_first))
    if later:
        repeats(name, _with_their_first(ordered, is_first))
    return ordered[is_first], later


def _with_their_first(ordered: Rows, is_first: NDArray[np.bool_]) -> Pairs:
    starts = np.flatnonzero(is_first)
    later = np.flatnonzero(~is_first)
    first = starts[np.cumsum(is_first)[later] - 1]
    return Pairs(ordered[first], ordered[later])


def _in_order(rows: Rows) -> tuple[Rows, NDArray[np.bool_]]:
    """Rows by key, position, time and reading order, and which are the first of theirs."""
    ordered = rows[np.lexsort((rows["order"], rows["time"], rows["position"], rows["key"]))]
    is_first = np.ones(len(ordered), np.bool_)
    is_first[1:] = (ordered["key"][1:] != ordered["key"][:-1]) | (
        ordered["position"][1:] != ordered["position"][:-1]
    )
    return ordered, is_first
