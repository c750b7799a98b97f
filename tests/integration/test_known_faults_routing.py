"""Known faults of routing, of idle engines, and of calls that do not fit the model."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.rings import logged
from support.watched_engine import SECOND, WatchedEngine, counts_of, routes

from moescope.core.errors import SettingsError
from moescope.jobs.reports.comparison import compare, find_side

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

PERIOD = 300
"""Seconds of one slot of the trailing reference."""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[WatchedEngine]:
    """One engine."""
    made = WatchedEngine(tmp_path)
    yield made
    made.close()


def test_an_idle_engine_is_no_data(engine: WatchedEngine) -> None:
    """A minute without a row makes no window; before and after it nothing is NaN or healthy."""
    engine.recorder.record("a", np.arange(6), routes(range(6)), "decode")
    engine.rest(60)
    engine.recorder.record("b", np.arange(6), routes(range(6)), "decode")
    engine.rest()
    engine.roll_up()
    starts = engine.rows(
        "SELECT DISTINCT (start - min(start) OVER ()) // 1000000 FROM windows"
        " WHERE window_kind = 'time' AND size = 1000000 ORDER BY 1"
    )
    assert starts == [(0,), (60,)]
    names = [
        name
        for name, kind in engine.rows(
            "SELECT column_name, data_type FROM information_schema.columns"
            " WHERE table_name = 'windows'"
        )
        if kind in {"DOUBLE", "FLOAT"}
    ]
    assert {"gini", "max_violation", "coverage"} <= set(names)
    any_nan = " OR ".join(f"isnan({name})" for name in names)
    assert engine.rows(f"SELECT count(*) FROM windows WHERE {any_nan}") == [(0,)]
    assert engine.rows("SELECT DISTINCT level FROM windows") == [("insufficient",)]


def test_an_engine_that_never_served_has_no_window(engine: WatchedEngine) -> None:
    """Heartbeats alone: the node is known to live, and nothing is said of its routing."""
    engine.rest()
    engine.roll_up()
    assert engine.rows("SELECT count(*) FROM windows") == [(0,)]
    assert engine.rows("SELECT node FROM producers") == [("node-a",)]


def mis_routed(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """What a kernel that starts its search at 0 makes of logits that are all below it."""
    wrong = ids.copy()
    wrong[:, 0] = np.where(np.arange(len(ids))[:, None] % 2, [0, 1], ids[:, 0])
    return wrong


def test_a_silent_change_of_routing_moves_its_distance(engine: WatchedEngine) -> None:
    """Sound ids, the same revision: no gate can tell, but the layer leaves its own past."""
    serial = 0
    for period in range(4):
        for second in range(4):
            serials = np.arange(serial, serial + 64)
            ids = routes(serials) if period < 3 else mis_routed(routes(serials))
            times = engine.clock.now_us() + second * SECOND + np.arange(64)
            engine.recorder.record("a", serials, ids, "decode", event_time_us=times)
            serial += 64
        engine.rest(PERIOD)
    engine.roll_up()
    assert engine.reasons() == set()
    assert engine.rows("SELECT DISTINCT revision FROM windows") == [("r1",)]
    found = engine.rows(
        "SELECT layer, (start - min(start) OVER ()) // 300000000 AS period, max(js_trailing)"
        " FROM windows WHERE window_kind = 'time' AND size = 1000000 AND scope_kind = 'all'"
        " GROUP BY layer, start ORDER BY start"
    )
    distance: dict[tuple[int, int], list[float]] = {}
    for layer, period, value in found:
        distance.setdefault((layer, int(period)), []).append(math.nan if value is None else value)
    assert min(distance[1, 3]) > 10 * max(distance[1, 2] + distance[3, 3] + distance[3, 2])


def test_an_overwritten_layer_shows_beside_what_was_executed(tmp_path: Path) -> None:
    """Ids of a draft's router in one layer: two logs of the same requests tell which layer."""
    engine = WatchedEngine(tmp_path, node="recorded")
    executed = engine.start(node="executed", origin="framework")
    for request in range(6):
        ids = routes(range(request, request + 20))
        overwritten = ids.copy()
        overwritten[:, 0] = (ids[:, 0] + 3) % 8
        name, positions = f"r{request}", np.arange(20)
        engine.recorder.record(name, positions, overwritten, "decode")
        executed.record(name, positions, ids, "decode")
    engine.rest()
    engine.close()
    report = compare(
        find_side(engine.log, ["node=recorded"]), find_side(engine.log, ["node=executed"]),
        by="request", fewest_pairs=20,
    )  # fmt: skip
    same = {layer["layer"]: layer["same_set"]["value"] for layer in report["layers"]}
    assert same == {1: 0.0, 3: 1.0}
    [finding] = report["findings"]
    assert finding["name"] == "framework_skew"


def test_calls_that_do_not_fit_are_counted_and_cost_nothing_else(engine: WatchedEngine) -> None:
    """Routes of another length or model never raise, and never shift the rows beside them."""
    ids = routes(range(8))
    misfits = [
        (7, ids),  # fewer tokens than routes
        (8, ids[:7]),
        (8, ids[:, :1]),  # fewer layers
        (8, np.repeat(ids, 2, axis=1)),
        (8, np.repeat(ids, 2, axis=2)),  # another k
    ]
    for place, (positions, wrong) in enumerate(misfits):
        start = 100 * place
        engine.recorder.record("a", np.arange(start, start + 4), ids[:4], "decode")
        engine.recorder.record("a", np.arange(start + 4, start + 4 + positions), wrong, "decode")
        engine.recorder.record("a", np.arange(start + 40, start + 44), ids[4:], "decode")
    engine.rest()
    engine.roll_up()
    assert engine.total("rejected_rows") == sum(positions for positions, _ in misfits)
    [second] = engine.seconds(1)
    assert second.counts == tuple(len(misfits) * count for count in counts_of(ids, 1))


def test_experts_under_another_name_are_noticed(engine: WatchedEngine) -> None:
    """Too small an E, read from the wrong field of a configuration: rows are rejected."""
    ids = routes(range(8)) + 8
    engine.recorder.record("a", np.arange(8), ids, "decode")
    engine.rest()
    engine.roll_up()
    told = sum(each.batch.header.drops.rejected_rows for each in logged(engine.log))
    assert engine.recorder.counters().rejected_rows == told == 8
    assert engine.rows("SELECT count(*) FROM windows") == [(0,)]


def test_a_dense_model_is_refused_before_anything_is_served(tmp_path: Path) -> None:
    """Without MoE layers there is no recorder: an error at the start, not after loading."""
    with pytest.raises(SettingsError):
        WatchedEngine(tmp_path, layers=())


def test_metrics_with_drafts_never_reach_the_engine(engine: WatchedEngine) -> None:
    """Drafts of any length, also none or nonsense: no call raises, target rows are right."""
    for position in range(12):
        engine.recorder.record("a", [position], routes([position]), "decode")
        drafts = position % 4
        after = np.arange(position + 1, position + 1 + drafts)
        engine.recorder.record("a", after, routes(after), "draft", entropy=np.zeros((drafts, 2)))
        engine.recorder.record("a", after, routes(after), "draft", entropy=np.zeros((drafts, 9)))
        engine.recorder.record("a", ["?"], np.zeros((1, 2, 2)), "draft", margin="none")
    engine.rest()
    engine.roll_up()
    assert engine.recorder.counters().internal_errors == 0
    [second] = engine.seconds(1)
    assert (second.seen, second.counts) == (12, counts_of(routes(range(12)), 1))
    assert engine.total("uncounted_phase_rows") == (1 + 2 + 3) * 3
