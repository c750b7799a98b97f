"""Captured routing and a timetable → a sealed batch log, through the real recorder and agent."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from examples.tiny_moe.capture import profile_of
from examples.tiny_moe.timetable import TICK_US
from moescope.core.batchlog import BatchLogWriter, WriterSettings
from moescope.core.clock import ManualClock
from moescope.producers import Recorder
from moescope.producers.agent import Agent, AgentSettings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from examples.tiny_moe.capture import Routed

_RING_BYTES: Final = 64 * 1024 * 1024
_NEVER_US: Final = 2**60
_LOG: Final = WriterSettings(durability="none")
_SETTINGS: Final = AgentSettings(heartbeat_us=_NEVER_US, log=_LOG)


class TimedRows(NamedTuple):
    """Rows of one request that are computed in one tick.

    Attributes:
        time_us: int64, one per row; all rows of a recording's tick lie within a second.
        rows: Indices of the request's rows.
        is_last: Whether the request ends with them.
    """

    request: Routed
    time_us: NDArray[np.int64]
    rows: slice
    is_last: bool


@dataclass(slots=True)
class Written:
    """What went into a recording."""

    tokens: int = 0
    requests: int = 0
    first_us: int = 2**62
    last_us: int = 0
    bytes: int = 0


def write_recording(
    root: Path, name: str, timed: Iterable[TimedRows], *, labels: dict[str, str]
) -> Written:
    """Write one partition of a batch log, named like the recording and its node, and seal it.

    Args:
        root: Log root; the partition must not exist.
        name: Of the recording.
        timed: In any order.
        labels: Of the batches' headers.
    """
    by_tick: dict[int, list[TimedRows]] = defaultdict(list)
    for item in timed:
        by_tick[int(item.time_us[0]) // TICK_US].append(item)
    clock = ManualClock(min(by_tick) * TICK_US)
    written = Written()
    with tempfile.TemporaryDirectory() as folder:
        recorder = _recorder(name, Path(folder), clock, labels)
        with Agent(folder, root, clock=clock, settings=_SETTINGS) as agent:
            seen: set[str] = set()
            for tick in sorted(by_tick):
                _write_tick(recorder, by_tick[tick], clock, seen, written)
                agent.run_once(flush=True)
            recorder.close()
            agent.drain()
            counted = recorder.counters()
            if counted.recorded_rows != written.tokens or counted.recomputed_rows:
                raise RuntimeError(f"{name}: {counted} for {written.tokens} tokens")
    BatchLogWriter(root, name, settings=_LOG).seal()
    partition = root / name
    (partition / "writer.lock").unlink()
    written.requests = len(seen)
    written.bytes = sum(path.stat().st_size for path in partition.iterdir())
    return written


def _recorder(name: str, folder: Path, clock: ManualClock, labels: dict[str, str]) -> Recorder:
    profile = asdict(profile_of(name))
    profile.pop("ranks")
    return Recorder(
        **(profile | {"labels": labels}),
        directory=folder,
        clock=clock,
        ring_bytes=_RING_BYTES,
        incarnation=int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little"),
    )


def _write_tick(
    recorder: Recorder,
    items: list[TimedRows],
    clock: ManualClock,
    seen: set[str],
    written: Written,
) -> None:
    items.sort(key=lambda item: (int(item.time_us[0]), item.request.id))
    for item in items:
        request = item.request
        if request.id not in seen:
            seen.add(request.id)
            recorder.begin_request(
                request.id, request.prompt_tokens, request.cached_tokens, request.task,
                request.scene,
            )  # fmt: skip
    times = np.concatenate([item.time_us for item in items])
    _record(recorder, items, times)
    clock.set_us(int(times.max()) + 1)
    for item in items:
        if item.is_last:
            recorder.end_request(item.request.id, last_of_task=True)
    written.tokens += len(times)
    written.first_us = min(written.first_us, int(times.min()))
    written.last_us = max(written.last_us, int(times.max()))


def _record(recorder: Recorder, items: list[TimedRows], times: NDArray[np.int64]) -> None:
    parts: list[dict[str, NDArray[Any]]] = [
        {name: column[item.rows] for name, column in item.request.joined().items()}
        for item in items
    ]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    recorder.record(
        [item.request.id for item in items],
        columns["position"],
        columns["expert_ids"],
        columns["phase"],
        entropy=columns.get("entropy"),
        margin=columns.get("margin"),
        step=columns.get("step"),
        event_time_us=times,
        rows_per_request=[len(item.time_us) for item in items],
    )
