"""What a pane knows beside counts survives being stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from moescope.core.emission import LaneKey, SharedDelta
from moescope.core.errors import InternalError
from moescope.core.router_sums import LAGS, LagSums, PassSums, PositionCounts, SimilaritySums
from moescope.core.vocabulary import ScopeKind, WindowKind
from moescope.storage.extras_codec import decode_extras, encode_extras

LAYERS, EXPERTS = 2, 3
LANE = LaneKey("live", "m", "r", "model", "full", 1.0, EXPERTS, 1, (0, 5))
INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300)


def whole(*shape: int) -> st.SearchStrategy[Any]:
    """int64 arrays of any values."""
    return arrays(np.int64, shape, elements=INTEGERS)


@st.composite
def positions(draw: st.DrawFn) -> PositionCounts:
    """Ascending, distinct indices with counts."""
    index = sorted(draw(st.sets(st.integers(0, 2**40), max_size=8)))
    count = draw(st.lists(st.integers(1, 2**40), min_size=len(index), max_size=len(index)))
    return PositionCounts(np.array(index, np.int64), np.array(count, np.int64))


SIMILARITY = st.builds(
    SimilaritySums,
    start_us=INTEGERS, size_us=st.integers(1, 10**7), weighted=whole(LAYERS, EXPERTS),
    squares=whole(LAYERS), requests=whole(LAYERS), left_out=whole(LAYERS),
)  # fmt: skip
LAG_SUMS = st.builds(LagSums, overlap=whole(LAYERS, LAGS), pairs=whole(LAYERS, LAGS))


PASS_SUMS = st.builds(
    PassSums, passes=whole(LAYERS), imbalance=whole(LAYERS), largest=whole(LAYERS)
)
Part = PositionCounts | SimilaritySums | LagSums | PassSums


def delta(**parts: Part | None) -> SharedDelta:
    """A time pane with these parts."""
    return SharedDelta(
        lane=LANE, phase="decode", kind=WindowKind.TIME, scope_kind=ScopeKind.ALL, scope_value="",
        pane=0, counts=np.zeros((LAYERS, EXPERTS), np.uint32), dropped=np.zeros(LAYERS, np.uint64),
        seen=1, first_time_us=0, last_time_us=0, **parts,  # type: ignore[arg-type]  # any of its parts
    )  # fmt: skip


def plain(part: Part | None) -> object:
    """Values of a part as lists, with their shape and type."""
    if part is None:
        return None
    values = [getattr(part, name) for name in part.__dataclass_fields__]
    return [
        (each.tolist(), each.dtype) if isinstance(each, np.ndarray) else each for each in values
    ]


@settings(max_examples=40)
@given(
    has=st.none() | positions(), similar=st.none() | SIMILARITY, lags=st.none() | LAG_SUMS,
    passes=st.none() | PASS_SUMS,
)  # fmt: skip
def test_extras_are_read_back_as_they_were(
    has: PositionCounts | None,
    similar: SimilaritySums | None,
    lags: LagSums | None,
    passes: PassSums | None,
) -> None:
    """Every combination of parts, and values of every size."""
    parts = {"positions": has, "similarity": similar, "lags": lags, "passes": passes}
    blob = encode_extras(delta(**parts))
    assert (blob is None) == (not any(parts.values()))
    found = decode_extras(blob, LANE)
    assert {name: plain(found.get(name)) for name in parts} == {
        name: plain(part) for name, part in parts.items()
    }


def test_an_encoding_of_another_version_is_refused() -> None:
    """Half-understood panes would make wrong windows."""
    with pytest.raises(InternalError, match="unknown encoding 9"):
        decode_extras(b"\x09...", LANE)
