"""Routing batches for tests: a seeded builder, and hypothesis strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st

from moescope.core.batch import (
    SEVERAL_RANKS,
    BatchHeader,
    DropCounters,
    Placement,
    Ranks,
    Requests,
    Routes,
    RoutingBatch,
    TimeBlocks,
    TokenBlocks,
    Tokens,
)
from moescope.core.vocabulary import (
    MAX_EXPERTS,
    Fidelity,
    IdSpace,
    Origin,
    Phase,
    RankOrder,
    RowFlag,
    ScoreKind,
    TokenIdKind,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

START_US = 1_700_000_000_000_000


def make_ids(
    seed: int,
    *,
    tokens: int,
    layers: int,
    experts: int,
    top_k: int,
    skew: float = 1.0,
) -> NDArray[np.uint16]:
    """Distinct expert ids [T, L, k] by Gumbel top-k from Zipf-like popularity per layer.

    Column 0 is the highest score. `skew` 0 gives uniform routing.
    """
    rng = np.random.default_rng(seed)
    log_popularity = -skew * np.log(np.arange(1, experts + 1, dtype=np.float32))
    log_popularity = rng.permuted(np.tile(log_popularity, (layers, 1)), axis=1)
    ids = np.empty((tokens, layers, top_k), np.uint16)
    for layer in range(layers):
        scores = rng.gumbel(size=(tokens, experts)).astype(np.float32) + log_popularity[layer]
        ids[:, layer] = np.argsort(-scores, axis=1)[:, :top_k]
    return ids


def make_header(**changes: Any) -> BatchHeader:
    """Build a header of a small model; any field can be given."""
    fields: dict[str, Any] = {
        "node": "node-0",
        "incarnation": 1,
        "sequence": 0,
        "model": "test-moe",
        "revision": "r1",
        "experts": 64,
        "top_k": 8,
        "layers": np.arange(4, dtype=np.uint16),
    }
    return BatchHeader(**(fields | changes))


def make_batch(
    seed: int = 0,
    *,
    tokens: int = 64,
    layers: int = 4,
    experts: int = 64,
    top_k: int = 8,
    requests: int = 4,
    prompt_tokens: int = 16,
    first_position: int = 0,
    start_us: int = START_US,
    us_per_token: int = 1_000,
    skew: float = 1.0,
    expert_ids: NDArray[np.integer[Any]] | None = None,
    header: dict[str, Any] | None = None,
    routes: dict[str, Any] | None = None,
) -> RoutingBatch:
    """Build a valid batch of full fidelity; the same arguments give the same batch.

    Rows are grouped by request, which get equal shares of the tokens, positions from
    `first_position` and the phase that follows from `prompt_tokens`. The i-th token of each
    request has event time `start_us + i · us_per_token` and pass i.

    Args:
        seed: Decides the routing.
        tokens: T.
        layers: L; layer indices are 0 … L − 1.
        experts: E.
        top_k: k.
        requests: R, at most T.
        prompt_tokens: Start of the decode phase of every request.
        first_position: Position of each request's first token.
        start_us: Event time of each request's first token.
        us_per_token: Event time between tokens of a request.
        skew: Of `make_ids`.
        expert_ids: [T, L, k], instead of ids from `make_ids`.
        header: Fields of the header to set.
        routes: Further arguments of `Routes.from_ids`.
    """
    if expert_ids is None:
        expert_ids = make_ids(
            seed, tokens=tokens, layers=layers, experts=experts, top_k=top_k, skew=skew
        )
    request = (np.arange(tokens) * requests // tokens).astype(np.int32)
    within = np.arange(tokens) - np.searchsorted(request, request)
    position = (first_position + within).astype(np.int32)
    phase_starts = np.full((requests, len(Phase)), -1, np.int32)
    phase_starts[:, Phase.PREFILL] = 0
    phase_starts[:, Phase.DECODE] = prompt_tokens
    shape = {"experts": experts, "top_k": top_k, "layers": np.arange(layers, dtype=np.uint16)}
    return RoutingBatch(
        header=make_header(**(shape | (header or {}))),
        requests=Requests(
            ids=tuple(f"request-{index}" for index in range(requests)),
            tasks=tuple(f"task-{index // 2}" for index in range(requests)),
            scenes=tuple(("chat", "code")[index % 2] for index in range(requests)),
            phase_starts=phase_starts,
            cached_tokens=np.zeros(requests, np.int32),
        ),
        tokens=Tokens(
            request=request,
            position=position,
            phase=np.where(position < prompt_tokens, Phase.PREFILL, Phase.DECODE).astype(np.uint8),
            flags=np.zeros(tokens, np.uint8),
            event_time_us=(start_us + within * us_per_token).astype(np.int64),
            pass_id=within.astype(np.int64),
        ),
        routes=Routes.from_ids(expert_ids, experts, **(routes or {})),
    )


def make_heartbeat(sequence: int = 0, **changes: Any) -> RoutingBatch:
    """Build a batch that only carries time and drop counters."""
    return RoutingBatch(header=make_header(sequence=sequence, **changes))


_names = st.text(st.characters(codec="utf-8"), max_size=12)
_int64 = st.integers(-(2**63), 2**63 - 1)
_counter = st.integers(0, 2**63 - 1)
_rank = st.integers(-1, 2**31 - 1)


@st.composite
def _headers(draw: st.DrawFn, fidelity: Fidelity, layers: int) -> BatchHeader:
    experts = draw(st.sampled_from([1, 2, 5, 64, 256, 257, 300]))
    spread = draw(st.lists(st.integers(1, 5), min_size=layers, max_size=layers))
    return BatchHeader(
        node=draw(_names.filter(bool)),
        incarnation=draw(st.integers(0, 2**64 - 1)),
        sequence=draw(_counter),
        model=draw(_names.filter(bool)),
        revision=draw(_names),
        experts=experts,
        top_k=draw(st.integers(1, min(experts, 9))),
        layers=np.cumsum(spread, dtype=np.int64).astype(np.uint16),
        watermark_us=draw(_int64),
        encoded_at_us=draw(_int64),
        engine=draw(_names),
        engine_version=draw(_names),
        origin=draw(st.sampled_from(Origin)),
        id_space=draw(st.sampled_from(IdSpace)),
        expert_map_version=draw(_counter),
        score_kind=draw(st.sampled_from(ScoreKind)),
        rank_order=draw(st.sampled_from(RankOrder)),
        fidelity=fidelity,
        sampling_ratio=draw(st.floats(1e-6, 1.0)) if fidelity is Fidelity.SAMPLED else 1.0,
        token_id_kind=draw(st.sampled_from(TokenIdKind)),
        ranks=Ranks(
            data_parallel=draw(_rank),
            tensor_parallel=draw(_rank),
            pipeline_parallel=draw(_rank),
            expert_parallel=draw(_rank),
        ),
        labels=draw(st.dictionaries(_names, _names, max_size=3)),
        drops=DropCounters(
            ring_rows=draw(_counter),
            log_batches=draw(_counter),
            log_rows=draw(_counter),
            rejected_rows=draw(_counter),
            unseen_rows=draw(st.just(0) | _counter),
        ),
        placement=draw(st.none() | _placements(layers, experts)),
    )


@st.composite
def _placements(draw: st.DrawFn, layers: int, experts: int) -> Placement:
    ranks = draw(st.integers(1, 9) | st.just(SEVERAL_RANKS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rank_of = rng.integers(0, ranks, (layers, experts), dtype=np.uint16)
    rank_of[rng.random((layers, experts)) < draw(st.sampled_from([0.0, 0.3]))] = SEVERAL_RANKS
    return Placement(version=draw(_counter), ranks=ranks, rank_of=rank_of)


def _strings(draw: st.DrawFn, count: int) -> tuple[str, ...]:
    return tuple(draw(st.lists(_names, min_size=count, max_size=count)))


def _requests(draw: st.DrawFn, rng: np.random.Generator) -> Requests:
    count = draw(st.integers(1, 5))
    return Requests(
        ids=_strings(draw, count),
        tasks=_strings(draw, count),
        scenes=_strings(draw, count),
        phase_starts=rng.integers(-1, 2**31, (count, len(Phase)), dtype=np.int32),
        cached_tokens=rng.integers(0, 2**31, count, dtype=np.int32),
    )


def _optional(draw: st.DrawFn, column: Any) -> Any:
    return column if draw(st.booleans()) else None


def _random_int64(rng: np.random.Generator, count: int) -> NDArray[np.int64]:
    """Draw runs, slow growth or anything at all."""
    kind = rng.integers(3)
    if kind == 0:
        return np.full(count, rng.integers(-(2**63), 2**63 - 1), np.int64)
    if kind == 1:
        return np.cumsum(rng.integers(0, 1_000, count), dtype=np.int64)
    return rng.integers(-(2**63), 2**63 - 1, count, dtype=np.int64)


def _tokens(
    draw: st.DrawFn, rng: np.random.Generator, header: BatchHeader, requests: int, count: int
) -> Tokens:
    token_ids = rng.integers(0, 2**64, count, dtype=np.uint64)
    return Tokens(
        request=rng.integers(0, requests, count, dtype=np.int32),
        position=rng.integers(0, 2**31, count, dtype=np.int32),
        phase=rng.integers(0, len(Phase), count, dtype=np.uint8),
        flags=rng.integers(0, sum(RowFlag) + 1, count, dtype=np.uint8),
        event_time_us=_optional(draw, _random_int64(rng, count)),
        pass_id=_optional(draw, _random_int64(rng, count)),
        step=_optional(draw, _random_int64(rng, count)),
        token_id=None if header.token_id_kind is TokenIdKind.OFF else _optional(draw, token_ids),
        content_key=_optional(draw, token_ids[::-1].copy()),
        block=_optional(draw, rng.integers(-(2**31), 2**31, count, dtype=np.int32)),
    )


def _routes(draw: st.DrawFn, rng: np.random.Generator, header: BatchHeader, tokens: int) -> Routes:
    shape = (tokens, len(header.layers), header.top_k)
    bound = draw(st.sampled_from([header.experts, header.experts, header.experts + 3, MAX_EXPERTS]))
    ids = rng.integers(0, bound, shape)
    has_top1 = header.rank_order is not RankOrder.UNKNOWN and draw(st.booleans())
    return Routes.from_ids(
        ids,
        header.experts,
        ranked=has_top1,
        dropped=_optional(draw, rng.random(shape) < draw(st.sampled_from([0.01, 0.5]))),
        weights=_optional(draw, rng.random(shape, dtype=np.float32)),
        weight_bits=draw(st.sampled_from([4, 8, 16])),
        entropy=_optional(draw, rng.random(shape[:2]) * 5),
        margin=_optional(draw, rng.random(shape[:2])),
    )


@st.composite
def routing_batches(draw: st.DrawFn) -> RoutingBatch:
    """Any valid small batch: full, sampled, counts or heartbeat."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    fidelity = draw(st.sampled_from(Fidelity))
    if draw(st.integers(0, 9)) == 0:
        return RoutingBatch(header=draw(_headers(fidelity, draw(st.integers(0, 3)))))
    header = draw(_headers(fidelity, draw(st.integers(1, 4))))
    requests = _requests(draw, rng)
    if fidelity is not Fidelity.COUNTS:
        count = draw(st.integers(1, 40))
        return RoutingBatch(
            header=header,
            requests=requests,
            tokens=_tokens(draw, rng, header, len(requests), count),
            routes=_routes(draw, rng, header, count),
        )
    return RoutingBatch(
        header=header,
        requests=requests,
        token_blocks=_optional(draw, _token_blocks(draw, rng, header, len(requests))),
        time_blocks=_optional(draw, _time_blocks(draw, rng, header)),
    )


def _counts(rng: np.random.Generator, header: BatchHeader, blocks: int) -> NDArray[np.uint32]:
    largest = rng.choice([2, 100, 2**32])
    return rng.integers(0, largest, (blocks, len(header.layers), header.experts), dtype=np.uint32)


def _token_blocks(
    draw: st.DrawFn, rng: np.random.Generator, header: BatchHeader, requests: int
) -> TokenBlocks:
    count = draw(st.integers(1, 6))
    return TokenBlocks(
        request=rng.integers(0, requests, count, dtype=np.int32),
        phase=rng.integers(0, len(Phase), count, dtype=np.uint8),
        flags=rng.integers(0, sum(RowFlag) + 1, count, dtype=np.uint8),
        start_position=rng.integers(0, 2**31, count, dtype=np.int32),
        tokens=rng.integers(0, 129, count, dtype=np.int32),
        counts=_counts(rng, header, count),
        first_time_us=_optional(draw, _random_int64(rng, count)),
        last_time_us=_optional(draw, _random_int64(rng, count)),
        step=_optional(draw, _random_int64(rng, count)),
        dropped=_optional(draw, _counts(rng, header, count).sum(2, dtype=np.uint32)),
    )


def _time_blocks(draw: st.DrawFn, rng: np.random.Generator, header: BatchHeader) -> TimeBlocks:
    count = draw(st.integers(1, 6))
    scenes = _strings(draw, draw(st.integers(1, 3)))
    return TimeBlocks(
        second_us=_random_int64(rng, count),
        phase=rng.integers(0, len(Phase), count, dtype=np.uint8),
        scene=rng.integers(0, len(scenes), count, dtype=np.uint16),
        scenes=scenes,
        tokens=rng.integers(0, 2**63 - 1, count, dtype=np.int64),
        requests=rng.integers(0, 2**31, count, dtype=np.int32),
        counts=_counts(rng, header, count),
        dropped=_optional(draw, _counts(rng, header, count).sum(2, dtype=np.uint32)),
    )
