"""Passes that stay open: which, for how long, and what becomes of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.batches import START_US, make_batch

from moescope.core.batch import DropCounters, RoutingBatch
from moescope.core.clock import NO_TIME
from moescope.core.router_sums import FIXED_POINT
from moescope.core.vocabulary import Fidelity
from moescope.core.wire import encode_batch
from moescope.processors.config import WindowConfig
from moescope.processors.partition import Partition, PartitionOutput
from moescope.processors.passes import ClosedPasses, OpenPasses, PassRows
from moescope.processors.sources.protocol import SourceRecord

LAYERS, EXPERTS, TOP_K = 2, 8, 2
SECOND = 1_000_000


def rows_of(batch: RoutingBatch, *, accepted: bool = True) -> PassRows:
    """All rows of a batch, in cell 0 or in none."""
    assert batch.tokens is not None
    assert batch.routes is not None
    cells = np.full(len(batch.tokens), 0 if accepted else -1, np.int32)
    return PassRows(batch.tokens, batch.routes, cells, np.zeros(LAYERS, np.bool_))


def batch_of(seed: int, *, tokens: int = 6, start_us: int = START_US) -> RoutingBatch:
    """One request with a pass per token, 1 ms apart."""
    return make_batch(
        seed, tokens=tokens, layers=LAYERS, experts=EXPERTS, top_k=TOP_K, requests=1,
        prompt_tokens=0, start_us=start_us,
    )  # fmt: skip


def times(closed: list[ClosedPasses]) -> list[int]:
    """Event times of closed passes, in milliseconds after the start."""
    return [(int(time) - START_US) // 1_000 for each in closed for time in each.time_us]


def test_a_pass_ends_where_its_node_says_that_nothing_earlier_follows() -> None:
    """Passes before the watermark are complete, the one at it may go on; other nodes wait."""
    passes = OpenPasses(LAYERS, EXPERTS)
    assert times(passes.add("a", START_US + 4_000, rows_of(batch_of(1)))) == [0, 1, 2, 3]
    assert len(passes) == 2
    assert times(passes.close("b", START_US + SECOND)) == []
    assert times(passes.close("a", START_US + 5_000)) == [4]
    earlier = rows_of(batch_of(2, start_us=START_US - 1_000))
    assert sorted(times(passes.add("a", START_US + 6_000, earlier))) == [-1, 0, 1, 2, 3, 4, 5]
    assert len(passes) == 0


def test_rows_of_two_batches_make_one_pass() -> None:
    """Its imbalance is that of all its rows, not the mean of the two parts."""
    first, second = batch_of(1, tokens=1), batch_of(2, tokens=1)
    passes = OpenPasses(LAYERS, EXPERTS)
    assert passes.add("a", START_US, rows_of(first)) == []
    (closed,) = passes.add("a", START_US + 1, rows_of(second))
    for layer in range(LAYERS):
        ids = [
            expert
            for batch in (first, second)
            if batch.routes is not None
            for expert in batch.routes.expert_ids[0, layer].tolist()
        ]
        most = max(ids.count(expert) for expert in ids)
        assert closed.imbalance[0, layer] == most * EXPERTS * FIXED_POINT // len(ids)


def test_a_node_that_fell_silent_leaves_nothing_open() -> None:
    """30 s after the partition's watermark at the newest row; a node that lags is not silent."""
    passes = OpenPasses(LAYERS, EXPERTS)
    passes.advance(START_US + 100 * SECOND)
    passes.add("lags", START_US, rows_of(batch_of(1, tokens=1)))
    assert passes.advance(START_US + 129 * SECOND) == []
    assert times(passes.advance(START_US + 130 * SECOND)) == [0]


def test_without_a_watermark_the_earliest_passes_go_first() -> None:
    """Memory stays bounded, whatever a producer does not tell."""
    passes = OpenPasses(LAYERS, EXPERTS, most_open=4)
    assert times(passes.add("a", NO_TIME, rows_of(batch_of(1, tokens=9)))) == [0, 1, 2, 3, 4]
    assert times(passes.seal()) == [5, 6, 7, 8]


def test_a_saved_state_goes_on_where_it_was() -> None:
    """Rows of an open pass are not read again after a restart."""
    passes, other = OpenPasses(LAYERS, EXPERTS), OpenPasses(LAYERS, EXPERTS)
    passes.add("a", START_US + 3_000, rows_of(batch_of(1)))
    other.restore(*passes.state())
    for one, two in zip(passes.seal(), other.seal(), strict=True):
        assert [np.array(each).tolist() for each in one] == [
            np.array(each).tolist() for each in two
        ]


def test_rows_without_a_pass_or_a_time_make_none() -> None:
    """A negative pass id, no time, or a row that was neither accepted nor executed."""
    batch = batch_of(1)
    assert batch.tokens is not None
    untold = replace(batch.tokens, pass_id=np.full(6, -1))
    untimed = replace(batch.tokens, event_time_us=None)
    for rows in (
        rows_of(batch)._replace(tokens=untold),
        rows_of(batch)._replace(tokens=untimed),
        rows_of(batch, accepted=False),
    ):
        passes = OpenPasses(LAYERS, EXPERTS)
        assert passes.add("a", START_US + SECOND, rows) == []
        assert len(passes) == 0


def rolled_up(*batches: RoutingBatch) -> PartitionOutput:
    """What a fresh partition makes of these batches."""
    partition = Partition("p", "live", WindowConfig(token=((128, 128),)), None)
    for offset, batch in enumerate(batches):
        partition.process(SourceRecord(offset, START_US, encode_batch(batch)))
    return partition.take()[1]


@pytest.mark.parametrize(
    ("fidelity", "ratio", "known"), [(Fidelity.FULL, 1.0, True), (Fidelity.SAMPLED, 0.5, False)]
)
def test_only_whole_passes_are_measured(fidelity: Fidelity, ratio: float, *, known: bool) -> None:
    """A pass of which a producer ships a sample says nothing of how uneven it was."""
    batch = batch_of(1)
    header = replace(
        batch.header, fidelity=fidelity, sampling_ratio=ratio, watermark_us=START_US + SECOND
    )
    output = rolled_up(replace(batch, header=header))
    told = {delta.scope_kind: delta.passes is not None for delta in output.deltas
            if delta.kind == "time"}  # fmt: skip
    assert told == {"all": known, "node": known, "scene": False}


def test_unseen_rows_are_missing_from_their_windows() -> None:
    """They are lost rows of the seconds that they were computed in, with the producer's reason."""
    first = batch_of(1)
    first = replace(first, header=replace(first.header, watermark_us=START_US))
    second = batch_of(2, start_us=START_US + SECOND)
    header = replace(
        second.header, sequence=1, labels={"unseen_reason": "unknown\nlayout"},
        drops=DropCounters(unseen_rows=10, ring_rows=1),
    )  # fmt: skip
    output = rolled_up(first, replace(second, header=header))
    lost = [delta.lost for delta in output.deltas
            if delta.kind == "time" and delta.scope_kind == "all"]  # fmt: skip
    assert sum(lost) == 11
    (account,) = output.batches[1:]
    assert (account.lost_rows, account.unseen_rows) == (11, 10)
    assert account.reasons == ("dropped_rows", "unseen_rows: unknown\\nlayout")


def test_rejected_rows_are_missing_from_their_windows() -> None:
    """Rows that a recorder refused were computed: coverage falls, and their batch is marked."""
    first = batch_of(1)
    first = replace(first, header=replace(first.header, watermark_us=START_US))
    second = batch_of(2, start_us=START_US + SECOND)
    header = replace(second.header, sequence=1, drops=DropCounters(rejected_rows=15, ring_rows=2))
    output = rolled_up(first, replace(second, header=header))
    lost = [delta.lost for delta in output.deltas
            if delta.kind == "time" and delta.scope_kind == "all"]  # fmt: skip
    assert sum(lost) == 17
    (account,) = output.batches[1:]
    assert (account.lost_rows, account.rejected_rows) == (2, 15)
    assert account.reasons == ("dropped_rows", "rejected_rows")
