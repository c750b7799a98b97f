"""A paced load of a few nodes, from their batch logs over Kafka into committed rows."""

from __future__ import annotations

import shutil
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from benchmarks.rolling import EVERY, shapes
from benchmarks.streams import LAYERS, SECOND_US, Stream
from moescope.console.stopping import beside
from moescope.core.batchlog import BatchLogWriter
from moescope.core.clock import SystemClock
from moescope.core.self_metrics import SelfMetrics
from moescope.core.wire import encode_batch
from moescope.processors.finish import WindowFinisher
from moescope.processors.pipeline import Pipeline
from moescope.processors.sources.kafka import KafkaSource
from moescope.producers.agent.settings import AgentSettings
from moescope.producers.shipping import Shipper
from moescope.storage.shared.spans import LATENESS_US
from moescope.storage.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from moescope.core.batch import RoutingBatch
    from moescope.core.emission import CommitFacts
    from moescope.core.settings import Settings

NODES = 4
OPEN_REQUESTS = 64
TOKENS_PER_SECOND = 25
ARRIVAL_SECONDS = 5.0
WARM_SECONDS = 4
"""The first windows pay for connections and kernels."""


class Latencies(NamedTuple):
    """Seconds up to the commit, of every row or batch.

    Attributes:
        token: Token windows, from their last token.
        time: Time windows of scope `all`, from when they may close: their end, and lateness.
        batch: Batches, from when they were in the batch log.
    """

    token: NDArray[np.float64]
    time: NDArray[np.float64]
    batch: NDArray[np.float64]


class _CommitTimes:
    """Notes when each transaction had been committed."""

    def __init__(self) -> None:
        self.us: dict[int, int] = {}

    def reset(self) -> None:
        """Nothing rests on the file."""

    def committing(self, connection: object, facts: CommitFacts) -> None:
        """Nothing is added."""

    def committed(self, facts: CommitFacts) -> None:
        """It is in the file now."""
        self.us[facts.commit_id] = time.time_ns() // 1_000


class _Node:
    """Writes what an agent would: every second a batch of what was computed in it."""

    def __init__(self, root: Path, number: int, began_us: int) -> None:
        self.group_us = AgentSettings().group_us
        tokens = TOKENS_PER_SECOND * self.group_us // SECOND_US
        self._stream = Stream(
            OPEN_REQUESTS, tokens, OPEN_REQUESTS, self.group_us,
            node=f"node-{number}", seed=number,
        )  # fmt: skip
        # Nodes keep no step with each other.
        self._began_us = began_us + number * self.group_us // NODES
        self._writer = BatchLogWriter(root, self._stream.node)
        self._index = 0

    @property
    def due_us(self) -> int:
        """When the next batch is over."""
        return self._began_us + (self._index + 1) * self.group_us

    def write(self) -> None:
        self._writer.append(encode_batch(self._batch()))
        self._index += 1

    def close(self) -> None:
        self._writer.close()

    def _batch(self) -> RoutingBatch:
        batch = self._stream.batch(self._index)
        tokens, requests = batch.tokens, batch.requests
        assert tokens is not None  # noqa: S101 (narrowing)
        within = np.arange(self._stream.rows) % self._stream.tokens_per_request + 1
        time_us = self.due_us - self.group_us + within * self.group_us // within.max()
        return replace(
            batch,
            header=replace(
                batch.header, watermark_us=self.due_us, encoded_at_us=time.time_ns() // 1_000
            ),
            requests=replace(
                requests, ids=tuple(f"{self._stream.node}/{name}" for name in requests.ids)
            ),
            tokens=replace(tokens, event_time_us=time_us.astype(np.int64)),
        )


def measure_latencies(settings: Settings, folder: Path, seconds: int) -> Latencies:
    """Let the fleet run for so long."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    times = _CommitTimes()
    finisher = WindowFinisher()
    stop = threading.Event()
    with (
        Store(folder / "moescope.duckdb", finisher, shapes(EVERY), hook=times) as store,
        KafkaSource(settings, SelfMetrics(), SystemClock()) as source,
        Shipper(settings, folder / "log", SelfMetrics()) as shipper,
    ):
        pipeline = Pipeline(source, store, finisher, EVERY)
        with (
            beside(shipper.run, stop, "shipper"),
            beside(lambda stop: pipeline.run(stop=stop), stop, "pipeline"),
        ):
            _write_load(folder / "log", seconds, stop)
            # What was written last has to arrive.
            stop.wait(ARRIVAL_SECONDS)
        return _latencies(store, times.us)


def _write_load(root: Path, seconds: int, stop: threading.Event) -> None:
    began_us = time.time_ns() // 1_000
    nodes = [_Node(root, number, began_us) for number in range(NODES)]
    end_us = began_us + seconds * SECOND_US
    try:
        while (node := min(nodes, key=lambda node: node.due_us)).due_us <= end_us:
            wait_us = node.due_us - time.time_ns() // 1_000
            if stop.wait(max(0, wait_us) / SECOND_US):
                return
            node.write()
    finally:
        for node in nodes:
            node.close()


def _latencies(store: Store, committed_us: dict[int, int]) -> Latencies:
    cursor = store.cursor()

    def seconds(query: str) -> NDArray[np.float64]:
        rows = cursor.execute(query).fetchnumpy()
        committed = np.array([committed_us[int(each)] for each in rows["commit_id"]], np.int64)
        warm = min(rows["us"]) + WARM_SECONDS * SECOND_US
        return np.asarray((committed - rows["us"])[rows["us"] >= warm] / SECOND_US)

    try:
        return Latencies(
            token=seconds(
                "SELECT commit_id, epoch_us(last_time) AS us FROM windows"
                " WHERE window_kind = 'token' AND layer = 0"
            ),
            time=seconds(
                f"SELECT commit_id, start + size + {LATENESS_US} AS us FROM windows"  # noqa: S608 - a number of our own
                " WHERE window_kind = 'time' AND scope_kind = 'all' AND layer = 0"
            ),
            batch=seconds("SELECT commit_id, epoch_us(append_time) AS us FROM batches"),
        )
    finally:
        cursor.close()


def load_in_words() -> str:
    """What the fleet does."""
    return (
        f"{NODES} nodes with {OPEN_REQUESTS} open requests each, at {TOKENS_PER_SECOND} tokens per"
        f" second and request ({NODES * OPEN_REQUESTS * TOKENS_PER_SECOND * LAYERS * 8 / 1e6:.1f} M"
        " assignments/s)"
    )
