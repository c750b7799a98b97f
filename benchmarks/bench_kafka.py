"""Kafka to committed windows: the same records as from the batch log, with a broker beside it."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from benchmarks.broker import Meter, fleet_settings, running_broker, what_is_missing
from benchmarks.figures import Baseline, Figure, Profile, Result
from benchmarks.harness import Scale, Side, main, take_turns
from benchmarks.live_fleet import load_in_words, measure_latencies
from benchmarks.logs import Log, left_open, write_simulation, write_stream
from benchmarks.rolling import (
    EVERY,
    FEW,
    LogRolling,
    Rolling,
    forget_cursors,
    watch_pipeline,
)
from benchmarks.stages import StageClock
from benchmarks.streams import WINDOW, dense_stream
from moescope.core.clock import SystemClock
from moescope.core.kafka import Topic, open_consumer, topic_name
from moescope.core.self_metrics import SelfMetrics
from moescope.processors.sources.kafka import KafkaSource
from moescope.producers.shipping import Shipper

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from support.kafka_broker import KafkaBroker

    from benchmarks.live_fleet import Latencies
    from moescope.core.settings import Settings
    from moescope.processors.config import WindowConfig

TITLE = "Kafka to committed windows"

TEXT = f"""
The streams of *Batch log to committed windows*, shipped to a topic of a native Apache Kafka (one
node, Java, at most 512 MiB of heap) on the same cores, then read by one process that rolls up and
stores (`store.source` = `routing`): from opening the consumer to the last commit in a new DuckDB
file, wall-clock time. *Embedded batch log* is the same pipeline over the batch log that the
records were shipped from, not sealed either, in turns; its ratio is what Kafka costs. *Few
windows*: token windows of {WINDOW} and time windows of 1, 5 and 60 s, the latter per node and
scene, too; *every kind*: the defaults. *Shipping*: the agent's shipper, from opening the client
until the broker has acknowledged every record of the log; *client alone*: the consumer reads the
topic and does nothing with it, the ceiling of any processor in this process. *CPU* is of all
threads of our process, and of the broker's, per 10⁹ assignments or per GB. *Latency*: a load in
real time, {load_in_words()}: each node writes a batch every second into its batch log, and the
shipper and the process that rolls up every kind follow it over Kafka; the load, the shipper and
the roll-up are threads of one process here, so that they wait for each other more than an agent
and a processor would.
"""

SHIPPING_SECONDS = 120.0
TARGET_LATENCY_S = 2.0


def measure(scale: Scale) -> Result:
    """Measure the topic."""
    missing = what_is_missing()
    if missing:
        print(f"left out: {missing}")
        return _result(f"Left out where this was written: {missing}", [], [])
    with (
        tempfile.TemporaryDirectory() as folder,
        running_broker(Path(folder) / "broker") as broker,
    ):
        return _measure(scale, Path(folder), broker)


def _result(text: str, figures: list[Figure], profiles: list[Profile]) -> Result:
    return Result(
        topic="kafka", title=TITLE, text=text, order=4, figures=figures, profiles=profiles
    )


class _Kind(NamedTuple):
    """A stream in a topic, and the windows that are rolled up of it."""

    what: str
    log: Log
    settings: Settings
    config: WindowConfig
    target: float


def _measure(scale: Scale, folder: Path, broker: KafkaBroker) -> Result:
    stream = dense_stream(quick=scale.quick)
    dense = left_open(
        write_stream(folder / "sealed-dense", stream, scale.pick(200, 8)), folder / "dense"
    )
    fleet = left_open(
        write_simulation(
            folder / "sealed-fleet", "healthy", seconds=scale.pick(180, 20), nodes=scale.pick(4, 1)
        ),
        folder / "fleet",
    )
    in_topic = {}
    for log, name in ((dense, "dense"), (fleet, "fleet")):
        in_topic[name] = fleet_settings(broker, name)
        _ship(in_topic[name], log)
    kinds = [
        _Kind("few windows, dense stream", dense, in_topic["dense"], FEW, 100),
        _Kind("every kind, dense stream", dense, in_topic["dense"], EVERY, 60),
        _Kind("few windows, simulated fleet", fleet, in_topic["fleet"], FEW, 100),
        _Kind("every kind, simulated fleet", fleet, in_topic["fleet"], EVERY, 60),
    ]
    rollings = [
        (
            Rolling(_opening(kind.settings), kind.config, folder / f"store-{number}"),
            LogRolling(kind.log, kind.config, folder / f"embedded-{number}"),
        )
        for number, kind in enumerate(kinds)
    ]
    for over_kafka, embedded in rollings:
        _check(over_kafka, embedded)
    sides: list[Side] = []
    meters: dict[str, Meter] = {}

    def metered(name: str, run: Callable[[], object], prepare: Callable[[], object]) -> None:
        meters[name] = meter = Meter(broker, run)
        sides.append(Side(name, 1, meter.run, prepare))

    for kind, (over_kafka, embedded) in zip(kinds, rollings, strict=True):
        metered(kind.what, over_kafka.run, over_kafka.prepare)
        metered(f"embedded {kind.what}", embedded.run, embedded.prepare)
    shipped = fleet_settings(broker, "shipped")
    for log, name in ((dense, "dense stream"), (fleet, "simulated fleet")):
        metered(
            f"ship {name}",
            lambda log=log: _ship(shipped, log),  # type: ignore[misc]
            lambda log=log: forget_cursors(log.root),  # type: ignore[misc]
        )
    for log, name in ((dense, "dense"), (fleet, "fleet")):
        metered(f"read {name}", _reading(in_topic[name], log), lambda: None)
    take_turns(sides, scale.pick(3, 1), clock=time.perf_counter)
    live = measure_latencies(fleet_settings(broker, "live"), folder / "live", scale.pick(30, 8))
    return _result(
        TEXT,
        [
            *(_speed(kind, meters) for kind in kinds),
            *_processor_cost(kinds[1], meters),
            *_client_alone(dense, fleet, meters),
            *_shipping(dense, fleet, meters),
            *_latency_figures(live),
        ],
        [
            _profile("every kind, dense stream", rollings[1][0]),
            _profile("every kind, simulated fleet", rollings[3][0]),
        ],
    )


def _opening(settings: Settings) -> Callable[[], KafkaSource]:
    return lambda: KafkaSource(settings, SelfMetrics(), SystemClock(), patient=False)


def _ship(settings: Settings, log: Log) -> None:
    with Shipper(settings, log.root, SelfMetrics()) as shipper:
        left = shipper.drain(seconds=SHIPPING_SECONDS)
    if left:
        message = f"{left} records were not acknowledged in {SHIPPING_SECONDS:.0f} s"
        raise AssertionError(message)


def _reading(settings: Settings, log: Log) -> Callable[[], None]:
    """The client alone: every record of the topic is made, and let go."""

    def run() -> None:
        from kafka import TopicPartition  # noqa: PLC0415 (as moescope does)

        topic = topic_name(settings, Topic.ROUTING)
        with closing(open_consumer(settings)) as consumer:
            numbers = consumer.partitions_for_topic(topic)
            consumer.assign([TopicPartition(topic, number) for number in numbers])
            consumer.seek_to_beginning()
            read = 0
            while read < log.records:
                for records in consumer.poll(timeout_ms=1_000).values():
                    read += len(records)

    return run


def _check(over_kafka: Rolling, embedded: Rolling) -> None:
    """Both ways have to give the same rows; this also warms both."""
    for rolling in (over_kafka, embedded):
        rolling.prepare()
        rolling.run()
    if over_kafka.counted() != embedded.counted():
        message = (
            f"Kafka gave {over_kafka.counted()} (tokens, rows), the batch log {embedded.counted()}"
        )
        raise AssertionError(message)
    gc.collect()


def _millions(log: Log, meter: Meter) -> list[float]:
    return [log.assignments / 1e6 / call.wall for call in meter.calls[1:]]


def _speed(kind: _Kind, meters: dict[str, Meter]) -> Figure:
    log = kind.log
    return Figure(
        what=kind.what,
        unit=f"M assignments/s, {os.cpu_count()} cores with the broker",
        values=_millions(log, meters[kind.what]),
        target=kind.target,
        baselines=[
            Baseline(
                name="embedded batch log, no broker at work",
                values=_millions(log, meters[f"embedded {kind.what}"]),
            )
        ],
        note=f"{log.assignments / 1e6:,.0f} M assignments in {log.records:,} records, "
        f"{log.wire_bytes / 1e6:,.0f} MB.",
    )


def _processor_cost(kind: _Kind, meters: dict[str, Meter]) -> list[Figure]:
    per = kind.log.assignments / 1e9
    over_kafka = meters[kind.what].calls[1:]
    embedded = meters[f"embedded {kind.what}"].calls[1:]
    return [
        Figure(
            what=f"{kind.what}: CPU of our process",
            unit="s per 10⁹ assignments",
            values=[call.own_cpu / per for call in over_kafka],
            better="lower",
            baselines=[
                Baseline(
                    name="embedded batch log", values=[call.own_cpu / per for call in embedded]
                )
            ],
        ),
        Figure(
            what=f"{kind.what}: CPU of the broker",
            unit="s per 10⁹ assignments",
            values=[call.broker_cpu / per for call in over_kafka],
            better="lower",
        ),
    ]


def _client_alone(dense: Log, fleet: Log, meters: dict[str, Meter]) -> list[Figure]:
    return [
        Figure(
            what=f"client alone, {name}",
            unit="M assignments/s",
            values=_millions(log, meters[f"read {key}"]),
            note=f"{log.wire_bytes / 1e6 / _median_wall(meters[f'read {key}']):,.0f} MB/s and "
            f"{log.records / _median_wall(meters[f'read {key}']):,.0f} records/s.",
        )
        for key, name, log in (
            ("dense", "dense stream", dense),
            ("fleet", "simulated fleet", fleet),
        )
    ]


def _median_wall(meter: Meter) -> float:
    return float(np.median([call.wall for call in meter.calls[1:]]))


def _shipping(dense: Log, fleet: Log, meters: dict[str, Meter]) -> list[Figure]:
    figures = []
    for name, log in (("dense stream", dense), ("simulated fleet", fleet)):
        calls = meters[f"ship {name}"].calls[1:]
        figures += [
            Figure(
                what=f"shipping, {name}",
                unit="M assignments/s",
                values=_millions(log, meters[f"ship {name}"]),
                note=f"{log.wire_bytes / 1e6 / _median_wall(meters[f'ship {name}']):,.0f} MB/s, "
                f"{log.records / _median_wall(meters[f'ship {name}']):,.0f} records/s.",
            )
        ]
        if log is dense:
            per = log.wire_bytes / 1e9
            figures += [
                Figure(
                    what=f"shipping, {name}: CPU of {whose}",
                    unit="s per GB",
                    values=[cpu / per for cpu in spent],
                    better="lower",
                )
                for whose, spent in (
                    ("our process", [call.own_cpu for call in calls]),
                    ("the broker", [call.broker_cpu for call in calls]),
                )
            ]
    return figures


def _latency_figures(live: Latencies) -> list[Figure]:
    def figures(what: str, seconds: Sequence[float], target: float | None) -> list[Figure]:
        return [
            Figure(
                what=f"{what}, {name}",
                unit="s",
                values=[float(np.quantile(seconds, level))],
                better="lower",
                target=target if name == "p99" else None,
                note=f"{len(seconds):,} of them." if name == "p50" else "",
            )
            for name, level in (("p50", 0.5), ("p99", 0.99))
        ]

    return [
        *figures(
            "latency: last token of a token window → its row committed",
            live.token.tolist(),
            TARGET_LATENCY_S,
        ),
        *figures(
            "latency: end of a time window and 2 s of lateness → its row committed",
            live.time.tolist(),
            TARGET_LATENCY_S,
        ),
        *figures("latency: batch in the batch log → committed", live.batch.tolist(), None),
    ]


def _profile(title: str, run: Rolling) -> Profile:
    from kafka import KafkaConsumer  # noqa: PLC0415 (as moescope does)

    from moescope.processors.sources.topic_reader import TopicReader  # noqa: PLC0415

    run.prepare()
    began = time.perf_counter()
    with StageClock() as clock:
        clock.watch("read: Kafka client", KafkaConsumer, "poll")
        clock.watch("read: ask for the ends", KafkaConsumer, "end_offsets")
        clock.watch("read: our buffers", TopicReader, "pump")
        clock.watch("read: our buffers", TopicReader, "poll")
        clock.watch("read: partitions", KafkaSource, "partitions")
        watch_pipeline(clock)
        run.run()
        stages = clock.stages()
    elapsed = time.perf_counter() - began
    return Profile(
        title=f"Where the time goes over Kafka: {title}",
        stages=stages,
        note=f"{elapsed:.1f} s of wall-clock time with the stages timed. The client's own I/O "
        "runs where it is called; the broker, DuckDB's threads and waiting are in no stage.",
    )


if __name__ == "__main__":
    main("kafka", measure)
