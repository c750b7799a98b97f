"""Known faults of counting: padding, warm-up, repetitions, several ranks, restarts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.batches import make_batch
from support.small_windows import roll_up_logs
from support.watched_engine import WatchedEngine, added, counts_of, routes

from moescope.core.batch import RoutingBatch, TokenBlocks
from moescope.core.batchlog import BatchLogWriter
from moescope.core.vocabulary import Fidelity, IdSpace
from moescope.core.wire import encode_batch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[WatchedEngine]:
    """One engine."""
    made = WatchedEngine(tmp_path)
    yield made
    made.close()


def test_padding_counts_nowhere_on_either_side(engine: WatchedEngine) -> None:
    """Rows that fill a graph or a batch up belong to no token: accounted for, in no window."""
    ids = routes(range(12))
    ids[[0, 1]] = ids[0]
    ids[[10, 11]] = -1
    padding = np.zeros(12, np.bool_)
    padding[[0, 1, 10, 11]] = True
    positions = np.array([0, 0, 0, 1, 2, 3, 4, 5, 6, 7, -1, -1])
    engine.recorder.record("a", positions, ids, "decode", padding=padding)
    engine.rest()
    engine.roll_up()
    assert (engine.total("rows"), engine.total("padding_rows")) == (12, 4)
    [second] = engine.seconds(1)
    assert (second.seen, second.coverage) == (8, 1.0)
    assert second.counts == counts_of(ids[2:10], 1)


def test_warm_up_that_is_told_counts_nowhere(engine: WatchedEngine) -> None:
    """Thousands of dummy rows before the first request are in no window."""
    dummy = np.repeat(routes([3]), 8_192, axis=0)
    engine.recorder.record("warm", np.arange(8_192), dummy, "warmup")
    engine.recorder.record("a", np.arange(6), routes(range(6)), "decode")
    engine.rest()
    engine.roll_up()
    assert engine.total("uncounted_phase_rows") == 8_192
    [second] = engine.seconds(1)
    assert (second.seen, second.counts) == (6, counts_of(routes(range(6)), 1))


def test_warm_up_that_is_not_told_is_flagged(engine: WatchedEngine) -> None:
    """Dummy rows as a prompt are one row again and again: 32 count, the rest is suspicious."""
    dummy = np.repeat(routes([3]), 8_192, axis=0)
    engine.recorder.record("warm", np.arange(8_192), dummy, "prefill")
    engine.rest()
    engine.roll_up()
    assert "identical_rows" in engine.reasons()
    [second] = engine.seconds(1)
    assert (second.seen, second.tokens) == (8_192, 32)


def test_a_request_recorded_by_two_ranks_is_told(tmp_path: Path) -> None:
    """Both ranks see all tokens: token windows stay single, and their repetition is counted."""
    engine = WatchedEngine(tmp_path, node="rank-0")
    other = engine.start(node="rank-1")
    ids = routes(range(16))
    for recorder in (engine.recorder, other):
        recorder.begin_request("a", prompt_tokens=16)
        recorder.record("a", np.arange(16), ids, "prefill")
        recorder.end_request("a")
    engine.rest()
    engine.roll_up()
    engine.close()
    assert engine.token_windows(1, size=8) == [("a", 0, 8, 8, True, 8), ("a", 8, 8, 8, True, 8)]
    [(duplicates,)] = engine.rows("SELECT sum(duplicate_windows) FROM domains")
    assert duplicates > 0
    # Shared windows hold both: the shares of experts are what they were, the volume is not.
    [both] = engine.seconds(1)
    assert both.counts == tuple(2 * count for count in counts_of(ids, 1))
    by_node = engine.rows(
        "SELECT scope_value, tokens FROM windows WHERE window_kind = 'time' AND size = 1000000"
        " AND scope_kind = 'node' AND layer = 1 ORDER BY scope_value"
    )
    assert by_node == [("rank-0", 16), ("rank-1", 16)]


def test_ranks_of_different_requests_add_up(tmp_path: Path) -> None:
    """Data-parallel ranks that record their own requests: each token counts once."""
    engine = WatchedEngine(tmp_path, node="rank-0")
    other = engine.start(node="rank-1")
    ids = routes(range(24))
    engine.recorder.record("a", np.arange(10), ids[:10], "decode")
    other.record("b", np.arange(14), ids[10:], "decode")
    engine.rest()
    engine.roll_up()
    engine.close()
    [second] = engine.seconds(1)
    assert (second.tokens, second.counts) == (24, counts_of(ids, 1))
    assert engine.rows("SELECT sum(duplicate_windows) FROM domains") == [(0,)]


def counts_batch(counts: list[list[list[int]]]) -> RoutingBatch:
    """A piece of eight tokens of each of as many requests, in counts fidelity."""
    pieces = len(counts)
    plain = make_batch(tokens=pieces, layers=2, experts=8, top_k=2, requests=pieces)
    assert plain.tokens is not None
    return RoutingBatch(
        header=replace(plain.header, fidelity=Fidelity.COUNTS),
        requests=plain.requests,
        token_blocks=TokenBlocks(
            request=np.arange(pieces, dtype=np.int32),
            phase=np.zeros(pieces, np.uint8),
            flags=np.zeros(pieces, np.uint8),
            start_position=np.zeros(pieces, np.int32),
            tokens=np.full(pieces, 8, np.int32),
            counts=np.array(counts, np.uint32),
            first_time_us=plain.tokens.event_time_us,
            last_time_us=plain.tokens.event_time_us,
        ),
    )


def test_counts_that_are_not_tokens_times_k_count_nowhere(tmp_path: Path) -> None:
    """Owned experts only, or all layers in the first: the layer is flagged, and has no count."""
    right = [1, 3, 2, 2, 2, 2, 2, 2]
    owned, all_layers = [8, 3, 0, 0, 0, 0, 0, 0], [4] * 8
    with BatchLogWriter(tmp_path / "log", "node") as log:
        log.append(encode_batch(counts_batch([[owned, right], [all_layers, [0] * 8]])))
        log.seal()
    engine = WatchedEngine(tmp_path)
    engine.close()
    roll_up_logs(engine.log, engine.store)
    assert engine.reasons() == {"counts_mismatch"}
    tasks = engine.rows(
        "SELECT layer, tokens, counts FROM windows WHERE window_kind = 'task' ORDER BY layer"
    )
    assert tasks == [(0, 0, [0] * 8), (1, 8, right)]


def test_physical_experts_are_never_taken_for_logical_ones(engine: WatchedEngine) -> None:
    """Ids of replicas: the batch says so, is accounted for, and no window is made of it."""
    replicas = engine.start(node="replicas", id_space=IdSpace.PHYSICAL, experts=10)
    replicas.record("b", np.arange(5), routes(range(5)), "decode")
    engine.recorder.record("a", np.arange(7), routes(range(7)), "decode")
    engine.rest()
    engine.roll_up()
    assert engine.reasons() == {"physical_ids"}
    accounts = engine.rows("SELECT node, rows, accepted_rows FROM batches ORDER BY node")
    assert accounts == [("node-a", 7, 7), ("replicas", 5, 0)]
    [second] = engine.seconds(1)
    assert second.counts == counts_of(routes(range(7)), 1)


def test_balance_is_of_one_layer_over_its_experts_and_ranks(engine: WatchedEngine) -> None:
    """Two layers that are uneven in opposite ways: over both they would look perfectly even."""
    rows = [[[0, 1], [4, 5]], [[2, 3], [6, 7]]] * 4
    engine.recorder.set_placement([0] * 4 + [1] * 4, version=1)
    engine.recorder.record("a", np.arange(8), np.array(rows), "decode")
    engine.rest()
    engine.roll_up()
    found = engine.rows(
        "SELECT layer, rank_imbalance, max_violation FROM windows"
        " WHERE window_kind = 'time' AND size = 1000000 AND scope_kind = 'all' ORDER BY layer"
    )
    # All of a layer's load is on one of two ranks, on half of its experts.
    for layer, imbalance, violation in found:
        assert layer in {1, 3}
        assert (imbalance, violation) == (pytest.approx(2.0), pytest.approx(1.0))
    assert len(found) == 2


def test_a_prefix_that_is_returned_again_counts_once(engine: WatchedEngine) -> None:
    """A client that gives the whole prefix with each turn: only new positions count."""
    engine.recorder.begin_request("a", prompt_tokens=0)
    for turn in (4, 8, 12):
        engine.recorder.record("a", np.arange(turn), routes(range(turn)), "decode")
    engine.rest()
    engine.roll_up()
    assert engine.recorder.counters().recomputed_rows == 4 + 8
    assert engine.total("recomputed_rows") == 4 + 8
    [second] = engine.seconds(1)
    assert (second.seen, second.counts) == (12, counts_of(routes(range(12)), 1))


def test_what_is_computed_again_with_other_routes_does_not_count(engine: WatchedEngine) -> None:
    """Preempted, then computed anew: the first attempt's routes stay, the new ones are flagged."""
    first, again = routes(range(8)), routes([9] * 8)
    engine.recorder.begin_request("a", prompt_tokens=8)
    engine.recorder.record("a", np.arange(8), first, "prefill")
    engine.recorder.record("a", np.arange(8), again, "prefill")
    engine.recorder.end_request("a")
    engine.rest()
    engine.roll_up()
    assert engine.total("recomputed_rows") == 8
    [second] = engine.seconds(1)
    assert second.counts == counts_of(first, 1) != counts_of(again, 1)
    assert engine.token_windows(1, size=8) == [("a", 0, 8, 8, True, 8)]


def test_a_long_prompt_arrives_whole(engine: WatchedEngine) -> None:
    """9,000 tokens in one pass, more than any frame holds: every position, nothing lost."""
    rows = 9_000
    ids = routes(range(rows))
    engine.recorder.begin_request("a", prompt_tokens=rows)
    engine.recorder.record("a", np.arange(rows), ids, "prefill")
    engine.recorder.end_request("a")
    engine.rest()
    engine.roll_up()
    assert (engine.total("accepted_rows"), engine.total("lost_rows")) == (rows, 0)
    [second] = engine.seconds(1)
    assert (second.seen, second.coverage) == (rows, 1.0)
    assert second.counts == counts_of(ids, 1)
    [(windows, complete)] = engine.rows(
        "SELECT sum(weight), sum(weight) FILTER (complete) FROM windows"
        " WHERE window_kind = 'token' AND size = 8 AND layer = 1"
    )
    assert windows == complete == rows / 8


def test_the_last_token_is_never_computed_and_never_missed(engine: WatchedEngine) -> None:
    """A prompt of 4 and 5 generated tokens are 8 rows: windows are whole without a ninth."""
    engine.recorder.begin_request("a", prompt_tokens=4)
    engine.recorder.record("a", np.arange(4), routes(range(4)), "prefill")
    engine.recorder.record("a", np.arange(4, 8), routes(range(4, 8)), "decode")
    engine.recorder.end_request("a")
    engine.rest()
    engine.roll_up()
    assert engine.token_windows(1) == [("a", 0, 4, 4, True, 4), ("a", 4, 4, 4, True, 4)]


def test_restarts_within_a_window_neither_lose_nor_double(tmp_path: Path) -> None:
    """Agent and engine start anew in the middle of a second: it holds each row once."""
    engine = WatchedEngine(tmp_path)
    ids = routes(range(30))
    engine.recorder.begin_request("a", prompt_tokens=0)
    engine.recorder.record("a", np.arange(10), ids[:10], "decode")
    engine.ship()
    engine.clock.sleep(0.1)
    engine.recorder.record("a", np.arange(10, 14), ids[10:14], "decode")
    engine.restart_agent()
    engine.ship()
    engine.recorder.close()
    engine.clock.sleep(0.1)
    reborn = engine.start()
    reborn.begin_request("b", prompt_tokens=0)
    reborn.record("b", np.arange(16), ids[14:], "decode")
    engine.rest()
    engine.roll_up()
    engine.close()
    [second] = engine.seconds(1)
    assert (second.seen, second.lost, second.coverage) == (30, 0, 1.0)
    assert second.counts == counts_of(ids, 1)
    # What the first engine did not finish is said to be short, not taken for a whole window.
    windows = {(request, start): rest for request, start, *rest in engine.token_windows(1)}
    assert windows["a", 12] == [2, 2, False, 2]
    assert windows["b", 12] == [4, 4, True, 4]


def test_a_processor_restarted_within_a_window_counts_the_same(tmp_path: Path) -> None:
    """The store that was rolled up in two goes equals what was recorded."""
    engine = WatchedEngine(tmp_path)
    ids = routes(range(20))
    for half in (range(10), range(10, 20)):
        engine.recorder.record("a", np.array(half), ids[half.start : half.stop], "decode")
        engine.roll_up()
        engine.clock.sleep(0.2)
    engine.rest()
    engine.roll_up()
    engine.close()
    assert added(engine.seconds(1)) == counts_of(ids, 1)
    assert len(engine.seconds(1)) == 1
