from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.batches import START_US, make_batch

from moescope.core.batch import DropCounters, RoutingBatch, TokenBlocks
from moescope.core.batchlog import BatchLogWriter
from moescope.core.vocabulary import Fidelity, IdSpace, RowFlag
from moescope.core.wire import encode_batch
from moescope.processors.config import WindowConfig
from moescope.processors.nodes import REMEMBERED_INCARNATIONS, Node, Sighting
from moescope.processors.partition import Partition, PartitionOutput
from moescope.processors.sources.batch_log import BatchLogSource, LogRewoundError
from moescope.processors.sources.protocol import SourceRecord
from moescope.processors.traffic_mix import spread

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = WindowConfig(token=((8, 8),), row_budget=10**9)


def rolled_up(*batches: RoutingBatch) -> PartitionOutput:
    """What a fresh partition makes of these batches, one record each."""
    partition = Partition("p", "live", CONFIG, None)
    for offset, batch in enumerate(batches):
        partition.process(SourceRecord(offset, START_US, encode_batch(batch)))
    return partition.take()[1]


def tokens_counted(output: PartitionOutput, top_k: int) -> int:
    """Tokens at the first layer in 1 s panes over everything."""
    panes = [d for d in output.deltas if d.kind == "time" and d.scope_kind == "all"]
    return sum(int(delta.counts[0].sum()) for delta in panes) // top_k


def one_request(ids: np.ndarray[Any, Any], sequence: int, first: int) -> RoutingBatch:
    """Rows of one request from a position on."""
    return make_batch(
        tokens=len(ids),
        layers=ids.shape[1],
        experts=16,
        top_k=ids.shape[2],
        requests=1,
        prompt_tokens=10_000,
        first_position=first,
        expert_ids=ids,
        header={"sequence": sequence},
    )


def test_a_stuck_buffer_is_noticed_however_it_is_cut() -> None:
    """A run of identical rows goes on over batches whose head repeats the last rows as context."""
    ids = np.tile(np.array([1, 5], np.uint16), (64, 2, 1))
    whole = rolled_up(one_request(ids, 0, 0))
    second = one_request(ids[:34], 1, 30)
    assert second.tokens is not None
    flags = second.tokens.flags.copy()
    flags[:2] = RowFlag.CONTEXT
    second = replace(second, tokens=replace(second.tokens, flags=flags))
    cut = rolled_up(one_request(ids[:32], 0, 0), second)
    assert tokens_counted(whole, 2) == tokens_counted(cut, 2) == 32
    assert "identical_rows" in whole.batches[0].reasons
    assert "identical_rows" in cut.batches[1].reasons


def test_physical_ids_are_not_counted_as_experts() -> None:
    """Replica numbers never mix with logical experts; the batch is accounted for with a reason."""
    output = rolled_up(make_batch(header={"id_space": IdSpace.PHYSICAL}))
    assert not output.deltas
    (account,) = output.batches
    assert (account.rows, account.accepted_rows, account.reasons) == (64, 0, ("physical_ids",))


def test_counts_that_do_not_add_up_are_kept_out() -> None:
    """A piece whose layer holds more or fewer than tokens x k assignments says nothing there."""
    batch = make_batch(tokens=1, layers=2, experts=4, top_k=2, requests=1)
    counts = np.zeros((1, 2, 4), np.uint32)
    counts[0, 0] = [8, 8, 0, 0]
    counts[0, 1] = [99, 8, 0, 0]
    piece = TokenBlocks(
        request=np.zeros(1, np.int32),
        phase=np.zeros(1, np.uint8),
        flags=np.zeros(1, np.uint8),
        start_position=np.zeros(1, np.int32),
        tokens=np.full(1, 8, np.int32),
        counts=counts,
        first_time_us=np.full(1, START_US),
        last_time_us=np.full(1, START_US),
    )
    batch = RoutingBatch(
        header=replace(batch.header, fidelity=Fidelity.COUNTS),
        requests=batch.requests,
        token_blocks=piece,
    )
    partition = Partition("p", "live", replace(CONFIG, token=((128, 128),)), None)
    partition.process(SourceRecord(0, START_US, encode_batch(batch)))
    partition.seal()
    output = partition.take()[1]
    (task,) = (delta for delta in output.deltas if delta.kind == "task")
    assert task.counts.tolist() == [[8, 8, 0, 0], [0, 0, 0, 0]]
    assert output.batches[0].reasons == ("counts_mismatch",)
    assert output.batches[0].suspicious_pairs == 8


def test_lost_rows_go_where_the_traffic_was() -> None:
    """Dropped rows are spread over phases and scenes like the rows beside them, none left over."""
    first = make_batch(tokens=64, requests=4, prompt_tokens=4, header={"watermark_us": START_US})
    second = make_batch(
        1,
        tokens=64,
        requests=4,
        first_position=16,
        prompt_tokens=20,
        start_us=START_US + 2_500_000,
        header={"sequence": 1, "drops": replace(first.header.drops, ring_rows=101)},
    )
    output = rolled_up(first, second)
    time = [delta for delta in output.deltas if delta.kind == "time"]
    for kind in ("all", "node", "scene"):
        assert sum(delta.lost for delta in time if delta.scope_kind == kind) == 101
    by_phase = {
        phase: sum(d.lost for d in time if d.scope_kind == "all" and d.phase == phase)
        for phase in ("prefill", "decode")
    }
    # A quarter of the second batch's rows is prefill.
    assert by_phase in ({"prefill": 25, "decode": 76}, {"prefill": 26, "decode": 75})


def test_every_second_of_a_long_outage_tells_of_its_loss() -> None:
    """Ten minutes without a broker: each second of them lacks rows and says so."""
    first = make_batch(tokens=64, header={"watermark_us": START_US})
    drops = replace(first.header.drops, ring_rows=60_000)
    after = START_US + 600_000_000
    second = make_batch(
        1, tokens=64, start_us=after, header={"sequence": 1, "drops": drops, "watermark_us": after}
    )
    output = rolled_up(first, second)
    lost = {d.pane for d in output.deltas if d.kind == "time" and d.scope_kind == "all" and d.lost}
    assert lost == set(range(START_US, after + 1, 1_000_000))


def test_rows_are_spread_without_remainder() -> None:
    """Shares add up to the total and are within one of proportional."""
    mix = {(0, "a"): 1, (1, "a"): 3, (1, "b"): 3}
    for total in (0, 1, 5, 99, 100):
        shares = spread(total, mix)
        assert sum(shares.values()) == total
        assert all(abs(shares[key] - total * rows / 7) < 1 for key, rows in mix.items())


def test_an_old_boot_never_counts_twice() -> None:
    """Batches of a boot that was forgotten are refused, since nobody can tell if they are new."""
    node = Node("n")
    for boot in range(REMEMBERED_INCARNATIONS + 1):
        assert node.sight(boot, 0) == (Sighting.NEW, 0)
    assert node.sight(0, 0)[0] is Sighting.TOO_OLD
    assert node.sight(1, 0)[0] is Sighting.DUPLICATE


@pytest.mark.parametrize(
    "changes",
    [
        {"watermark_us": 2**62},
        {"encoded_at_us": -5},
        {"drops": DropCounters(ring_rows=2**62)},
    ],
    ids=["watermark", "clock", "drops"],
)
def test_numbers_that_no_table_holds_are_dead_letters(changes: dict[str, Any]) -> None:
    """One absurd header is put aside, and the batch behind it is counted."""
    output = rolled_up(make_batch(header=changes), make_batch(header={"sequence": 1}))
    (letter,) = output.dead_letters
    assert (letter.reason, letter.offset) == ("out_of_range", 0)
    assert [account.offset for account in output.batches] == [1]


def test_absurd_times_and_steps_are_dead_letters() -> None:
    """A time in nanoseconds or a wrapped step never reaches a window."""
    batch = make_batch()
    assert batch.tokens is not None
    rows = len(batch.tokens)
    for tokens in (
        replace(batch.tokens, event_time_us=np.full(rows, START_US * 1000)),
        replace(batch.tokens, step=np.full(rows, -1)),
    ):
        output = rolled_up(replace(batch, tokens=tokens))
        assert [letter.reason for letter in output.dead_letters] == ["out_of_range"]
        assert not output.batches


def test_a_watermark_from_the_future_does_not_move_the_partition() -> None:
    """One producer with a wrong clock must not make everybody else's rows late."""
    partition = Partition("p", "live", CONFIG, None)
    wrong = make_batch(header={"watermark_us": START_US + 3_600_000_000})
    right = make_batch(header={"node": "node-1", "watermark_us": START_US})
    partition.process(SourceRecord(0, START_US, encode_batch(wrong)))
    partition.process(SourceRecord(1, START_US, encode_batch(right)))
    assert partition.watermark_us == START_US
    assert "clock_skew" in partition.take()[1].batches[0].reasons


def test_a_log_that_was_replaced_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    """Records of a new log at offsets that were processed before are refused, not skipped."""
    with BatchLogWriter(tmp_path, "node") as log:
        log.append(b"one")
        log.flush()
    source = BatchLogSource(tmp_path)
    assert source.partitions() == {"node": "live"}
    assert len(source.poll("node", 0, 10, 1 << 20).records) == 1
    with pytest.raises(LogRewoundError):
        source.poll("node", 5, 10, 1 << 20)
