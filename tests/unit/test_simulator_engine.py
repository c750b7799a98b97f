"""The simulated engine schedules like a real one: passes, chunks, concurrency, prefix cache."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from moescope.core.vocabulary import Phase
from moescope.producers.simulator.engine import EngineRows, EngineSpec, NodeEngine
from moescope.producers.simulator.prefix_cache import PrefixCache
from moescope.producers.simulator.requests import RequestPlan, RequestTable

PLAN = RequestPlan(
    id="r",
    task="t",
    scene="s",
    prompt_tokens=10,
    output_tokens=5,
    content_seed=1,
    domain=0,
)
SPEC = EngineSpec(
    max_concurrency=3,
    chunk_tokens=8,
    pass_base_us=1_000,
    token_us=10,
    prefix_caching=False,
)
LENGTHS = st.lists(
    st.tuples(st.integers(1, 30), st.integers(1, 20), st.integers(0, 60_000)),
    min_size=1,
    max_size=12,
)


def computed(
    lengths: list[tuple[int, int, int]], step_us: int
) -> tuple[list[tuple[int, int, int, int, int]], list[tuple[int, int]]]:
    """Rows (request, position, phase, time, pass), and finishes, advancing in steps."""
    table = RequestTable()
    engine = NodeEngine(SPEC, table, 0)
    arrivals = sorted(lengths, key=lambda item: item[2])
    for number, (prompt, output, arrival) in enumerate(arrivals):
        plan = replace(
            PLAN, id=f"r{number}", prompt_tokens=prompt, output_tokens=output, content_seed=number
        )
        engine.enqueue(table.add(plan), arrival)
    rows: list[tuple[int, int, int, int, int]] = []
    finished: list[tuple[int, int]] = []
    until = 0
    while not engine.is_idle:
        until += step_us
        part, done = engine.advance(until)
        rows += tuples(part)
        finished += done
    return rows, finished


def tuples(rows: EngineRows) -> list[tuple[int, int, int, int, int]]:
    """Rows as tuples."""
    columns = rows.request, rows.position, rows.phase, rows.event_time_us, rows.pass_id
    return list(zip(*(column.tolist() for column in columns), strict=True))


@settings(max_examples=40)
@given(LENGTHS)
def test_every_token_is_computed_once_in_order(lengths: list[tuple[int, int, int]]) -> None:
    """A request computes its prompt and all generated tokens but the last one."""
    rows, finished = computed(lengths, 10_000)
    by_request = defaultdict(list)
    for request, position, phase, time, _ in rows:
        by_request[request].append((position, phase, time))
    arrivals = sorted(lengths, key=lambda item: item[2])
    assert sorted(request for request, _ in finished) == list(range(len(lengths)))
    for number, (prompt, output, arrival) in enumerate(arrivals):
        found = by_request[number]
        assert [position for position, _, _ in found] == list(range(prompt + output - 1))
        expected = [Phase.PREFILL] * prompt + [Phase.DECODE] * (output - 1)
        assert [phase for _, phase, _ in found] == expected
        assert all(time >= arrival for _, _, time in found)


@settings(max_examples=40)
@given(LENGTHS)
def test_passes_respect_the_engine_s_limits(lengths: list[tuple[int, int, int]]) -> None:
    """At most a chunk of prompt tokens, a token per generation, and so many requests."""
    rows, _ = computed(lengths, 10_000)
    prompts: Counter[int] = Counter()
    decodes: Counter[tuple[int, int]] = Counter()
    requests = defaultdict(set)
    times = defaultdict(set)
    for request, _, phase, time, number in rows:
        requests[number].add(request)
        times[number].add(time)
        if phase == Phase.PREFILL:
            prompts[number] += 1
        else:
            decodes[number, request] += 1
    assert all(count <= SPEC.chunk_tokens for count in prompts.values())
    assert all(count == 1 for count in decodes.values())
    assert all(len(running) <= SPEC.max_concurrency for running in requests.values())
    assert all(len(moments) == 1 for moments in times.values())


@settings(max_examples=40)
@given(LENGTHS, st.integers(500, 40_000))
def test_how_far_it_is_advanced_at_a_time_changes_nothing(
    lengths: list[tuple[int, int, int]], step_us: int
) -> None:
    """Seconds are only where the log is cut, not where the engine stops."""
    assert sorted(computed(lengths, step_us)[0]) == sorted(computed(lengths, 1_000_000)[0])


def test_the_prefix_cache_keeps_whole_blocks_and_leaves_the_last_token() -> None:
    """An engine always computes the last prompt token, and reuses whole blocks only."""
    cache = PrefixCache(block_tokens=4, capacity_tokens=1_000)
    assert cache.match(PLAN) == 0
    cache.store(PLAN, 10)
    assert cache.match(PLAN) == 8
    assert cache.match(replace(PLAN, prompt_tokens=8)) == 4
    assert cache.match(replace(PLAN, content_seed=2)) == 0


def test_the_prefix_cache_shares_prefixes_and_forgets_the_oldest() -> None:
    """A shared beginning is reused by other contents; capacity evicts by last use."""
    cache = PrefixCache(block_tokens=2, capacity_tokens=20)
    first = replace(PLAN, prefix_tokens=6, prefix_seed=9)
    cache.store(first, 10)
    other = replace(first, content_seed=2)
    assert cache.match(other) == 6
    assert cache.match(replace(other, prefix_seed=8)) == 0
    for seed in range(10, 14):
        cache.store(replace(PLAN, content_seed=seed), 10)
    assert cache.match(other) == 0
