"""An inference engine's schedule: which tokens each forward pass computes, and when.

Continuous batching with chunked prefill, first come first served, under a concurrency limit.
Between two events (an arrival, a prompt or a generation that ends) all passes are alike, so the
schedule is made of *segments* and expanded to rows at once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from moescope.core.vocabulary import Phase
from moescope.producers.simulator.prefix_cache import PrefixCache

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moescope.producers.simulator.requests import RequestTable


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """How fast a node computes.

    Attributes:
        max_concurrency: Most requests in prefill or decode at once.
        chunk_tokens: Most prompt tokens of one pass.
        pass_base_us: Time of a pass without tokens. token_us: What each token adds.
        prefix_caching: Whether known beginnings are skipped.
        cache_block_tokens, cache_tokens: Granularity and size of the prefix cache.
    """

    max_concurrency: int = 16
    chunk_tokens: int = 256
    pass_base_us: int = 22_000
    token_us: int = 90
    prefix_caching: bool = True
    cache_block_tokens: int = 16
    cache_tokens: int = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRows:
    """T computed tokens in order of time.

    Attributes:
        request: intp [T]. position: int64 [T]. phase: uint8 [T].
        event_time_us, pass_id: int64 [T].
        step: int64 [T], optimizer step, or None outside of training.
    """

    request: NDArray[np.intp]
    position: NDArray[np.int64]
    phase: NDArray[np.uint8]
    event_time_us: NDArray[np.int64]
    pass_id: NDArray[np.int64]
    step: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        """Number of tokens T."""
        return len(self.request)

    def part(self, first: int, end: int) -> EngineRows:
        """Rows `first` to `end` − 1."""
        return EngineRows(
            request=self.request[first:end],
            position=self.position[first:end],
            phase=self.phase[first:end],
            event_time_us=self.event_time_us[first:end],
            pass_id=self.pass_id[first:end],
            step=None if self.step is None else self.step[first:end],
        )

    def delayed(self, by_us: int) -> EngineRows:
        """The same rows, at other times."""
        return replace(self, event_time_us=self.event_time_us + by_us) if by_us else self

    def followed_by(self, other: EngineRows) -> EngineRows:
        """These rows and then others."""
        steps = [rows.step for rows in (self, other) if rows.step is not None]
        return EngineRows(
            request=np.concatenate([self.request, other.request]),
            position=np.concatenate([self.position, other.position]),
            phase=np.concatenate([self.phase, other.phase]),
            event_time_us=np.concatenate([self.event_time_us, other.event_time_us]),
            pass_id=np.concatenate([self.pass_id, other.pass_id]),
            step=np.concatenate(steps) if len(steps) == 2 else None,  # noqa: PLR2004 (both)
        )


class NodeEngine:
    """The engine of one node.

    Args:
        spec: Its speed and limits.
        table: All requests; `cached_tokens` is set here when a prompt starts.
        start_us: Event time at which the engine is idle.
    """

    def __init__(self, spec: EngineSpec, table: RequestTable, start_us: int) -> None:
        self._spec = spec
        self._table = table
        self._now = start_us
        self._pass = 0
        self._waiting: deque[tuple[int, int]] = deque()
        self._prefilling: deque[list[int]] = deque()  # [request, next position or -1]
        self._decoding: list[list[int]] = []  # [request, next position, tokens left]
        self._cache = PrefixCache(spec.cache_block_tokens, spec.cache_tokens)
        self._segments: list[tuple[int, int, int, int, int, int, int]] = []
        self._finished: list[tuple[int, int]] = []

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits or runs."""
        return not (self._waiting or self._prefilling or self._decoding)

    def enqueue(self, request: int, arrival_us: int) -> None:
        """Accept a request; arrivals come in order of time."""
        self._waiting.append((arrival_us, request))

    def advance(self, until_us: int) -> tuple[EngineRows, list[tuple[int, int]]]:
        """Compute everything that starts before a time.

        Returns:
            The rows, and the requests that finished with their times.
        """
        self._segments, self._finished = [], []
        while self._now < until_us:
            self._admit()
            if self._prefilling:
                self._mixed_pass()
            elif self._decoding:
                self._decode_passes(until_us)
            else:
                arrival = self._waiting[0][0] if self._waiting else until_us
                self._now = min(until_us, max(arrival, self._now))
        return _rows_of(self._segments), self._finished

    def _admit(self) -> None:
        running = len(self._prefilling) + len(self._decoding)
        while (
            self._waiting
            and self._waiting[0][0] <= self._now
            and running < self._spec.max_concurrency
        ):
            self._prefilling.append([self._waiting.popleft()[1], -1])
            running += 1

    def _mixed_pass(self) -> None:
        """One pass: a chunk of prompts, and a token of each generation."""
        room = self._spec.chunk_tokens
        computed = len(self._decoding)
        started = self._now
        ready: list[int] = []
        for request, position, _ in self._decoding:
            self._segments.append((request, Phase.DECODE, position, 1, started, 0, self._pass))
        while room and self._prefilling:
            head = self._prefilling[0]
            request = head[0]
            plan = self._table.plans[request]
            if head[1] < 0:
                head[1] = self._cache.match(plan) if self._spec.prefix_caching else 0
                self._table.set_cached(request, head[1])
            count = min(room, plan.prompt_tokens - head[1])
            phase = plan.first_phase
            self._segments.append((request, phase, head[1], count, started, 0, self._pass))
            head[1] += count
            room -= count
            computed += count
            if self._spec.prefix_caching:
                self._cache.store(plan, head[1])
            if head[1] == plan.prompt_tokens:
                self._prefilling.popleft()
                ready.append(request)
        self._now += self._duration(computed)
        self._pass += 1
        self._count_down(1)
        for request in ready:
            plan = self._table.plans[request]
            if plan.output_tokens > 1:
                self._decoding.append([request, plan.prompt_tokens, plan.output_tokens - 1])
            else:
                self._finish(request)

    def _decode_passes(self, until_us: int) -> None:
        """Passes without prompts, until the next event."""
        duration = self._duration(len(self._decoding))
        border = until_us
        if self._waiting and len(self._decoding) < self._spec.max_concurrency:
            border = min(border, max(self._waiting[0][0], self._now + 1))
        to_border = -(-(border - self._now) // duration)
        passes = min(to_border, *(left for _, _, left in self._decoding))
        for request, position, _ in self._decoding:
            self._segments.append(
                (request, Phase.DECODE, position, passes, self._now, duration, self._pass)
            )
        self._now += passes * duration
        self._pass += passes
        self._count_down(passes)

    def _count_down(self, passes: int) -> None:
        for entry in self._decoding:
            entry[1] += passes
            entry[2] -= passes
        for request, _, left in self._decoding:
            if left == 0:
                self._finish(request)
        self._decoding = [entry for entry in self._decoding if entry[2]]

    def _finish(self, request: int) -> None:
        plan = self._table.plans[request]
        if self._spec.prefix_caching:
            self._cache.store(plan, plan.last_position + 1)
        self._finished.append((request, self._now))

    def _duration(self, tokens: int) -> int:
        return self._spec.pass_base_us + self._spec.token_us * tokens


def _rows_of(segments: list[tuple[int, int, int, int, int, int, int]]) -> EngineRows:
    columns = np.array(segments, np.int64).reshape(-1, 7)
    request, phase, position, count, started, duration, first_pass = columns.T
    step = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    decoding = np.repeat(duration > 0, count)
    time = np.repeat(started, count) + step * np.repeat(duration, count)
    order = np.argsort(time, kind="stable")
    return EngineRows(
        request=np.repeat(request, count).astype(np.intp)[order],
        position=(np.repeat(position, count) + step)[order],
        phase=np.repeat(phase, count).astype(np.uint8)[order],
        event_time_us=time[order],
        pass_id=(np.repeat(first_pass, count) + step * decoding)[order],
    )
