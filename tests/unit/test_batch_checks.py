from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.batches import make_batch, make_header, make_heartbeat

from moescope.core.batch import (
    SEVERAL_RANKS,
    BatchError,
    DropCounters,
    Placement,
    Quantised,
    Ranks,
    Requests,
    Routes,
    RoutingBatch,
    TimeBlocks,
    TokenBlocks,
    Tokens,
)
from moescope.core.vocabulary import Fidelity, RankOrder

TOKENS, LAYERS, EXPERTS, TOP_K, REQUESTS = 12, 2, 8, 3, 2


@pytest.fixture
def batch() -> RoutingBatch:
    """A small valid batch."""
    return make_batch(
        1, tokens=TOKENS, layers=LAYERS, experts=EXPERTS, top_k=TOP_K, requests=REQUESTS
    )


def token_blocks(**changes: Any) -> TokenBlocks:
    """Two valid pieces of blocks."""
    columns: dict[str, Any] = {
        "request": np.zeros(2, np.int32),
        "phase": np.zeros(2, np.uint8),
        "flags": np.zeros(2, np.uint8),
        "start_position": np.zeros(2, np.int32),
        "tokens": np.ones(2, np.int32),
        "counts": np.ones((2, LAYERS, EXPERTS), np.uint32),
    }
    return TokenBlocks(**(columns | changes))


def time_blocks(**changes: Any) -> TimeBlocks:
    """Two valid seconds."""
    columns: dict[str, Any] = {
        "second_us": np.zeros(2, np.int64),
        "phase": np.zeros(2, np.uint8),
        "scene": np.zeros(2, np.uint16),
        "scenes": ("chat",),
        "tokens": np.ones(2, np.int64),
        "requests": np.ones(2, np.int32),
        "counts": np.ones((2, LAYERS, EXPERTS), np.uint32),
    }
    return TimeBlocks(**(columns | changes))


def counts_batch(batch: RoutingBatch, **parts: Any) -> RoutingBatch:
    """A batch of counts fidelity with the same header and requests."""
    header = replace(batch.header, fidelity=Fidelity.COUNTS)
    return RoutingBatch(header=header, requests=batch.requests, **parts)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("node", ""),
        ("node", 7),
        ("node", "\ud800"),
        ("node", "x" * 4_097),
        ("model", ""),
        ("revision", None),
        ("incarnation", -1),
        ("incarnation", 2**64),
        ("sequence", 2**63),
        ("sequence", True),
        ("experts", 0),
        ("experts", 65_536),
        ("top_k", 0),
        ("top_k", 65),
        ("watermark_us", 2**63),
        ("encoded_at_us", 1.5),
        ("expert_map_version", -1),
        ("origin", 0),
        ("fidelity", 9),
        ("layers", np.array([1, 1], np.uint16)),
        ("layers", np.array([2, 1], np.uint16)),
        ("layers", np.array([1, 2], np.int64)),
        ("layers", [1, 2]),
        ("layers", np.arange(4_097, dtype=np.uint16)),
        ("sampling_ratio", 0.5),
        ("sampling_ratio", float("nan")),
        ("sampling_ratio", 0.0),
        ("labels", {"key": 1}),
        ("labels", {str(index): "" for index in range(257)}),
        ("ranks", Ranks(data_parallel=-2)),
    ],
)
def test_header_fields_out_of_range_are_refused(field: str, value: Any) -> None:
    """A header that cannot be written, or means nothing, is an error where it is made."""
    with pytest.raises(BatchError):
        make_heartbeat(**{field: value})


@pytest.mark.parametrize(
    "changes",
    [
        {"version": -1},
        {"ranks": 0},
        {"ranks": 65_536},
        {"ranks": 3},
        {"rank_of": np.zeros((4, 63), np.uint16)},
        {"rank_of": np.zeros((4, 64), np.int64)},
    ],
)
def test_placement_out_of_range_is_refused(changes: dict[str, Any]) -> None:
    """A placement names a rank of its own for each expert of each layer, or several."""
    columns: dict[str, Any] = {
        "version": 1,
        "ranks": 4,
        "rank_of": np.tile(np.arange(64, dtype=np.uint16) % 4, (4, 1)),
    }
    columns["rank_of"][1, 5] = SEVERAL_RANKS
    make_heartbeat(placement=Placement(**columns))
    with pytest.raises(BatchError, match="placement"):
        make_heartbeat(placement=Placement(**(columns | changes)))


def test_unseen_rows_are_lost_rows() -> None:
    """Rows that nobody could see lower coverage as any other lost row."""
    drops = DropCounters(ring_rows=1, log_rows=2, rejected_rows=4, unseen_rows=8)
    assert drops.lost_rows == 11
    with pytest.raises(BatchError, match="unseen_rows"):
        make_heartbeat(drops=DropCounters(unseen_rows=-1))


def test_sampled_fidelity_takes_a_ratio() -> None:
    """The one case in which a ratio below 1 means something."""
    make_heartbeat(fidelity=Fidelity.SAMPLED, sampling_ratio=0.25)
    with pytest.raises(BatchError, match="sampling_ratio"):
        make_heartbeat(fidelity=Fidelity.SAMPLED, sampling_ratio=1.5)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("request", np.full(TOKENS, REQUESTS, np.int32)),
        ("request", np.full(TOKENS, -1, np.int32)),
        ("request", np.zeros(TOKENS, np.int64)),
        ("request", np.zeros(TOKENS + 1, np.int32)),
        ("request", np.zeros(0, np.int32)),
        ("position", np.full(TOKENS, -1, np.int32)),
        ("position", np.zeros((TOKENS, 1), np.int32)),
        ("phase", np.full(TOKENS, 6, np.uint8)),
        ("flags", np.full(TOKENS, 32, np.uint8)),
        ("event_time_us", np.zeros(TOKENS)),
        ("pass_id", np.zeros(TOKENS - 1, np.int64)),
        ("step", np.zeros(TOKENS, np.int32)),
        ("token_id", np.zeros(TOKENS, np.uint64)),
        ("content_key", np.zeros(TOKENS, np.int64)),
        ("block", np.zeros(TOKENS, np.int64)),
    ],
)
def test_token_columns_that_do_not_fit_are_refused(
    batch: RoutingBatch,
    field: str,
    value: Any,
) -> None:
    """Kernels index with these columns and do not look again."""
    assert batch.tokens is not None
    columns = {name: getattr(batch.tokens, name) for name in Tokens.__dataclass_fields__}
    with pytest.raises(BatchError):
        replace(batch, tokens=Tokens(**(columns | {field: value})))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gaps", np.zeros((TOP_K, LAYERS, TOKENS), np.int16)),
        ("gaps", np.zeros((TOP_K, LAYERS, TOKENS + 1), np.uint8)),
        ("gaps", np.full((TOP_K, LAYERS, TOKENS), 100, np.uint8)),
        ("gaps", np.full((TOP_K, LAYERS, TOKENS), 30_000, np.uint16)),
        ("relabelling", np.zeros((LAYERS, EXPERTS), np.uint16)),
        ("relabelling", np.tile(np.arange(1, EXPERTS + 1, dtype=np.uint16), (LAYERS, 1))),
        ("relabelling", np.tile(np.arange(EXPERTS, dtype=np.uint16), (LAYERS + 1, 1))),
        ("top1", np.full((LAYERS, TOKENS), TOP_K, np.uint8)),
        ("top1", np.zeros((TOKENS, LAYERS), np.uint8)),
        ("weights", Quantised(codes=np.zeros((LAYERS, TOKENS), np.uint8), bits=8)),
        ("entropy", Quantised(codes=np.zeros((LAYERS, TOKENS), np.uint8), bits=16)),
        ("entropy", Quantised(codes=np.full((LAYERS, TOKENS), 16, np.uint8), bits=4)),
        ("margin", Quantised(codes=np.zeros((LAYERS, TOKENS), np.uint8), bits=5)),
        ("dropped", np.zeros((TOP_K, LAYERS, TOKENS), np.uint8)),
    ],
)
def test_routes_that_do_not_fit_are_refused(
    batch: RoutingBatch,
    field: str,
    value: Any,
) -> None:
    """Prefix sums of accepted gaps never overflow, and every accepted code has a meaning."""
    assert batch.routes is not None
    columns = {name: getattr(batch.routes, name) for name in Routes.__dataclass_fields__}
    header = replace(batch.header, rank_order=RankOrder.WEIGHT)
    with pytest.raises(BatchError, match=rf"routes\.{field}"):
        replace(batch, header=header, routes=Routes(**(columns | {field: value})))


def test_top1_needs_a_rank_order(batch: RoutingBatch) -> None:
    """Many engines return unordered ids: then nobody may claim a top-1."""
    assert batch.routes is not None
    top1 = np.zeros((LAYERS, TOKENS), np.uint8)
    with pytest.raises(BatchError, match="rank_order"):
        replace(batch, routes=replace(batch.routes, top1=top1))


@pytest.mark.parametrize(
    "changes",
    [
        {"ids": ("a",)},
        {"tasks": ["a", "b"]},
        {"scenes": ("a", 1)},
        {"phase_starts": np.zeros((2, 5), np.int32)},
        {"phase_starts": np.full((2, 6), -2, np.int32)},
        {"cached_tokens": np.full(2, -1, np.int32)},
    ],
)
def test_requests_that_do_not_fit_are_refused(changes: dict[str, Any]) -> None:
    """Each request has a name, a task, a scene and its phases."""
    columns: dict[str, Any] = {
        "ids": ("a", "b"),
        "tasks": ("", ""),
        "scenes": ("", ""),
        "phase_starts": np.zeros((2, 6), np.int32),
        "cached_tokens": np.zeros(2, np.int32),
    }
    RoutingBatch(header=make_header(), requests=Requests(**columns))
    with pytest.raises(BatchError, match="requests"):
        RoutingBatch(header=make_header(), requests=Requests(**(columns | changes)))


@pytest.mark.parametrize(
    ("blocks", "changes"),
    [
        (token_blocks, {"request": np.full(2, REQUESTS, np.int32)}),
        (token_blocks, {"phase": np.full(2, 6, np.uint8)}),
        (token_blocks, {"flags": np.full(2, 64, np.uint8)}),
        (token_blocks, {"start_position": np.full(2, -1, np.int32)}),
        (token_blocks, {"tokens": np.full(2, -1, np.int32)}),
        (token_blocks, {"step": np.zeros(3, np.int64)}),
        (token_blocks, {"counts": np.ones((2, EXPERTS, LAYERS), np.uint32)}),
        (token_blocks, {"dropped": np.ones(2, np.uint32)}),
        (time_blocks, {"second_us": np.zeros(2)}),
        (time_blocks, {"phase": np.full(2, 6, np.uint8)}),
        (time_blocks, {"scene": np.ones(2, np.uint16)}),
        (time_blocks, {"scenes": ["chat"]}),
        (time_blocks, {"tokens": np.full(2, -1, np.int64)}),
        (time_blocks, {"requests": np.full(2, -1, np.int32)}),
        (time_blocks, {"counts": np.ones((2, LAYERS, EXPERTS), np.int64)}),
        (time_blocks, {"dropped": np.ones((2, LAYERS), np.uint64)}),
    ],
)
def test_blocks_that_do_not_fit_are_refused(
    batch: RoutingBatch,
    blocks: Any,
    changes: dict[str, Any],
) -> None:
    """Counts fidelity is checked as strictly as tokens are."""
    name = blocks.__name__
    assert not counts_batch(batch, **{name: blocks()}).is_heartbeat
    with pytest.raises(BatchError, match=name):
        counts_batch(batch, **{name: blocks(**changes)})


def test_parts_go_with_the_fidelity(batch: RoutingBatch) -> None:
    """No window can count one token twice, as a row and in a block."""
    with pytest.raises(BatchError, match="together"):
        replace(batch, routes=None)
    with pytest.raises(BatchError, match="fidelity"):
        replace(batch, token_blocks=token_blocks())
    with pytest.raises(BatchError, match="fidelity"):
        counts_batch(batch, tokens=batch.tokens, routes=batch.routes)


def test_only_heartbeats_have_no_layers(batch: RoutingBatch) -> None:
    """A producer can report that it lives before it knows its model's layers."""
    no_layers = np.empty(0, np.uint16)
    assert make_heartbeat(layers=no_layers).is_heartbeat
    with pytest.raises(BatchError, match="layers"):
        replace(batch, header=replace(batch.header, layers=no_layers))
