"""A real Kafka broker to measure with, on the cores of the benchmark itself."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import psutil

from benchmarks.machine import ROOT
from moescope.console.kafka.topic_work import apply_topics
from moescope.core.settings import load_settings

sys.path.insert(0, str(ROOT / "tests"))

from support.kafka_broker import FETCH_LIBRARIES, KafkaBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from moescope.core.settings import Settings

JAVA_OPTIONS = ("-XX:TieredStopAtLevel=4", "-Xmx512m")
"""The tests' broker starts quickly and never compiles well: here it may."""


def what_is_missing() -> str:
    """What this machine lacks for a broker; empty where nothing is missing."""
    done = subprocess.run(  # noqa: S603 (ours)
        [str(FETCH_LIBRARIES)], check=False, capture_output=True, text=True
    )
    return "" if done.returncode == 0 else done.stderr.strip() or "Kafka's jars"


@contextmanager
def running_broker(folder: Path) -> Iterator[KafkaBroker]:
    """A broker of its own."""
    with KafkaBroker(folder, java_options=JAVA_OPTIONS) as broker:
        yield broker


def fleet_settings(broker: KafkaBroker, prefix: str, **options: str) -> Settings:
    """The default settings at a broker; the topics of that prefix are made."""
    settings = load_settings(
        environment={},
        options={
            "kafka.bootstrap_servers": broker.bootstrap,
            "kafka.topic_prefix": prefix,
            "kafka.group": prefix,
            **options,
        },
    )
    apply_topics(settings, lambda _: None)
    return settings


class Spent(NamedTuple):
    """Seconds of one call: on the wall, and of processors."""

    wall: float
    own_cpu: float
    broker_cpu: float


class Meter:
    """Calls that say what they cost, here and in the broker."""

    def __init__(self, broker: KafkaBroker, run: Callable[[], object]) -> None:
        self._broker = psutil.Process(broker.process_id)
        self._run = run
        self.calls: list[Spent] = []

    def run(self) -> None:
        """Call it."""
        wall, own, broker = time.perf_counter(), time.process_time(), self._broker_cpu()
        self._run()
        self.calls.append(
            Spent(
                time.perf_counter() - wall,
                time.process_time() - own,
                self._broker_cpu() - broker,
            )
        )

    def _broker_cpu(self) -> float:
        times = self._broker.cpu_times()
        return float(times.user + times.system)
