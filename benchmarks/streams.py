"""Made-up traffic: expert ids, and batches of requests that go on from batch to batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from moescope.core.batch import BatchHeader, Requests, Routes, RoutingBatch, Tokens
from moescope.core.vocabulary import Phase, RankOrder, RowFlag

if TYPE_CHECKING:
    from numpy.typing import NDArray

LAYERS = 32
EXPERTS = 64
TOP_K = 8
WINDOW = 128
PROMPT = 100
START_US = 1_798_761_600_000_000
DISTINCT_ROUTES = 8
SECOND_US = 1_000_000


def zipf_popularity(layers: int, experts: int, skew: float, seed: int = 0) -> NDArray[np.float64]:
    """Popularity [L, E] ∝ rank^−skew, with its own order of experts per layer."""
    rng = np.random.default_rng(seed)
    ranked = np.arange(1, experts + 1, dtype=np.float64) ** -skew
    return rng.permuted(np.tile(ranked / ranked.sum(), (layers, 1)), axis=1)


def draw_ids(
    tokens: int, popularity: NDArray[np.float64], top_k: int, seed: int
) -> NDArray[np.uint8]:
    """Distinct ids [T, L, k], by successive draws in proportion to popularity (Gumbel top-k)."""
    rng = np.random.default_rng(seed)
    layers, experts = popularity.shape
    ids = np.empty((tokens, layers, top_k), np.uint8)
    for layer in range(layers):
        # Exponential waiting times: the k first arrivals are k successive draws.
        waiting = rng.standard_exponential((tokens, experts), np.float32)
        waiting /= popularity[layer].astype(np.float32)
        ids[:, layer] = np.argpartition(waiting, top_k - 1, axis=1)[:, :top_k]
    return ids


@dataclass(frozen=True)
class Stream:
    """Open requests of one node that take turns, a few positions further with each batch.

    Requests stand anywhere in their windows, so that borders fall inside of batches.

    Attributes:
        open_requests: All of them; a multiple of `requests_per_batch`.
        tokens_per_request: Positions per request and batch.
        requests_per_batch: Requests in a batch.
        batch_us: Event time from batch to batch; rows of a batch spread over less.
        context: Rows before each request's new ones that the batch repeats.
        ranked: Whether the first-ranked expert of each row is known.
        scored: Whether score entropy and margin of each row are known.
        passes: Whether rows have pass ids: each pass computes a position of every request of the
            batch.
    """

    open_requests: int
    tokens_per_request: int
    requests_per_batch: int
    batch_us: int
    layers: int = LAYERS
    experts: int = EXPERTS
    top_k: int = TOP_K
    node: str = "bench-000"
    seed: int = 1
    context: int = 0
    ranked: bool = False
    scored: bool = False
    passes: bool = False
    _requests: dict[int, Requests] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows per batch, context rows included."""
        return self.requests_per_batch * (self.context + self.tokens_per_request)

    @property
    def assignments(self) -> int:
        """Assignments that a batch brings: those of context rows were counted before."""
        return self.requests_per_batch * self.tokens_per_request * self.layers * self.top_k

    @cached_property
    def ids(self) -> list[NDArray[np.uint8]]:
        """Ids [T, L, k] of a few different batches."""
        popularity = zipf_popularity(self.layers, self.experts, 0.7, self.seed)
        return [
            draw_ids(self.rows, popularity, self.top_k, self.seed + index)
            for index in range(DISTINCT_ROUTES)
        ]

    @cached_property
    def routes(self) -> list[Routes]:
        """The same as gap planes; batches take turns with them."""
        if not self.scored:
            return [Routes.from_ids(ids, self.experts, ranked=self.ranked) for ids in self.ids]
        rng = np.random.default_rng(self.seed)
        shape = (self.rows, self.layers)
        return [
            Routes.from_ids(
                ids, self.experts, ranked=self.ranked,
                entropy=rng.uniform(0, np.log(self.experts), shape),
                margin=rng.uniform(0, 0.2, shape),
            )
            for ids in self.ids
        ]  # fmt: skip

    @cached_property
    def counted(self) -> NDArray[np.bool_]:
        """Rows of a batch that are not repeated."""
        within = np.arange(self.rows) % (self.context + self.tokens_per_request)
        return within >= self.context

    @cached_property
    def _first_positions(self) -> NDArray[np.int64]:
        return PROMPT + np.random.default_rng(self.seed).integers(0, WINDOW, self.open_requests)

    def batch(self, index: int) -> RoutingBatch:
        """The batch of that index, from 0."""
        groups = self.open_requests // self.requests_per_batch
        turn, group = divmod(index, groups)
        first = group * self.requests_per_batch
        within = np.arange(-self.context, self.tokens_per_request)
        start = self._first_positions[first : first + self.requests_per_batch]
        position = (start[:, None] + turn * self.tokens_per_request + within).reshape(-1)
        time = START_US + index * self.batch_us
        spread = self.batch_us // 2 * np.maximum(within, 0) // self.tokens_per_request
        request = np.repeat(np.arange(self.requests_per_batch), len(within))
        pass_id = np.maximum(index * self.tokens_per_request + within, 0)
        return RoutingBatch(
            header=BatchHeader(
                node=self.node,
                incarnation=1,
                sequence=index,
                model="bench-moe",
                revision="r1",
                experts=self.experts,
                top_k=self.top_k,
                layers=np.arange(self.layers, dtype=np.uint16),
                watermark_us=time + self.batch_us,
                encoded_at_us=time + self.batch_us,
                rank_order=RankOrder.SELECTION_SCORE if self.ranked else RankOrder.UNKNOWN,
            ),
            requests=self._group(group, first),
            tokens=Tokens(
                request=request.astype(np.int32),
                position=position.astype(np.int32),
                phase=np.full(self.rows, Phase.DECODE, np.uint8),
                flags=np.where(self.counted, 0, RowFlag.CONTEXT).astype(np.uint8),
                event_time_us=np.tile(time + spread, self.requests_per_batch).astype(np.int64),
                pass_id=np.tile(pass_id, self.requests_per_batch) if self.passes else None,
            ),
            routes=self.routes[index % DISTINCT_ROUTES],
        )

    def _group(self, group: int, first: int) -> Requests:
        known = self._requests.get(group)
        if known is None:
            numbers = range(first, first + self.requests_per_batch)
            starts = np.full((len(numbers), len(Phase)), -1, np.int32)
            starts[:, Phase.PREFILL] = 0
            starts[:, Phase.DECODE] = PROMPT
            known = self._requests[group] = Requests(
                ids=tuple(f"request-{number:08d}" for number in numbers),
                tasks=tuple(f"task-{number // 2:08d}" for number in numbers),
                scenes=tuple(("chat", "code")[number % 2] for number in numbers),
                phase_starts=starts,
                cached_tokens=np.zeros(len(numbers), np.int32),
            )
        return known


def dense_stream(*, quick: bool = False, context: int = 0, ranked: bool = False) -> Stream:
    """128 positions per request and batch: prompts, or decode that was batched for long."""
    if quick:
        return Stream(8, WINDOW, 2, 100_000, context=context, ranked=ranked)
    return Stream(320, WINDOW, 32, 100_000, context=context, ranked=ranked)


def sparse_stream(*, quick: bool = False, context: int = 0, ranked: bool = False) -> Stream:
    """5 positions per request and batch of 9,600 open requests: decode, shipped every 200 ms."""
    if quick:
        return Stream(240, 5, 20, 16_667, context=context, ranked=ranked)
    return Stream(9_600, 5, 800, 16_667, context=context, ranked=ranked)
