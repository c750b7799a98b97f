"""The simulator writes what an agent would: numbered, grouped, bounded, sealed batches."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.small_fleet import (
    SMALL_MODEL,
    counted_rows,
    rows_of,
    simulate_small,
)

from moescope.core.batchlog import partition_path
from moescope.core.vocabulary import Phase, RowFlag
from moescope.producers.simulator import SCENARIOS, SimulationError, simulate

if TYPE_CHECKING:
    from pathlib import Path

    from support.decoded_logs import LoggedBatch

    from moescope.producers.simulator import SimulationTotals

Simulated = tuple["SimulationTotals", dict[str, list["LoggedBatch"]]]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    """Twenty seconds of two healthy nodes without prefix caching."""
    root = tmp_path_factory.mktemp("healthy")
    return simulate_small(SCENARIOS["healthy_uncached"], root, duration_s=20, nodes=2)


def test_sequences_are_dense_and_nodes_keep_their_incarnation(healthy: Simulated) -> None:
    """A gap in the sequence means loss: a healthy log must not have one."""
    for name, logged in healthy[1].items():
        assert {item.batch.header.node for item in logged} == {name}
        assert len({item.batch.header.incarnation for item in logged}) == 1
        assert [item.batch.header.sequence for item in logged] == list(range(len(logged)))


def test_batches_are_short_and_small(healthy: Simulated) -> None:
    """A batch covers at most a second of event time and encodes to at most 1 MiB."""
    for logged in healthy[1].values():
        for batch, record in logged:
            assert len(record.payload) <= 1 << 20
            if batch.tokens is None or batch.tokens.event_time_us is None:
                continue
            counted = batch.tokens.flags & RowFlag.CONTEXT == 0
            times = batch.tokens.event_time_us[counted]
            assert times.max() - times.min() < 1_000_000


def test_nothing_earlier_follows_a_watermark(healthy: Simulated) -> None:
    """A row below an earlier watermark would be late in every window."""
    for logged in healthy[1].values():
        watermark = 0
        for batch, record in logged:
            if batch.tokens is not None and batch.tokens.event_time_us is not None:
                counted = batch.tokens.flags & RowFlag.CONTEXT == 0
                assert batch.tokens.event_time_us[counted].min() >= watermark
            assert batch.header.watermark_us >= watermark
            watermark = batch.header.watermark_us
            assert watermark <= batch.header.encoded_at_us <= record.append_time_us


def test_every_request_is_complete_and_in_order(healthy: Simulated) -> None:
    """Positions run from 0 without gaps, through prefill into decode, to the last row."""
    for logged in healthy[1].values():
        by_request = defaultdict(list)
        for row in counted_rows(logged):
            by_request[row.request].append(row)
        finished = 0
        for rows in by_request.values():
            assert [row.position for row in rows] == list(range(len(rows)))
            phases = [row.phase for row in rows]
            assert phases == sorted(phases)
            assert [row.time_us for row in rows] == sorted(row.time_us for row in rows)
            ends = [bool(row.flags & RowFlag.LAST_OF_REQUEST) for row in rows]
            assert not any(ends[:-1])
            finished += ends[-1]
        assert finished > 0


def test_a_continuing_request_starts_with_its_last_two_rows(healthy: Simulated) -> None:
    """Sequence metrics over batch borders need exactly the two rows before."""
    continued = 0
    for logged in healthy[1].values():
        seen: dict[str, list[tuple[int, bytes]]] = {}
        for item in logged:
            rows = rows_of([item])
            context = defaultdict(list)
            for row in rows:
                if row.flags & RowFlag.CONTEXT:
                    context[row.request].append((row.position, row.ids.tobytes()))
            for request in {row.request for row in rows}:
                expected = seen.get(request, [])[-2:]
                assert [p for p, _ in context[request]] == [p for p, _ in expected]
                continued += bool(expected)
            for row in rows:
                if not row.flags & RowFlag.CONTEXT:
                    seen.setdefault(row.request, []).append((row.position, row.ids.tobytes()))
            for request, kept in context.items():
                known = dict(seen[request])
                assert all(_same_sets(ids, known[position]) for position, ids in kept)
    assert continued > 10


def _same_sets(left: bytes, right: bytes) -> bool:
    shape = (len(SMALL_MODEL.layers), SMALL_MODEL.top_k)
    sides = [np.sort(np.frombuffer(side, np.uint16).reshape(shape)) for side in (left, right)]
    return bool((sides[0] == sides[1]).all())


def test_totals_are_what_was_written(healthy: Simulated) -> None:
    """Scorecards quote these sums."""
    totals, log = healthy
    logged = [item for batches in log.values() for item in batches]
    tokens = len(counted_rows(logged))
    assert totals.tokens == tokens
    assert totals.assignments == tokens * 3 * 2
    assert totals.rows == len(rows_of(logged))
    assert totals.batches == len(logged)
    assert totals.wire_bytes == sum(len(item.record.payload) for item in logged)
    assert totals.requests >= len({row.request for row in rows_of(logged)})
    assert totals.jsonl_equivalent_bytes > totals.wire_bytes


def test_ids_are_distinct_and_in_range(healthy: Simulated) -> None:
    """A healthy router never selects an expert twice for a token."""
    for logged in healthy[1].values():
        ids = np.stack([row.ids for row in rows_of(logged)])
        assert ids.max() < SMALL_MODEL.experts
        assert (ids[..., 0] != ids[..., 1]).all()


def test_tasks_span_requests(healthy: Simulated) -> None:
    """Conversations have several turns, and only the last one ends the task."""
    turns: dict[str, set[str]] = defaultdict(set)
    enders: Counter[str] = Counter()
    for logged in healthy[1].values():
        for batch, _ in logged:
            requests, tokens = batch.requests, batch.tokens
            for request, task in zip(requests.ids, requests.tasks, strict=True):
                turns[task].add(request)
            if tokens is not None:
                ended = tokens.request[tokens.flags & RowFlag.LAST_OF_TASK != 0]
                enders.update(requests.tasks[request] for request in ended)
    assert max(len(requests) for requests in turns.values()) > 1
    assert set(enders.values()) == {1}


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    """Only a reproducible log can be used to hunt a bug."""
    contents = []
    for run, seed in (("a", 5), ("b", 5), ("c", 6)):
        simulate_small(SCENARIOS["demo"], tmp_path / run, seed=seed, duration_s=6, nodes=2)
        files = sorted((tmp_path / run).rglob("*.seg"))
        contents.append([file.read_bytes() for file in files])
        contents[-1].append((tmp_path / run / "labels.json").read_bytes())
    assert contents[0] == contents[1]
    assert contents[0] != contents[2]


def test_an_existing_node_is_not_written_over(tmp_path: Path) -> None:
    """Two simulations in one log would give one node two histories."""
    simulate_small(SCENARIOS["healthy"], tmp_path, duration_s=1)
    before = sorted(partition_path(tmp_path, "sim-000").iterdir())
    with pytest.raises(SimulationError, match="already has the partition 'sim-000'"):
        simulate(SCENARIOS["healthy"], tmp_path, duration_s=1, nodes=1)
    assert sorted(partition_path(tmp_path, "sim-000").iterdir()) == before


def test_training_rows_carry_steps(tmp_path: Path) -> None:
    """Step windows need the optimizer step of every row, the same on all ranks."""
    _, log = simulate_small(SCENARIOS["training"], tmp_path, duration_s=3, nodes=2)
    for logged in log.values():
        steps: list[int] = []
        for batch, _ in logged:
            assert batch.tokens is not None
            assert batch.tokens.step is not None
            assert set(batch.tokens.phase.tolist()) == {Phase.TRAIN}
            steps += batch.tokens.step.tolist()
        assert set(steps) == set(range(6))


def test_progress_is_reported_each_second(tmp_path: Path) -> None:
    """The demonstration shows a running total."""
    calls: list[tuple[int, int]] = []
    simulate(
        SCENARIOS["training"],
        tmp_path,
        duration_s=3,
        nodes=1,
        model=SMALL_MODEL,
        progress=lambda second, totals: calls.append((second, totals.tokens)),
    )
    assert [second for second, _ in calls] == [1, 2, 3]
    assert calls[0][1] < calls[1][1] < calls[2][1]


@pytest.mark.parametrize(
    ("duration_s", "nodes", "start_us"), [(0, 1, 0), (1, 0, 0), (1, 1, 5), (1, 1, -1_000_000)]
)
def test_impossible_arguments_are_refused(
    tmp_path: Path, duration_s: int, nodes: int, start_us: int
) -> None:
    """A typing error must not write an odd log."""
    with pytest.raises(SimulationError):
        simulate(
            SCENARIOS["healthy"],
            tmp_path,
            duration_s=duration_s,
            nodes=nodes,
            start_us=start_us,
        )
    assert not list(tmp_path.iterdir())
