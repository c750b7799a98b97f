from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from moescope.core.batchlog import BatchLogReader, BatchLogWriter
from moescope.core.clock import END_OF_TIME
from moescope.core.wire import decode_batch, encode_batch
from moescope.producers.replay import Replay, ReplayError
from moescope.producers.simulator import scenario_named, simulate

if TYPE_CHECKING:
    from pathlib import Path

    from moescope.core.batch import RoutingBatch

START_US = 2_000_000_000_000_000


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two short recordings, made by the simulator."""
    root = tmp_path_factory.mktemp("recordings")
    for prefix, seed in (("first", 1), ("second", 2)):
        simulate(
            scenario_named("healthy"), root, seed=seed, duration_s=20, nodes=1,
            node_prefix=prefix, domain=prefix,
        )  # fmt: skip
    return root


def batches(root: Path, partition: str) -> list[RoutingBatch]:
    """Every batch of a partition."""
    with BatchLogReader(root, partition) as reader:
        return [decode_batch(record.payload) for record in reader.read(0, 10_000, 1 << 30).records]


def rows(found: list[RoutingBatch]) -> tuple[list[tuple[str, int, int]], list[int], np.ndarray]:
    """(request, position, phase) of every row but context rows, its time, and its expert ids."""
    keys, times, ids = [], [], []
    for batch in found:
        if batch.tokens is None or batch.routes is None:
            continue
        assert batch.tokens.event_time_us is not None
        own = np.flatnonzero((batch.tokens.flags & 1) == 0)
        for row in own.tolist():
            request = batch.requests.ids[batch.tokens.request[row]]
            keys.append((request, int(batch.tokens.position[row]), int(batch.tokens.phase[row])))
        times += batch.tokens.event_time_us[own].tolist()
        ids.append(np.sort(batch.routes.expert_ids[own], axis=2))
    return keys, times, np.concatenate(ids)


def test_routing_is_played_as_it_was_recorded(recordings: Path, tmp_path: Path) -> None:
    """A replay changes when and under which name, and nothing else."""
    with Replay(tmp_path, "replayed", domain="recordings") as replay:
        end_us = replay.play(recordings, "first-000", START_US)
        replay.play(recordings, "second-000", end_us + 60_000_000)
    played = batches(tmp_path, "replayed")
    keys, times, ids = rows(played)
    expected = [rows(batches(recordings, name)) for name in ("first-000", "second-000")]
    assert keys == [
        (f"{name}/{request}", position, phase)
        for name, (listed, _, _) in zip(("first-000", "second-000"), expected, strict=True)
        for request, position, phase in listed
    ]
    assert np.array_equal(ids, np.concatenate([part for _, _, part in expected]))
    first = expected[0][1]
    moved = START_US - min(first)
    assert times[: len(first)] == [time + moved for time in first]
    assert end_us == max(first) + moved
    assert [batch.header.sequence for batch in played] == list(range(len(played)))
    assert {batch.header.node for batch in played} == {"replayed"}
    assert replay.totals.records == len(played)


def test_a_replay_waits_with_a_heartbeat(recordings: Path, tmp_path: Path) -> None:
    """Time can pass between two recordings, and its node stays behind nobody."""
    with Replay(tmp_path, "replayed", domain="recordings") as replay:
        end_us = replay.play(recordings, "first-000", START_US)
        replay.wait_until(end_us + 1_000_000)
        with pytest.raises(ReplayError, match="in the past"):
            replay.play(recordings, "second-000", end_us)
    last = batches(tmp_path, "replayed")[-1]
    assert last.is_heartbeat
    assert last.header.watermark_us == end_us + 1_000_000


def test_a_part_of_a_recording_can_be_played(recordings: Path, tmp_path: Path) -> None:
    """A minute of a long recording is exactly its rows, and a cut through a batch is refused."""
    (_, times, ids) = rows(batches(recordings, "first-000"))
    begin_us = min(times) // 1_000_000 * 1_000_000
    part = (begin_us + 5_000_000, begin_us + 9_000_000)
    with Replay(tmp_path, "replayed", domain="recordings") as replay:
        replay.play(recordings, "first-000", START_US, part)
        with pytest.raises(ReplayError, match="inside of a batch"):
            replay.play(
                recordings, "first-000", START_US + 60_000_000, (part[0] + 500_000, part[1])
            )
    (_, played, played_ids) = rows(batches(tmp_path, "replayed"))
    chosen = [index for index, time in enumerate(times) if part[0] <= time < part[1]]
    moved = START_US - min(times[index] for index in chosen)
    assert played[: len(chosen)] == [times[index] + moved for index in chosen]
    assert np.array_equal(played_ids[: len(chosen)], ids[chosen])


def test_a_recording_that_cannot_be_played_is_refused(recordings: Path, tmp_path: Path) -> None:
    """Another model, damage and emptiness are errors, not silently wrong routing."""
    damaged = tmp_path / "damaged"
    payloads = [encode_batch(batch) for batch in batches(recordings, "first-000")]
    with BatchLogWriter(damaged, "torn") as writer:
        for payload in payloads:
            writer.append(payload, append_time_us=START_US)
    (segment,) = (damaged / "torn").glob("*.seg")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0xFF
    segment.write_bytes(content)
    with pytest.raises(ReplayError, match="gap"), Replay(tmp_path, "a", domain="x") as replay:
        replay.play(damaged, "torn", START_US)
    with BatchLogWriter(damaged, "empty"):
        pass
    with pytest.raises(ReplayError, match="no row"), Replay(tmp_path, "b", domain="x") as replay:
        replay.play(damaged, "empty", START_US)


def test_the_end_of_a_recording_is_not_the_end_of_its_node(
    recordings: Path, tmp_path: Path
) -> None:
    """A recording whose node said that nothing follows can be followed by another one."""
    with Replay(tmp_path, "replayed", domain="recordings") as replay:
        replay.play(recordings, "first-000", START_US)
    marks = [batch.header.watermark_us for batch in batches(tmp_path, "replayed")]
    assert END_OF_TIME not in marks
    assert marks == sorted(marks)
