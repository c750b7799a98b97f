from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import log2
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.comparison_logs import LAYERS, Batch, Row, plain_rows, write_log

from moescope.core.errors import InsufficientDataError
from moescope.core.vocabulary import Phase, RowFlag
from moescope.jobs.reports.comparison import compare, find_side
from moescope.jobs.reports.comparison.build import MEMORY_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moescope.jobs.reports.comparison.reading import JoinBy

EXPERTS, TOP_K = 8, 3

_expert = st.integers(0, EXPERTS - 1)
_usual = st.permutations(range(EXPERTS)).map(lambda order: tuple(order[:TOP_K]))
_ids = st.one_of(_usual, st.just((0, 1, 2)), st.just((2, 1, 0)))
_faulty = st.sampled_from([(0, 0, 1), (1, 2, EXPERTS)])
_rows = st.builds(
    Row,
    request=st.sampled_from(["r", "s", "t"]),
    position=st.sampled_from([0, 1, 3, 4, 70]),
    ids=st.tuples(_ids, st.one_of(*[_ids] * 5, _faulty)),
    key=st.sampled_from([1, 2, 2**64 - 1]),
    time=st.integers(0, 2),
    phase=st.sampled_from([Phase.PREFILL, Phase.DECODE, Phase.DECODE, Phase.DRAFT]),
    flags=st.sampled_from([0, 0, 0, RowFlag.CONTEXT, RowFlag.LAST_OF_REQUEST, RowFlag.RECOMPUTED]),
    margin=st.tuples(*[st.sampled_from([0.0, 0.0011, 0.3, 3.0])] * 2),
)
_batches = st.lists(
    st.builds(
        Batch,
        rows=st.lists(_rows, min_size=1, max_size=12).map(tuple),
        node=st.sampled_from(["m", "n"]),
        with_keys=st.sampled_from([True, True, True, False]),
        with_margin=st.booleans(),
        is_ranked=st.booleans(),
    ),
    min_size=1,
    max_size=4,
)

_memory = st.sampled_from([MEMORY_BYTES, 300])


def first_sightings(rows: Sequence[Row], by: str) -> dict[tuple[object, int], Row]:
    """One row per key and position."""
    found: dict[tuple[object, int], Row] = {}
    for row in rows:
        found.setdefault((row.key if by == "content" else row.request, row.position), row)
    return found


def chosen(row: Row) -> list[set[int]]:
    """Sets of experts by layer."""
    return [set(ids) - {-1} for ids in row.ids]


def plain_js(reference: Counter[int], counts: Counter[int]) -> float:
    """The smoothed divergence in bits, expert by expert."""
    p, q = (
        [(side[expert] + 0.5) / (side.total() + EXPERTS / 2) for expert in range(EXPERTS)]
        for side in (counts, reference)
    )
    middle = [(x + y) / 2 for x, y in zip(p, q, strict=True)]
    return sum(
        (x * log2(x / m) + y * log2(y / m)) / 2 for x, y, m in zip(p, q, middle, strict=True)
    )


def again_of(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Later sightings of a content key and position, each beside the first."""
    first = first_sightings(rows, "content")
    pairs = [(first[row.key, row.position], row) for row in rows]
    return [(one, other) for one, other in pairs if one is not other]


def check_stability(stability: Any, pairs: list[tuple[Row, Row]]) -> None:
    """What a side makes of its own tokens, over all layers; nothing where it saw none again."""
    if not pairs:
        assert stability is None
        return
    assert stability["tokens"] == len(pairs)
    common = [len(x & y) for a, b in pairs for x, y in zip(chosen(a), chosen(b), strict=True)]
    assert stability["jaccard_stability"]["value"] == pytest.approx(
        sum(each / (2 * TOP_K - each) for each in common) / len(common)
    )
    tops = [
        x[0] == y[0] for a, b in pairs for x, y in zip(a.ids, b.ids, strict=True) if -1 not in x + y
    ]
    if tops:
        assert stability["top1_stability"]["value"] == pytest.approx(sum(tops) / len(tops))
    else:
        assert stability["top1_stability"] is None


def check(report: Any, pairs: list[tuple[Row, Row]]) -> None:
    """Every number of a report but the intervals, from pairs of plain rows."""
    assert report["tokens"] == len(pairs)
    assert report["requests"] == len({a.request for a, _ in pairs})
    common = [[len(x & y) for x, y in zip(chosen(a), chosen(b), strict=True)] for a, b in pairs]
    for at, layer in enumerate(report["layers"]):
        shared = [each[at] for each in common]
        assert layer["overlap"]["value"] == pytest.approx(sum(shared) / TOP_K / len(pairs))
        assert layer["jaccard"]["value"] == pytest.approx(
            sum(each / (2 * TOP_K - each) for each in shared) / len(pairs)
        )
        assert layer["same_set"]["value"] == pytest.approx(shared.count(TOP_K) / len(pairs))
        tops = [(a.ids[at][0], b.ids[at][0]) for a, b in pairs if -1 not in a.ids[at] + b.ids[at]]
        if tops:
            same = sum(x == y for x, y in tops)
            assert layer["top1"]["value"] == pytest.approx(same / len(tops))
        else:
            assert layer["top1"] is None
        parts_here = sum(
            each[at] < TOP_K and all(before == TOP_K for before in each[:at]) for each in common
        )
        assert layer["parts_here"] == pytest.approx(parts_here / len(pairs))
        counts = [
            Counter(expert for pair in pairs for expert in chosen(pair[side])[at])
            for side in (0, 1)
        ]
        assert layer["js_divergence"] == pytest.approx(plain_js(*counts), abs=1e-9)
    agree = [all(each == TOP_K for each in shared) for shared in common]
    assert report["overall"]["all_layers"]["value"] == pytest.approx(sum(agree) / len(pairs))
    differing = Counter(sum(each < TOP_K for each in shared) for shared in common)
    layers = len(report["layers"])
    assert report["differing_layers"] == [differing[number] for number in range(layers + 1)]
    for bucket in report["by_position"]:
        last = bucket["last"] if bucket["last"] is not None else 2**31
        inside = [at for at, (a, _) in enumerate(pairs) if bucket["first"] <= a.position <= last]
        assert bucket["tokens"] == len(inside) > 0
        assert bucket["all_layers"]["value"] == pytest.approx(
            sum(agree[at] for at in inside) / len(inside)
        )
        assert bucket["overlap"] == pytest.approx(
            sum(sum(common[at]) for at in inside) / TOP_K / layers / len(inside)
        )
    assert sum(bucket["tokens"] for bucket in report["by_position"]) == len(pairs)
    for bucket in report["by_margin"] or ():
        below = 1e9 if bucket["below"] is None else bucket["below"]
        sets = [
            common[at][layer] == TOP_K
            for at, (a, _) in enumerate(pairs)
            for layer, margin in enumerate(a.margin)
            if bucket["at_least"] <= margin < below
        ]
        assert (bucket["token_layers"], bucket["differing"]) == (len(sets), sets.count(False))
    known = sum(len(a.margin) for a, _ in pairs)
    assert sum(bucket["token_layers"] for bucket in report["by_margin"] or ()) == known


@settings(max_examples=25, deadline=None)
@given(a=_batches, b=_batches, by=st.sampled_from(["content", "request"]), memory=_memory)
def test_joining_is_that_of_a_dictionary(
    a: list[Batch], b: list[Batch], by: JoinBy, memory: int
) -> None:
    """First sightings, what is left out and every share, however little memory there is."""
    sides = [plain_rows(batches, by) for batches in (a, b)]
    first = [first_sightings(rows, by) for rows in sides]
    pairs = [(first[0][key], first[1][key]) for key in first[0].keys() & first[1].keys()]
    matched = len(pairs)
    if by == "request":
        pairs = [(x, y) for x, y in pairs if not (x.key and y.key) or x.key == y.key]
    with TemporaryDirectory() as folder:
        found = [
            find_side(write_log(Path(folder, name), rows)) for name, rows in (("a", a), ("b", b))
        ]
        if not pairs:
            with pytest.raises(InsufficientDataError):
                compare(found[0], found[1], by=by, fewest_pairs=1, memory_bytes=memory)
            return
        report = compare(found[0], found[1], by=by, fewest_pairs=1, memory_bytes=memory)
    check(report, pairs)
    assert report["other_content"] == matched - len(pairs)
    for name, rows, seen in zip("ab", sides, first, strict=True):
        side = report[name]  # type: ignore[literal-required]  # a or b
        assert side["rows"] == len(rows)
        assert side["duplicates"] == len(rows) - len(seen)
        assert side["unmatched"] == len(seen) - matched
        check_stability(side["stability"], again_of(rows) if by == "content" else [])


def only(batches: Sequence[Batch], place: int) -> list[Batch]:
    """The same log with one layer alone."""
    return [
        replace(
            batch,
            rows=tuple(
                replace(row, ids=(row.ids[place],), margin=(row.margin[place],))
                for row in batch.rows
            ),
        )
        for batch in batches
    ]


@settings(max_examples=12, deadline=None)
@given(a=_batches, b=_batches)
def test_layers_of_one_side_alone_are_as_if_never_recorded(a: list[Batch], b: list[Batch]) -> None:
    """The common layer lies at another place on each side; what the others hold has no say."""
    own = LAYERS[1]
    other = (("layers", np.array([own, own + 2], np.uint16)),)
    first = [
        first_sightings(plain_rows(only(batches, place), "content"), "content")
        for batches, place in ((a, 1), (b, 0))
    ]
    pairs = [(first[0][key], first[1][key]) for key in first[0].keys() & first[1].keys()]
    with TemporaryDirectory() as folder:
        logs = {"a": a, "b": [replace(batch, header=other) for batch in b]}
        sides = [find_side(write_log(Path(folder, name), rows)) for name, rows in logs.items()]
        if not pairs:
            with pytest.raises(InsufficientDataError):
                compare(*sides, fewest_pairs=1)
            return
        report = compare(*sides, fewest_pairs=1)
    check(report, pairs)
    assert report["layer_indices"] == [own]
    assert report["a"]["left_out_layers"] == [LAYERS[0]]
    assert report["b"] is not None
    assert report["b"]["left_out_layers"] == [own + 2]


@settings(max_examples=12, deadline=None)
@given(a=_batches, memory=_memory)
def test_repeats_are_compared_with_their_first_sighting(a: list[Batch], memory: int) -> None:
    """A third sighting is compared with the first, not with the second."""
    rows = plain_rows(a, "content")
    pairs = again_of(rows)
    with TemporaryDirectory() as folder:
        side = find_side(write_log(Path(folder, "a"), a))
        if not pairs:
            with pytest.raises(InsufficientDataError):
                compare(side, None, fewest_pairs=1, memory_bytes=memory)
            return
        report = compare(side, None, fewest_pairs=1, memory_bytes=memory)
    check(report, pairs)
    check_stability(report["a"]["stability"], pairs)
    times_seen = Counter((row.key, row.position) for row in rows)
    assert report["a"]["unmatched"] == sum(times == 1 for times in times_seen.values())
