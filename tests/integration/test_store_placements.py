"""Where the experts are: from batch headers to rank imbalance, whatever comes late or twice."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.batches import START_US, make_batch, make_heartbeat

from moescope.core.batch import SEVERAL_RANKS, Placement, RoutingBatch
from moescope.core.metrics import BY_NAME, HISTOGRAM_METRICS
from moescope.core.wire import encode_batch
from moescope.processors.config import WindowConfig
from moescope.processors.engine import Engine
from moescope.processors.finish import WindowFinisher
from moescope.processors.sources.protocol import SourceRecord
from moescope.storage.histogram_rows import decode_bins
from moescope.storage.shared import WindowShapes
from moescope.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

SECOND = 1_000_000
TIME = ((SECOND, SECOND),)
CONFIG = WindowConfig(token=((128, 128),), time=TIME, step=(), scene_scope=False)
LAYERS, EXPERTS, TOP_K, TOKENS = 2, 8, 2, 16
CONTIGUOUS = [[expert // 4 for expert in range(EXPERTS)]] * LAYERS
STRIPED = [[expert % 4 for expert in range(EXPERTS)]] * LAYERS


def placement(version: int, rank_of: list[list[int]]) -> Placement:
    """A placement on as many ranks as are named."""
    table = np.array(rank_of, np.uint16)
    ranks = int(table[table != SEVERAL_RANKS].max()) + 1
    return Placement(version=version, ranks=ranks, rank_of=table)


def batch(
    second: float, sequence: int, node: str = "a", said: Placement | None = None
) -> RoutingBatch:
    """A batch of one node that begins a number of seconds after the start."""
    start_us = START_US + round(second * SECOND)
    plain = make_batch(
        sequence + 100 * ord(node), tokens=TOKENS, layers=LAYERS, experts=EXPERTS, top_k=TOP_K,
        requests=2, prompt_tokens=0, first_position=TOKENS * sequence, start_us=start_us,
        header={
            "node": node, "sequence": sequence, "placement": said,
            "watermark_us": start_us + 10_000,
        },
    )  # fmt: skip
    names = tuple(f"{node}-{index}" for index in range(2))
    return replace(plain, requests=replace(plain.requests, ids=names))


def heartbeat(second: float, sequence: int, node: str = "a") -> RoutingBatch:
    """A node's clock."""
    return make_heartbeat(
        sequence, node=node, watermark_us=START_US + round(second * SECOND),
        layers=np.arange(LAYERS, dtype=np.uint16), experts=EXPERTS, top_k=TOP_K,
    )  # fmt: skip


class Fleet:
    """A partition and its store."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.finisher = WindowFinisher()
        self.store = self.open()
        self.engine = Engine(CONFIG, {})
        self.offset = 0

    def open(self) -> Store:
        """The store."""
        return Store(self.path, self.finisher, WindowShapes(time=TIME, step=()))

    def commit(self, *batches: RoutingBatch) -> None:
        """Process batches, and commit."""
        partition = self.engine.partition("p", "live")
        for each in batches:
            partition.process(SourceRecord(self.offset, START_US, encode_batch(each)))
            self.offset += 1
        self.engine.touch("p")
        unfinished = self.engine.take()
        assert unfinished is not None
        self.store.apply(unfinished.finish(self.finisher))

    def restart(self) -> None:
        """Another owner, and another processor."""
        self.store.close()
        self.store = self.open()
        self.engine = Engine(CONFIG, self.store.load_progress())

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What a query finds."""
        with self.store.cursor() as cursor:
            return cursor.execute(query).fetchall()

    def imbalances(self, scope: str = "all") -> dict[tuple[str, int, int], float | None]:
        """Rank imbalance by (scope value, second, layer)."""
        found = self.rows(
            "SELECT scope_value, start, layer, rank_imbalance FROM windows"
            f" WHERE window_kind = 'time' AND scope_kind = '{scope}'"
        )
        return {(who, (start - START_US) // SECOND, layer): v for who, start, layer, v in found}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """An empty one."""
    made = Fleet(tmp_path / "store.duckdb")
    yield made
    made.store.close()


def expected(
    batches: Iterable[RoutingBatch], table: dict[int, list[list[int]]]
) -> dict[tuple[str, int, int], float]:
    """The same by hand, with the ranks of each second."""
    loads: dict[tuple[str, int, int], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for each in batches:
        assert each.tokens is not None
        assert each.tokens.event_time_us is not None
        assert each.routes is not None
        for time, row in zip(each.tokens.event_time_us, each.routes.expert_ids, strict=True):
            second = (int(time) - START_US) // SECOND
            for layer, ids in enumerate(row.tolist()):
                for expert in ids:
                    loads["", second, layer][table[second][layer][expert]] += 1
    return {
        key: max(load.values()) * (max(map(max, table[key[1]])) + 1) / sum(load.values())
        for key, load in loads.items()
    }


def test_windows_take_the_placement_in_force_at_their_end(fleet: Fleet) -> None:
    """Experts that move within a second: it is judged by where they were last."""
    first, second = placement(1, CONTIGUOUS), placement(2, STRIPED)
    batches = [
        batch(0.0, 0, said=first), batch(1.0, 1), batch(2.0, 2, said=first),
        batch(2.5, 3, said=second), batch(3.0, 4, said=second), batch(4.0, 5),
    ]  # fmt: skip
    fleet.commit(*batches[:2])
    fleet.restart()
    fleet.commit(*batches[2:], heartbeat(9, 6))
    table = dict.fromkeys((0, 1), CONTIGUOUS) | dict.fromkeys((2, 3, 4), STRIPED)
    assert fleet.imbalances() == pytest.approx(expected(batches, table))
    said = fleet.rows(
        "SELECT version, epoch_us(effective_from), ranks, rank_of FROM placements"
        " WHERE layer = 1 ORDER BY version"
    )
    assert said == [
        (1, START_US, 2, CONTIGUOUS[0]),
        (2, START_US + 2_500_000, 4, STRIPED[0]),
    ]


def test_a_placement_from_the_end_on_belongs_to_the_next_window(fleet: Fleet) -> None:
    """Experts that move as a second ends moved after it, not within it."""
    batches = [
        batch(2.0, 0, said=placement(1, CONTIGUOUS)), batch(3.0, 1, said=placement(2, STRIPED))
    ]  # fmt: skip
    fleet.commit(*batches, heartbeat(9, 2))
    table = {2: CONTIGUOUS, 3: STRIPED}
    assert fleet.imbalances() == pytest.approx(expected(batches, table))


def test_the_load_of_ranks_adds_up_to_the_windows(fleet: Fleet) -> None:
    """The view shows what the metric is made of."""
    fleet.commit(batch(0, 0, said=placement(1, STRIPED)), batch(1, 1), heartbeat(9, 2))
    found = fleet.rows(
        "SELECT start, layer, scope_kind, any_value(rank_imbalance), max(times_mean),"
        " sum(load)::BIGINT, count(*), list(rank ORDER BY rank) FROM rank_load"
        " WHERE window_kind = 'time' GROUP BY ALL"
    )
    assert len(found) == 2 * LAYERS * 2
    for _, _, _, imbalance, largest, load, ranks, names in found:
        assert largest == pytest.approx(imbalance)
        assert (load, ranks, names) == (TOKENS * TOP_K, 4, [0, 1, 2, 3])


def test_nobody_knows_where_nodes_contradict_each_other(fleet: Fleet) -> None:
    """Two tables under one version: none for both nodes together, each node's own for itself."""
    tables = {"a": placement(1, CONTIGUOUS), "b": placement(1, STRIPED)}
    fleet.commit(
        *(batch(0, 0, node, said) for node, said in tables.items()),
        *(heartbeat(9, 1, node) for node in tables),
    )
    assert set(fleet.imbalances().values()) == {None}
    found = fleet.imbalances("node")
    assert len(found) == 2 * LAYERS
    assert None not in found.values()
    assert dict(fleet.rows("SELECT DISTINCT scope_value, ranks FROM rank_load")) == {"a": 2, "b": 4}


def test_an_expert_on_several_ranks_leaves_its_layer_out(fleet: Fleet) -> None:
    """How replicas share an expert's load is not known, so the layer has no value."""
    replicated = [CONTIGUOUS[0], [SEVERAL_RANKS, *CONTIGUOUS[1][1:]]]
    fleet.commit(batch(0, 0, said=placement(1, replicated)), heartbeat(9, 1))
    found = fleet.imbalances()
    assert found["", 0, 0] is not None
    assert found["", 0, 1] is None


def test_what_came_late_is_taken_back_as_it_was(fleet: Fleet) -> None:
    """A placement that comes after its windows closed, then rows: histograms equal the rows."""
    fleet.commit(batch(0, 0), heartbeat(5, 1))
    assert set(fleet.imbalances().values()) == {None}
    fleet.commit(replace(heartbeat(0, 0, "b"), header=replace(
        heartbeat(0, 0, "b").header, placement=placement(1, CONTIGUOUS))))  # fmt: skip
    assert set(fleet.imbalances().values()) == {None}
    fleet.restart()
    late = batch(0, 2)
    fleet.commit(replace(late, header=replace(late.header, watermark_us=START_US + 5 * SECOND)))
    assert None not in fleet.imbalances().values()
    metric = HISTOGRAM_METRICS.index(BY_NAME["rank_imbalance"])
    assert HISTOGRAM_METRICS[metric].name == "rank_imbalance"
    bins = fleet.rows("SELECT bins FROM metric_histograms WHERE metric = 'rank_imbalance'")
    total = sum(int(decode_bins(blob).sum()) for (blob,) in bins)
    values = fleet.rows("SELECT count(rank_imbalance) FROM windows WHERE window_kind <> 'token'")
    assert total == values[0][0] > 0
    assert sum(int((decode_bins(blob) < 0).sum()) for (blob,) in bins) == 0


def test_passes_of_a_window_survive_the_store(fleet: Fleet) -> None:
    """Mean and greatest imbalance of a window's passes, with panes from several commits."""
    batches = [batch(0, 0), batch(0.5, 1), batch(0.75, 2)]
    fleet.commit(batches[0])
    fleet.commit(batches[1])
    fleet.restart()
    fleet.commit(batches[2], heartbeat(9, 3))
    uneven: dict[int, list[float]] = defaultdict(list)
    for each in batches:
        assert each.tokens is not None
        assert each.tokens.pass_id is not None
        assert each.routes is not None
        for number in range(int(each.tokens.pass_id.max()) + 1):
            ids = each.routes.expert_ids[each.tokens.pass_id == number]
            for layer in range(LAYERS):
                counts = np.bincount(ids[:, layer].ravel(), minlength=EXPERTS)
                uneven[layer].append(EXPERTS * counts.max() / counts.sum())
    found = fleet.rows(
        "SELECT layer, pass_imbalance, pass_imbalance_max FROM windows"
        " WHERE window_kind = 'time' AND scope_kind = 'all' ORDER BY layer"
    )
    for layer, mean, largest in found:
        assert mean == pytest.approx(np.mean(uneven[layer]), abs=1e-6)
        assert largest == pytest.approx(max(uneven[layer]), abs=1e-6)
    assert len(found) == LAYERS
