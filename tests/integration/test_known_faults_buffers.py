"""Known faults of engines' buffers: zeros, leftovers, lost stages, rows that nobody wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.watched_engine import WatchedEngine, counts_of, routes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOTHING = (0,) * 8


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[WatchedEngine]:
    """One engine."""
    made = WatchedEngine(tmp_path)
    yield made
    made.close()


def test_zeros_of_the_right_shape_count_nowhere(engine: WatchedEngine) -> None:
    """A kernel that bypasses the hook leaves zeros: flagged, no assignment, no metric."""
    engine.recorder.begin_request("a", prompt_tokens=0)
    engine.recorder.record("a", np.arange(12), np.zeros((12, 2, 2), np.uint8), "decode")
    engine.rest()
    engine.roll_up()
    assert engine.reasons() == {"suspicious_rows"}
    assert engine.total("suspicious_pairs") == 12 * 2
    for layer in (1, 3):
        [second] = engine.seconds(layer)
        assert (second.seen, second.tokens, second.counts) == (12, 0, NOTHING)
        assert second.level == "insufficient"
    assert engine.rows("SELECT count(gini), count(js_uniform) FROM windows") == [(0, 0)]
    assert engine.rows("SELECT count(*) FROM metric_histograms") == [(0,)]


def test_rows_that_a_probe_refuses_lower_coverage(engine: WatchedEngine) -> None:
    """A probe that knows that it cannot see says so: batches name the reason, coverage falls."""
    engine.recorder.miss(9, "monolithic kernel")
    engine.recorder.record("a", np.arange(3), routes(range(3)), "decode")
    engine.rest()
    engine.roll_up()
    assert engine.reasons() == {"unseen_rows: monolithic kernel"}
    [second] = engine.seconds(1)
    assert (second.seen, second.lost, second.coverage) == (3, 9, 0.25)
    assert (second.level, second.reason) == ("insufficient", "coverage")


def test_each_reason_is_stored_with_its_own_rows(engine: WatchedEngine) -> None:
    """An operator who looks for a fault finds how many rows it cost, not those of another one."""
    engine.recorder.record("a", np.arange(3), routes(range(3)), "decode")
    engine.recorder.miss(98, "monolithic kernel")
    engine.recorder.record("a", np.arange(3, 6), routes(range(3, 6)), "decode")
    engine.recorder.miss(3, "a layer number twice")
    engine.recorder.record("a", np.arange(6, 9), routes(range(6, 9)), "decode")
    engine.rest()
    engine.roll_up()
    assert engine.rows("SELECT unseen_rows, reasons FROM batches ORDER BY sequence") == [
        (98, ["unseen_rows: monolithic kernel"]),
        (3, ["unseen_rows: a layer number twice"]),
    ]
    [second] = engine.seconds(1)
    assert (second.seen, second.lost) == (9, 101)


def test_a_complete_window_says_nothing_of_a_layer_that_is_mostly_zeros(
    engine: WatchedEngine,
) -> None:
    """Every row was seen, one of four is sound at a layer: that layer says too little."""
    ids = routes(range(4))
    ids[1:, 0] = 0
    engine.recorder.begin_request("a", prompt_tokens=4)
    engine.recorder.record("a", np.arange(4), ids, "prefill")
    engine.recorder.end_request("a")
    engine.rest()
    engine.roll_up()
    assert engine.token_windows(1) == [("a", 0, 4, 4, True, 1)]
    assert engine.token_windows(3) == [("a", 0, 4, 4, True, 4)]
    levels = engine.rows(
        "SELECT DISTINCT window_kind, layer, level_reason FROM windows WHERE complete ORDER BY ALL"
    )
    reasons = [(1, "suspicious rows"), (3, "no calibrated threshold")]
    assert levels == [(kind, *reason) for kind in ("time", "token") for reason in reasons]


def test_zeros_of_lost_pipeline_stages_are_flagged(engine: WatchedEngine) -> None:
    """The last rank overwrites the first stage's layer with zeros: that layer has no count."""
    ids = routes(range(10))
    ids[:, 0] = 0
    engine.recorder.record("a", np.arange(10), ids, "decode")
    engine.rest()
    engine.roll_up()
    assert engine.reasons() == {"suspicious_rows"}
    [lost], [own] = engine.seconds(1), engine.seconds(3)
    assert (lost.seen, lost.tokens, lost.counts) == (10, 0, NOTHING)
    assert (own.tokens, own.counts) == (10, counts_of(ids, 3))


def test_pipeline_stages_record_their_own_layers_only(tmp_path: Path) -> None:
    """Two stages are two lanes of a model: a stage that is lost is absent, never zeros."""
    engine = WatchedEngine(tmp_path, layers=(1,), node="stage-0")
    last = engine.start(layers=(3,), node="stage-1")
    ids = routes(range(20))
    engine.recorder.record("a", np.arange(10), ids[:10, :1], "decode")
    last.record("a", np.arange(20), ids[:, 1:], "decode")
    engine.rest()
    engine.roll_up()
    engine.close()
    [first], [second] = engine.seconds(1), engine.seconds(3)
    assert (first.tokens, first.counts) == (10, counts_of(ids[:10], 1))
    assert (second.tokens, second.counts) == (20, counts_of(ids, 3))
    lanes = engine.rows("SELECT layers FROM lanes ORDER BY layers")
    assert lanes == [([1],), ([3],)]


def test_everything_in_the_first_layer_is_flagged_elsewhere(engine: WatchedEngine) -> None:
    """A hook that writes each layer to place 0: zeros elsewhere; place 0 alone looks sound."""
    every_layer, last = routes(range(12)), routes(range(12))[:, 1]
    every_layer[:, 0] = last
    every_layer[:, 1] = 0
    engine.recorder.record("a", np.arange(12), every_layer, "decode")
    engine.rest()
    engine.roll_up()
    assert engine.reasons() == {"suspicious_rows"}
    [first], [second] = engine.seconds(1), engine.seconds(3)
    assert first.counts == counts_of(every_layer, 1)
    assert (second.tokens, second.counts) == (0, NOTHING)


def test_slots_marked_as_unknown_are_left_out_and_counted(engine: WatchedEngine) -> None:
    """-1 marks a slot without a route: the row is rejected and missing, its neighbours count."""
    ids = routes(range(10))
    ids[4:7] = -1
    engine.recorder.record("a", np.arange(10), ids, "decode")
    engine.rest()
    engine.roll_up()
    assert engine.recorder.counters().rejected_rows == engine.total("rejected_rows") == 3
    assert engine.reasons() == {"rejected_rows"}
    [second] = engine.seconds(1)
    assert (second.seen, second.lost, second.coverage) == (7, 3, 0.7)
    assert (second.tokens, second.counts) == (7, counts_of(np.delete(ids, [4, 5, 6], 0), 1))


def test_a_slot_that_is_never_written_again_is_flagged(engine: WatchedEngine) -> None:
    """A stale slot returns the same row for ever: all from the 33rd on count nowhere."""
    ids = np.repeat(routes([5]), 50, axis=0)
    engine.recorder.record("a", np.arange(50), ids, "prefill")
    engine.rest()
    engine.roll_up()
    assert engine.reasons() == {"identical_rows", "suspicious_rows"}
    [second] = engine.seconds(1)
    assert (second.seen, second.tokens) == (50, 32)
    assert engine.total("suspicious_pairs") == (50 - 32) * 2


def test_the_routes_of_another_token_look_like_any_others(engine: WatchedEngine) -> None:
    """A stale row that is a sound route is not visible: nothing is marked, nothing is claimed."""
    ids = routes(range(12))
    ids[6] = ids[2]
    engine.recorder.record("a", np.arange(12), ids, "decode")
    engine.rest()
    engine.roll_up()
    assert engine.reasons() == set()
    [second] = engine.seconds(1)
    assert second.counts == counts_of(ids, 1)


def test_a_sound_layer_written_by_the_draft_model_is_not_visible(engine: WatchedEngine) -> None:
    """Ids of a draft's router in the target's layer are sound ids: they count, unmarked."""
    overwritten = routes(range(12))
    overwritten[:, 0] = (overwritten[:, 0] + 3) % 8
    engine.recorder.record("a", np.arange(12), overwritten, "decode")
    engine.rest()
    engine.roll_up()
    assert engine.reasons() == set()
    [second] = engine.seconds(1)
    assert second.counts == counts_of(overwritten, 1) != counts_of(routes(range(12)), 1)


def test_drafts_that_are_told_as_drafts_count_nowhere(engine: WatchedEngine) -> None:
    """Rows of a draft are accounted for and in no window; the accepted token counts once."""
    ids = routes(range(8))
    phases = np.array([1, 5, 5, 5, 1, 5, 5, 1], np.uint8)
    positions = np.array([0, 1, 2, 3, 1, 2, 3, 2])
    engine.recorder.record("a", positions, ids, phases)
    engine.rest()
    engine.roll_up()
    assert engine.total("uncounted_phase_rows") == 5
    [second] = engine.seconds(1)
    assert (second.seen, second.tokens) == (3, 3)
    assert second.counts == counts_of(ids[[0, 4, 7]], 1)
    assert engine.rows("SELECT DISTINCT phase FROM windows") == [("decode",)]


def test_rows_beyond_a_buffer_are_unseen_not_zero(engine: WatchedEngine) -> None:
    """A buffer of 8 rows under a pass of 20: 8 count, 12 are missing from the same second."""
    ids = routes(range(20))
    engine.recorder.record("a", np.arange(8), ids[:8], "prefill")
    engine.recorder.miss(12, "a pass longer than the buffer")
    engine.rest()
    engine.roll_up()
    [second] = engine.seconds(1)
    assert (second.seen, second.lost, second.coverage) == (8, 12, 0.4)
    assert second.counts == counts_of(ids[:8], 1)
    assert second.reason == "coverage"


def test_positions_that_nobody_recorded_make_windows_partial(engine: WatchedEngine) -> None:
    """An engine that leaves out parts of a batch and says nothing: holes lower coverage."""
    engine.recorder.begin_request("a", prompt_tokens=8)
    kept = np.array([0, 1, 2, 5])
    engine.recorder.record("a", kept, routes(kept), "prefill")
    engine.recorder.record("a", [8], routes([8]), "decode")
    engine.recorder.end_request("a")
    engine.rest()
    engine.roll_up()
    assert engine.token_windows(1)[:2] == [("a", 0, 3, 4, False, 3), ("a", 4, 1, 2, False, 1)]
    levels = engine.rows(
        "SELECT DISTINCT level, level_reason FROM windows WHERE window_kind = 'token' AND size = 4"
        " AND phase = 'prefill'"
    )
    assert levels == [("insufficient", "coverage")]


def test_memory_stays_bounded_and_what_it_costs_is_counted(engine: WatchedEngine) -> None:
    """Far more rows than the ring holds and nobody who reads: no file grows, each row is told."""
    [ring] = engine.folder.glob("*.ring")
    size = ring.stat().st_size
    passes, rows = 45, 2_000
    for number in range(passes):
        positions = np.arange(number * rows, (number + 1) * rows)
        engine.recorder.record("a", positions, routes(positions), "decode")
    assert [each.stat().st_size for each in engine.folder.glob("*.ring")] == [size]
    assert (
        sum(each.stat().st_size for each in engine.folder.rglob("*") if each.is_file()) < 2 * size
    )
    engine.rest()
    engine.roll_up()
    accepted, lost = engine.total("accepted_rows"), engine.total("lost_rows")
    assert accepted + lost == passes * rows
    assert lost > 0
    assert engine.reasons() == {"dropped_rows"}
    [second] = engine.seconds(1)
    assert (second.seen, second.lost) == (accepted, lost)
    assert second.reason == "coverage"


def test_ids_beyond_a_byte_arrive_whole(tmp_path: Path) -> None:
    """512 experts: expert 511 is 511 in the log and in the windows, not 255."""
    engine = WatchedEngine(tmp_path, experts=512)
    ids = np.array([[[511, 255], [256, 0]], [[300, 44], [510, 254]]], np.uint16)
    engine.recorder.record("a", [0, 1], ids, "decode")
    engine.rest()
    engine.roll_up()
    engine.close()
    [first], [second] = engine.seconds(1), engine.seconds(3)
    assert [expert for expert, count in enumerate(first.counts) if count] == [44, 255, 300, 511]
    assert [expert for expert, count in enumerate(second.counts) if count] == [0, 254, 256, 510]


def test_ids_of_a_byte_are_rejected_where_experts_do_not_fit(tmp_path: Path) -> None:
    """Cut to a byte, expert 259 is 3: of 512 experts none is counted from bytes, only rows are."""
    engine = WatchedEngine(tmp_path, experts=512)
    ids = np.array([[[3, 259], [1, 2]], [[4, 261], [1, 2]]])
    engine.recorder.record("a", [0, 1], ids, "decode")
    engine.recorder.record("a", [2, 3], ids.astype(np.uint8), "decode")
    engine.rest()
    engine.roll_up()
    engine.close()
    assert engine.recorder.counters().rejected_rows == engine.total("rejected_rows") == 2
    assert engine.reasons() == {"rejected_rows"}
    [second] = engine.seconds(1)
    assert (second.seen, second.lost, second.tokens) == (2, 2, 2)
    assert [expert for expert, count in enumerate(second.counts) if count] == [3, 4, 259, 261]
