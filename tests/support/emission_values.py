"""Strategies for emissions in which every field of every class takes many values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from moescope.core import accounts
from moescope.core import emission as em
from moescope.core.batch import Placement
from moescope.core.exceedance import Exceedance, ExceedanceKey
from moescope.core.router_sums import LagSums, PassSums, PositionCounts, SimilaritySums
from moescope.core.vocabulary import CloseReason, ScopeKind, WindowKind

if TYPE_CHECKING:
    import numpy as np

TEXTS = st.text(max_size=6)
WHOLE = st.integers(-(1 << 63), (1 << 63) - 1)
FLOATS = st.floats()
KINDS, SCOPES = st.sampled_from(WindowKind), st.sampled_from(ScopeKind)


def array_of(*dtypes: str) -> st.SearchStrategy[np.ndarray[Any, Any]]:
    """Small arrays, empty ones too."""
    return st.sampled_from(dtypes).flatmap(
        lambda dtype: arrays(dtype, array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4))
    )


INTEGERS, VALUES, BITS = array_of("i8"), array_of("f8"), array_of("u8")
COUNTS, FLAGS = array_of("u4", "u8"), array_of("?")


def few(each: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    """Up to two."""
    return st.lists(each, max_size=2).map(tuple)


LANES = st.builds(
    em.LaneKey, domain=TEXTS, model=TEXTS, revision=TEXTS, origin=TEXTS, fidelity=TEXTS,
    sampling_ratio=st.floats(0, 1), experts=st.integers(1, 65_535), top_k=st.integers(1, 8),
    layers=few(st.integers(0, 90)),
)  # fmt: skip
POSITIONS = st.none() | st.builds(PositionCounts, INTEGERS, INTEGERS)
SIMILARITY = st.builds(
    SimilaritySums, start_us=WHOLE, size_us=WHOLE, weighted=INTEGERS, squares=INTEGERS,
    requests=INTEGERS, left_out=INTEGERS,
)  # fmt: skip
LAGS = st.none() | st.builds(LagSums, INTEGERS, INTEGERS)
PASSES = st.none() | st.builds(PassSums, INTEGERS, INTEGERS, INTEGERS)
PLACEMENT = st.builds(Placement, version=WHOLE, rank_of=array_of("u2"), ranks=WHOLE)
SCENES = st.dictionaries(TEXTS, WHOLE, max_size=2)
GROUPS = st.builds(
    em.WindowGroup, lane=LANES, phase=TEXTS, kind=KINDS, size=WHOLE, stride=WHOLE,
    scope_kind=SCOPES, scope_value=TEXTS, start=INTEGERS, first_time_us=INTEGERS,
    last_time_us=INTEGERS, close_time_us=INTEGERS, request=few(TEXTS),
    task=st.lists(TEXTS, max_size=2), scene=few(TEXTS), node=few(TEXTS), seen=INTEGERS,
    expected=INTEGERS, lost=INTEGERS, unknown_gap=FLAGS, requests=INTEGERS,
    close_reason=few(st.sampled_from(CloseReason)), complete=FLAGS, weight=VALUES,
    row_version=array_of("i4"), counts=COUNTS, dropped=BITS, trailing=st.none() | INTEGERS,
    trailing_id=TEXTS, scene_tokens=few(SCENES), router=st.none() | INTEGERS,
    positions=few(POSITIONS), similarity=few(few(SIMILARITY)), lags=few(LAGS),
    passes=few(PASSES), placement=st.none() | PLACEMENT, placement_id=TEXTS,
)  # fmt: skip
EXCEEDANCES = st.dictionaries(
    st.builds(ExceedanceKey, LANES, TEXTS, TEXTS, WHOLE, WHOLE, TEXTS, TEXTS, TEXTS, WHOLE, TEXTS),
    st.builds(Exceedance, FLOATS, TEXTS, WHOLE, WHOLE, TEXTS, WHOLE, WHOLE, WHOLE),
    max_size=2,
)
JUDGEMENTS = st.builds(
    em.Judgement, version=few(TEXTS), judged=BITS, warn=BITS, red=BITS, exceedances=EXCEEDANCES
)
WINDOWS = st.builds(
    em.FinishedWindows, group=GROUPS, values=VALUES, tokens=INTEGERS,
    lag_overlap=st.none() | VALUES, judgement=st.none() | JUDGEMENTS,
)  # fmt: skip
HISTOGRAMS = st.dictionaries(
    st.builds(
        em.HistogramKey, lane=LANES, phase=TEXTS, minute_us=WHOLE, kind=KINDS, size=WHOLE,
        stride=WHOLE, scope_kind=SCOPES, scope_value=TEXTS, band=TEXTS,
    ),
    INTEGERS, max_size=2,
)  # fmt: skip
DELTAS = st.builds(
    em.SharedDelta, lane=LANES, phase=TEXTS, kind=KINDS, scope_kind=SCOPES, scope_value=TEXTS,
    pane=WHOLE, counts=COUNTS, dropped=BITS, seen=WHOLE, task=TEXTS, lost=WHOLE,
    unknown_gap=st.booleans(), first_time_us=WHOLE, last_time_us=WHOLE, request_gaps=INTEGERS,
    requests=WHOLE, scene_tokens=SCENES, last_of_task=st.booleans(), router=st.none() | INTEGERS,
    positions=POSITIONS, similarity=st.none() | SIMILARITY, lags=LAGS, passes=PASSES,
)  # fmt: skip
BATCHES = st.builds(
    accounts.BatchAccount, partition=TEXTS, offset=WHOLE, append_time_us=WHOLE, node=TEXTS,
    incarnation=st.integers(0, (1 << 64) - 1), sequence=WHOLE, model=TEXTS, revision=TEXTS,
    record_bytes=WHOLE, rows=WHOLE, accepted_rows=WHOLE, context_rows=WHOLE, padding_rows=WHOLE,
    recomputed_rows=WHOLE, stale_rows=WHOLE, late_rows=WHOLE, uncounted_phase_rows=WHOLE,
    suspicious_pairs=WHOLE, lost_rows=WHOLE, rejected_rows=WHOLE, verdict=TEXTS,
    reasons=few(TEXTS), unseen_rows=WHOLE,
)  # fmt: skip
PROGRESS = st.builds(
    accounts.PartitionProgress, partition=TEXTS, domain=TEXTS, emitted_to=WHOLE, replay_from=WHOLE,
    state=st.binary(max_size=40), watermark_us=WHOLE, step_low=WHOLE, sealed=st.booleans(),
    set_aside_us=few(WHOLE),
)  # fmt: skip
EMISSIONS = st.builds(
    em.Emission,
    progress=st.lists(PROGRESS, max_size=2, unique_by=lambda each: each.partition).map(tuple),
    windows=few(WINDOWS), histograms=HISTOGRAMS, deltas=few(DELTAS), batches=few(BATCHES),
    dead_letters=few(
        st.builds(
            accounts.DeadLetter, partition=TEXTS, offset=WHOLE, append_time_us=WHOLE, reason=TEXTS,
            detail=TEXTS, payload=st.binary(max_size=20),
        )
    ),
    references=few(
        st.builds(
            em.TrailingReference, reference_id=TEXTS, lane=LANES, phase=TEXTS, partition=TEXTS,
            effective_from_us=WHOLE, counts=INTEGERS,
        )
    ),
    placements=few(
        st.builds(
            em.PlacementNotice, lane=LANES, node=TEXTS, effective_from_us=WHOLE,
            placement=PLACEMENT,
        )
    ),
    nodes=few(
        st.builds(
            accounts.NodeStatus, partition=TEXTS, node=TEXTS, incarnation=WHOLE,
            last_sequence=WHOLE, watermark_us=WHOLE, state=TEXTS, lost_rows=WHOLE, gaps=WHOLE,
        )
    ),
    dead_letter_counts=few(
        st.builds(
            accounts.DeadLetterCount, partition=TEXTS, reason=TEXTS, records=WHOLE, kept=WHOLE,
            record_bytes=WHOLE,
        )
    ),
)  # fmt: skip
"""Without what does not travel: claim, `read_to` and `unread`."""
