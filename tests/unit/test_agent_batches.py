from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.rings import (
    EXPERTS,
    LAYERS,
    START_US,
    TOP_K,
    assert_dense,
    ids_of,
    logged,
    lost_rows,
    rows_of,
    small_recorder,
)

from moescope.core.batchlog import BatchLogFullError, Cursor, WriterSettings
from moescope.core.clock import ManualClock
from moescope.core.errors import SettingsError
from moescope.core.vocabulary import Phase, RowFlag
from moescope.producers.agent import Agent, AgentLockedError, AgentSettings
from moescope.producers.agent.node_log import NodeLog

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from moescope.producers import Recorder

SECOND = 1_000_000


class Bench:
    """A recorder and an agent on one clock that the test moves."""

    def __init__(
        self,
        folder: Path,
        settings: AgentSettings | None = None,
        **recorder: Any,
    ) -> None:
        self.folder = folder
        self.root = folder / "log"
        self.clock = ManualClock(START_US)
        self.settings = settings or AgentSettings(log=WriterSettings(durability="none"))
        self.recorder: Recorder = small_recorder(folder, clock=self.clock, **recorder)
        self.agent = self.new_agent()
        self.serial = 0

    def new_agent(self) -> Agent:
        """An agent as it is after a start."""
        return Agent(self.folder, self.root, clock=self.clock, settings=self.settings)

    def restart_agent(self) -> None:
        """What a killed and restarted agent has: the files, and no memory."""
        self.agent.close()
        self.agent = self.new_agent()

    def record(
        self,
        request: str,
        *positions: int,
        phase: str = "decode",
        **more: Any,
    ) -> None:
        """Record rows of one request with serial numbers as token ids."""
        serials = range(self.serial, self.serial + len(positions))
        self.serial += len(positions)
        self.recorder.record(
            request, positions, ids_of(serials), phase, token_ids=np.array(serials), **more
        )

    def close(self) -> None:
        """Let go of everything."""
        self.agent.close()
        self.recorder.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A recorder and an agent with default settings."""
    made = Bench(tmp_path)
    yield made
    made.close()


def serials(bench: Bench) -> list[int]:
    """Serial numbers of all rows in the log that are not repetitions."""
    return [row.serial for row in rows_of(logged(bench.root)) if not row.is_context]


def test_rows_are_grouped_by_request_in_recorded_order(bench: Bench) -> None:
    """A batch holds each request's rows together, as they were recorded, with its facts."""
    bench.recorder.begin_request("a", prompt_tokens=2, cached_tokens=1, task="t", scene="chat")
    for position in range(1, 5):
        for name in "ba":
            bench.record(name, position)
    bench.agent.drain()
    (batch, *_), *others = logged(bench.root)
    assert others == []
    rows = list(rows_of(logged(bench.root)))
    assert [(row.request, row.position) for row in rows] == [
        (name, position) for name in "ba" for position in range(1, 5)
    ]
    assert [row.serial for row in rows] == [0, 2, 4, 6, 1, 3, 5, 7]
    for row in rows:
        expected = tuple(tuple(sorted(layer)) for layer in ids_of([row.serial])[0].tolist())
        assert row.expert_ids == expected
    a = batch.requests.ids.index("a")
    assert (batch.requests.tasks[a], batch.requests.scenes[a]) == ("t", "chat")
    assert batch.requests.phase_starts[a, Phase.DECODE] == 2
    assert batch.requests.phase_starts[1 - a, Phase.DECODE] == -1
    assert batch.requests.cached_tokens[a] == 1
    assert (batch.header.node, batch.header.model) == ("node-a", "tiny")


def test_the_last_two_rows_are_repeated_in_the_next_batch(bench: Bench) -> None:
    """Sequence metrics need no earlier batch; repetitions are flagged and come first."""
    bench.record("a", 0, 1, 2, phase="prefill")
    bench.record("b", 0, phase="prefill")
    bench.agent.drain()
    bench.record("a", 3)
    bench.record("c", 0)
    bench.agent.drain()
    bench.record("a", 4)
    bench.record("b", 1)
    bench.agent.drain()
    rows = [(row.batch, row.request, row.serial, row.flags) for row in rows_of(logged(bench.root))]
    context = int(RowFlag.CONTEXT)
    assert rows[4:] == [
        (1, "a", 1, context), (1, "a", 2, context), (1, "a", 4, 0), (1, "c", 5, 0),
        (2, "a", 2, context), (2, "a", 4, context), (2, "a", 6, 0),
        (2, "b", 3, context), (2, "b", 7, 0),
    ]  # fmt: skip


def test_rows_that_never_count_are_no_context(bench: Bench) -> None:
    """Padding, recomputed and draft rows are shipped, but not repeated."""
    bench.record("a", 0, 1, 2)
    bench.record("a", 1)
    bench.record("a", 5, phase="draft")
    bench.record("a", 6, padding=[True])
    bench.agent.drain()
    bench.record("a", 3)
    bench.agent.drain()
    second = [row for row in rows_of(logged(bench.root)) if row.batch == 1]
    assert [(row.position, row.is_context) for row in second] == [(1, True), (2, True), (3, False)]


@pytest.mark.parametrize("last_of_task", [False, True])
def test_an_end_marks_the_last_row_or_repeats_it(bench: Bench, *, last_of_task: bool) -> None:
    """The end of a request reaches the processor, whenever it comes."""
    bench.record("early", 0, 1)
    bench.record("late", 0, 1)
    bench.recorder.end_request("early", last_of_task=last_of_task)
    bench.agent.drain()
    bench.recorder.end_request("late", last_of_task=last_of_task)
    bench.recorder.end_request("never seen")
    bench.agent.drain()
    end = int(RowFlag.LAST_OF_REQUEST) | (int(RowFlag.LAST_OF_TASK) if last_of_task else 0)
    rows = [(row.request, row.serial, row.flags) for row in rows_of(logged(bench.root))]
    assert rows == [
        ("early", 0, 0), ("early", 1, end), ("late", 2, 0), ("late", 3, 0),
        ("late", 3, end | RowFlag.CONTEXT),
    ]  # fmt: skip


def test_a_request_id_may_be_used_again_within_a_batch(bench: Bench) -> None:
    """The end stays with the rows before it, and the second life gets its own context."""
    bench.record("a", 0, 1)
    bench.recorder.end_request("a")
    bench.record("a", 0)
    bench.agent.drain()
    bench.record("a", 1)
    bench.agent.drain()
    flags = [row.flags for row in rows_of(logged(bench.root)) if not row.is_context]
    assert flags == [0, RowFlag.LAST_OF_REQUEST, 0, 0]


def test_a_batch_is_closed_after_one_second(bench: Bench) -> None:
    """Rows wait for company, but not longer than a second."""
    bench.record("a", 0)
    bench.agent.run_once()
    assert logged(bench.root) == []
    bench.clock.sleep(0.6)
    bench.record("a", 1)
    bench.agent.run_once()
    assert logged(bench.root) == []
    bench.clock.sleep(0.4)
    bench.agent.run_once()
    assert serials(bench) == [0, 1]


def test_no_batch_spans_more_than_a_second_or_the_byte_limit(tmp_path: Path) -> None:
    """Windows do not depend on how rows were cut into batches, nor do brokers on luck."""
    bench = Bench(tmp_path, AgentSettings(batch_bytes=4_000, log=WriterSettings(durability="none")))
    rng = np.random.default_rng(5)
    position = 0
    for _ in range(60):
        rows = int(rng.integers(1, 40))
        bench.clock.sleep(float(rng.random()))
        bench.recorder.record(
            "a", np.arange(position, position + rows), rng.integers(0, EXPERTS, (rows, 2, 2)),
            "decode", token_ids=rng.integers(0, 2**60, rows, dtype=np.uint64),
        )  # fmt: skip
        position += rows
    bench.agent.drain()
    batches = logged(bench.root)
    assert len(batches) > 10
    assert_dense(batches)
    for number, entry in enumerate(batches):
        times = [row.event_time_us for row in rows_of([entry]) if not row.is_context]
        assert max(times) - min(times) <= SECOND
        assert entry.payload_bytes <= 4_000
        following = [row.event_time_us for row in rows_of(batches[number + 1 :])
                     if not row.is_context]  # fmt: skip
        assert all(time >= entry.batch.header.watermark_us for time in following)
    positions = [row.position for row in rows_of(batches) if not row.is_context]
    assert positions == list(range(position))
    bench.close()


def test_a_quiet_node_sends_a_heartbeat_each_second(bench: Bench) -> None:
    """Silence and death look different, and the watermark goes on without rows."""
    bench.record("a", 0)
    bench.agent.drain()
    for _ in range(35):
        bench.clock.sleep(0.1)
        bench.agent.run_once()
    heartbeats = [entry.batch for entry in logged(bench.root)[1:]]
    assert all(batch.is_heartbeat for batch in heartbeats)
    marks = [batch.header.watermark_us - START_US for batch in heartbeats]
    assert marks == [SECOND, 2 * SECOND, 3 * SECOND]
    assert_dense(logged(bench.root))


def test_a_stopped_engine_keeps_its_watermark_moving_for_a_while(bench: Bench) -> None:
    """Windows that an engine left open close without a successor; then its ring goes."""
    bench.record("a", 0)
    bench.recorder.close()
    for _ in range(70):
        bench.clock.sleep(1)
        bench.agent.run_once()
    batches = [entry.batch for entry in logged(bench.root)]
    assert batches[-1].is_heartbeat
    assert batches[-1].header.watermark_us == START_US + 70 * SECOND
    assert len(list(bench.folder.glob("*.ring"))) == 1
    bench.clock.sleep(bench.settings.linger_us / 1e6)
    bench.agent.run_once()
    bench.agent.run_once()
    assert not list(bench.folder.glob("*.ring"))
    assert_dense(logged(bench.root))


def test_the_watermark_waits_for_a_call_that_is_half_done(bench: Bench) -> None:
    """A row that has its time but is not visible yet is never declared impossible."""
    ring = bench.recorder._ring  # noqa: SLF001 - a call stopped in the middle
    assert ring is not None
    bench.agent.run_once()
    ring.enter()
    bench.clock.sleep(5)
    bench.agent.run_once()
    assert logged(bench.root) == []
    ring.leave()
    bench.agent.run_once()
    assert [entry.batch.header.watermark_us for entry in logged(bench.root)] == [
        START_US + 5 * SECOND
    ]


def test_rejected_rows_are_reported_once(bench: Bench) -> None:
    """What the recorder refused travels with the next batch, and not again after a restart."""
    bench.recorder.record("a", [0, 1, 2], ids_of(range(2)), "decode")
    bench.record("a", 0)
    bench.agent.drain()
    bench.restart_agent()
    bench.record("a", 1)
    bench.agent.drain()
    assert [entry.batch.header.drops.rejected_rows for entry in logged(bench.root)] == [3, 0]


@pytest.mark.parametrize("restart", [False, True])
def test_rows_overwritten_while_nobody_read_are_counted_exactly(
    bench: Bench, *, restart: bool
) -> None:
    """Recorded = shipped + reported lost, also when the agent that knew the start is gone."""
    bench.record("a", *range(7))
    bench.agent.drain()
    if restart:
        bench.restart_agent()
    for position in range(7, 60_007, 50):
        bench.record("a", *range(position, position + 50))
    bench.agent.drain()
    batches = logged(bench.root)
    shipped = serials(bench)
    assert lost_rows(batches) > 0
    assert len(set(shipped)) == len(shipped)
    assert len(shipped) + lost_rows(batches) == bench.serial
    assert shipped[-1] == bench.serial - 1
    assert_dense(batches)


def test_a_restarted_agent_goes_on_where_the_log_ends(bench: Bench) -> None:
    """Nothing is shipped twice or under a second number, and context rows are known again."""
    for position in range(30):
        bench.record("a", position)
        if position % 4 == 0:
            bench.agent.drain()
        if position % 3 == 0:
            bench.restart_agent()
    bench.agent.drain()
    assert serials(bench) == list(range(30))
    batches = logged(bench.root)
    assert_dense(batches)
    for entry in batches[1:]:
        context = [row.serial for row in rows_of([entry]) if row.is_context]
        first = min(row.serial for row in rows_of([entry]) if not row.is_context)
        assert context == list(range(max(0, first - 2), first))


@pytest.mark.parametrize("is_appended", [False, True])
def test_a_crash_around_an_append_doubles_and_loses_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, is_appended: bool
) -> None:
    """Whether the note or the record was the last thing on disk, the next agent finds its place."""
    append = NodeLog.append

    def crash(log: NodeLog, *arguments: Any) -> None:
        if is_appended:
            append(log, *arguments)
        raise KeyboardInterrupt

    for position in range(0, 40, 2):
        bench.record("a", position, position + 1)
        with monkeypatch.context() as patched:
            patched.setattr(NodeLog, "append", crash)
            with pytest.raises(KeyboardInterrupt):
                bench.agent.run_once(flush=True)
        bench.restart_agent()
        if position % 8 == 0:
            bench.clock.sleep(1)
            bench.agent.run_once()
    bench.agent.drain()
    assert serials(bench) == list(range(40))
    assert_dense(logged(bench.root))
    assert lost_rows(logged(bench.root)) == 0


def test_a_new_incarnation_follows_the_old_one(bench: Bench) -> None:
    """The rows of a dead engine are shipped before those of its successor; its ring goes."""
    bench.record("a", 0, 1)
    bench.recorder.close()
    first, bench.recorder = bench.recorder, small_recorder(bench.folder, clock=bench.clock)
    bench.record("a", 0, 1)
    bench.agent.drain()
    assert serials(bench) == [0, 1, 2, 3]
    assert first.node == bench.recorder.node
    assert len({entry.batch.header.incarnation for entry in logged(bench.root)}) == 2
    assert len(list(bench.folder.glob("*.ring"))) == 1
    bench.recorder.close()
    bench.agent.drain()
    assert list(bench.folder.glob("*.ring")) == []
    assert bench.agent.counters().nodes == ()


def test_an_agent_of_two_nodes_keeps_them_apart(bench: Bench) -> None:
    """Two engines of a folder are two partitions, each with its own numbers."""
    with small_recorder(bench.folder, clock=bench.clock) as other:
        for position in range(5):
            bench.record("a", position)
            other.record("a", [position], ids_of([position]), "decode", token_ids=[position + 100])
            bench.agent.drain()
        for node, first in (("node-a", 0), ("node-a.1", 100)):
            batches = logged(bench.root, node)
            rows = [row.serial for row in rows_of(batches) if not row.is_context]
            assert rows == list(range(first, first + 5))
            assert_dense(batches)


def test_a_full_log_loses_nothing_that_fits_the_ring(tmp_path: Path) -> None:
    """While the log refuses, rows wait in the ring; afterwards all of them are shipped."""
    settings = AgentSettings(
        log=WriterSettings(byte_cap=4_000, cap_policy="refuse", durability="none")
    )
    bench = Bench(tmp_path, settings)
    bench.record("a", 0)
    bench.agent.drain()
    cursor = Cursor(bench.root, "node-a", "reader")
    seen: list[int] = []
    for position in range(1, 100):
        bench.record("a", position)
        if position % 5 == 0:
            bench.agent.run_once(flush=True)
    assert bench.agent.counters().failed_appends > 0
    with pytest.raises(BatchLogFullError):
        bench.agent.drain()
    for _ in range(20):
        batches = logged(bench.root)
        seen += [row.serial for row in rows_of(batches) if not row.is_context]
        cursor.advance(cursor.offset + len(batches))
        bench.agent.run_once(flush=True)
        seen = sorted(set(seen))
    bench.agent.drain()
    assert seen == list(range(100))
    bench.close()


def test_batches_that_the_cap_drops_are_reported(tmp_path: Path) -> None:
    """Rows in the log + rows that its batches tell as dropped = rows recorded.

    What a batch told that was itself dropped is told again: nobody has heard it.
    """
    bench = Bench(tmp_path, AgentSettings(log=WriterSettings(byte_cap=4_000, durability="none")))
    for position in range(60):
        bench.record("a", position)
        bench.agent.drain()
    kept = [batch.header for batch, *_ in logged(bench.root)]
    dropped = kept[0].sequence
    assert dropped > 30
    assert len(serials(bench)) + dropped == 60
    told_batches = sum(header.drops.log_batches for header in kept)
    assert told_batches == sum(header.drops.log_rows for header in kept)
    # The very last append dropped one segment; the next batch would tell of that.
    assert dropped - 6 <= told_batches <= dropped
    bench.close()


def test_counts_fidelity_ships_the_same_counts(tmp_path: Path) -> None:
    """Blocks of 128 tokens and seconds hold exactly what the rows would have."""
    bench = Bench(tmp_path, fidelity="counts", token_id_kind="off")
    bench.recorder.begin_request("a", prompt_tokens=150, cached_tokens=20, scene="chat")
    rng = np.random.default_rng(3)
    blocks: Counter[tuple[str, int, int, int, int]] = Counter()
    seconds: Counter[tuple[int, int, str, int, int]] = Counter()
    for start in range(20, 420, 40):
        bench.clock.sleep(0.4)
        for name, scene, anchor in (("a", "chat", 20), ("b", "unknown", 0)):
            ids = np.argsort(rng.random((40, len(LAYERS), EXPERTS)), axis=2)[:, :, :TOP_K]
            phase = "prefill" if start < 140 else "decode"
            now = bench.clock.now_us()
            bench.recorder.record(name, np.arange(start, start + 40), ids, phase)
            if name == "a" and phase == "decode":
                anchor = 150  # noqa: PLW2901 - the anchor belongs to the phase
            for row, layer, k in np.ndindex(ids.shape):
                block = (start + row - anchor) // 128
                cell = (layer, int(ids[row, layer, k]))
                blocks[name, int(Phase[phase.upper()]), block, *cell] += 1
                seconds[now // SECOND, int(Phase[phase.upper()]), scene, *cell] += 1
    bench.agent.drain()
    bench.recorder.end_request("a", last_of_task=True)
    bench.agent.drain()
    seen_blocks: Counter[tuple[str, int, int, int, int]] = Counter()
    seen_seconds: Counter[tuple[int, int, str, int, int]] = Counter()
    tokens = 0
    for batch, *_ in logged(bench.root):
        pieces, slices = batch.token_blocks, batch.time_blocks
        assert pieces is not None
        for piece in range(len(pieces)):
            name = batch.requests.ids[pieces.request[piece]]
            phase_value = int(pieces.phase[piece])
            anchor = 0 if name == "b" else (150 if phase_value == Phase.DECODE else 20)
            first = int(pieces.start_position[piece]) - anchor
            count = int(pieces.tokens[piece])
            assert count == 0 or first // 128 == (first + count - 1) // 128
            tokens += count
            for layer, expert in np.argwhere(pieces.counts[piece]):
                seen_blocks[name, phase_value, first // 128, int(layer), int(expert)] += int(
                    pieces.counts[piece, layer, expert]
                )
        for piece in range(len(slices) if slices else 0):
            assert slices is not None
            for layer, expert in np.argwhere(slices.counts[piece]):
                seen_seconds[
                    int(slices.second_us[piece]) // SECOND, int(slices.phase[piece]),
                    slices.scenes[slices.scene[piece]], int(layer), int(expert),
                ] += int(slices.counts[piece, layer, expert])  # fmt: skip
    assert tokens == 800
    assert seen_blocks == blocks
    assert seen_seconds == seconds
    last = logged(bench.root)[-1].batch.token_blocks
    assert last is not None
    assert last.tokens.tolist() == [0]
    assert last.start_position.tolist() == [420]
    assert last.flags.tolist() == [RowFlag.CONTEXT | RowFlag.LAST_OF_REQUEST | RowFlag.LAST_OF_TASK]
    bench.close()


def test_optional_columns_reach_the_batch(tmp_path: Path) -> None:
    """Weights, entropy, drops, steps and passes are in the batch; a change of columns cuts it."""
    bench = Bench(tmp_path, rank_order="weight", weight_bits=16)
    weights = np.tile([[[0.75, 0.25]]], (2, 2, 1))
    bench.record(
        "a", 0, 1, weights=weights, entropy=np.full((2, 2), 0.5), step=4, pass_id=[8, 9],
        dropped=np.tile([[[True, False]]], (2, 2, 1)),
    )  # fmt: skip
    bench.record("a", 2)
    bench.agent.drain()
    first, second = (entry.batch for entry in logged(bench.root))
    assert first.tokens is not None
    assert first.routes is not None
    assert first.tokens.step is not None
    assert first.tokens.step.tolist() == [4, 4]
    assert first.tokens.pass_id is not None
    assert first.tokens.pass_id.tolist() == [8, 9]
    assert first.routes.dropped is not None
    assert first.routes.dropped.sum() == 4
    assert first.routes.weights is not None
    assert first.routes.top1 is not None
    assert first.routes.entropy is not None
    assert second.routes is not None
    assert second.routes.weights is None
    assert serials(bench) == [0, 1, 2]
    bench.close()


def test_a_file_that_is_no_ring_is_set_aside(bench: Bench) -> None:
    """One damaged file does not stop the others, and is kept for a look."""
    (bench.folder / "ring-0000000000000001.ring").write_bytes(b"nonsense")
    bench.record("a", 0)
    bench.agent.drain()
    assert serials(bench) == [0]
    assert bench.agent.counters().unreadable_rings == 1
    assert (bench.folder / "ring-0000000000000001.ring.damaged").exists()


def test_a_running_agent_ships_until_it_is_told_to_stop(tmp_path: Path) -> None:
    """What was recorded before the stop is in the log when `run` returns."""
    stop = threading.Event()
    with small_recorder(tmp_path) as recorder, Agent(tmp_path, tmp_path / "log") as agent:
        thread = threading.Thread(target=agent.run, args=(stop,))
        thread.start()
        for serial in range(50):
            recorder.record("a", [serial], ids_of([serial]), "decode", token_ids=[serial])
        stop.set()
        thread.join()
        rows = rows_of(logged(tmp_path / "log"))
        assert [row.serial for row in rows if not row.is_context] == list(range(50))


def test_a_folder_has_one_agent(bench: Bench) -> None:
    """A second agent would number batches a second time: it is refused."""
    with pytest.raises(AgentLockedError):
        bench.new_agent()
    bench.restart_agent()


def test_rings_that_nobody_reads_do_not_fill_the_disk(bench: Bench) -> None:
    """An engine in a crash loop beside a dead agent keeps three rings; their rows are counted."""
    bench.agent.close()
    for _ in range(6):
        bench.record("a", 0, 1)
        bench.recorder.close()
        bench.clock.sleep(1)
        bench.recorder = small_recorder(bench.folder, clock=bench.clock)
    assert len(list(bench.folder.glob("*.ring"))) == 4
    bench.agent = bench.new_agent()
    bench.record("a", 0)
    bench.agent.drain()
    shipped = serials(bench)
    assert len(shipped) == 7
    assert len(shipped) + lost_rows(logged(bench.root)) == bench.serial == 13


@pytest.mark.parametrize(
    "settings", [{"group_us": 1_000_001}, {"group_us": -1}, {"heartbeat_us": 0},
                 {"poll_seconds": 0}, {"batch_bytes": 0}],
)  # fmt: skip
def test_wrong_agent_settings_are_refused(settings: dict[str, Any]) -> None:
    """A batch of more than a second would change windows: it cannot be asked for."""
    with pytest.raises(SettingsError):
        AgentSettings(**settings)
