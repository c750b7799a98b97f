"""Kafka to committed windows: the same records as from the batch log, with a broker beside it."""

from __future__ import annotations

import gc
import tempfile
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.broker import Meter, fleet_settings, running_broker, what_is_missing
from benchmarks.figures import Figure, Profile, Result
from benchmarks.fleet_rolling import FleetRolling
from benchmarks.harness import Scale, Side, main, take_turns
from benchmarks.kafka_figures import (
    Kind,
    client_alone,
    group_speed,
    latency_figures,
    processor_cost,
    shipping,
    speed,
)
from benchmarks.live_fleet import load_in_words, measure_latencies
from benchmarks.logs import Log, left_open, write_simulation, write_stream
from benchmarks.processor_process import ProcessorProcess
from benchmarks.rolling import (
    EVERY,
    FEW,
    LogRolling,
    Rolling,
    counted,
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
    from collections.abc import Callable

    from support.kafka_broker import KafkaBroker

    from moescope.core.settings import Settings

TITLE = "Kafka to committed windows"

TEXT = f"""
The streams of *Batch log to committed windows*, shipped to a topic of a native Apache Kafka (one
node, Java, at most 512 MiB of heap) on the same cores, then read by one process that rolls up and
stores (`store.source` = `routing`): from opening the consumer to the last commit in a new DuckDB
file, wall-clock time. *Embedded batch log* is the same pipeline over the batch log that the
records were shipped from, not sealed either, in turns; its ratio is what Kafka costs. *Few
windows*: token windows of {WINDOW} and time windows of 1, 5 and 60 s, the latter per node and
scene, too; *every kind*: the defaults. *One processor of a group and the owner*: `store.source` =
`deltas`, two processes besides the broker: the processor joins the group, commits in transactions,
and the owner applies what it committed; from joining to the commit that holds the last record.
*Shipping*: the agent's shipper, from opening the client
until the broker has acknowledged every record of the log; *client alone*: the consumer reads the
topic and does nothing with it, the ceiling of any processor in this process. *CPU* is of all
threads of our process, and of the broker's, per 10⁹ assignments or per GB. *Latency*: a load in
real time, {load_in_words()}: each node writes a batch every second into its batch log, and the
shipper and the process that rolls up every kind follow it over Kafka; the load, the shipper and
the roll-up are threads of one process here, so that they wait for each other more than an agent
and a processor would.
"""

SHIPPING_SECONDS = 120.0


def measure(scale: Scale) -> Result:
    """Measure the topic."""
    missing = what_is_missing()
    if missing:
        print(f"left out: {missing}")
        return _result(f"Left out where this was written: {missing}", [], [])
    with (
        tempfile.TemporaryDirectory() as folder,
        running_broker(Path(folder) / "broker") as broker,
        ProcessorProcess() as processor,
    ):
        return _measure(scale, Path(folder), broker, processor)


def _result(text: str, figures: list[Figure], profiles: list[Profile]) -> Result:
    return Result(
        topic="kafka", title=TITLE, text=text, order=4, figures=figures, profiles=profiles
    )


def _measure(
    scale: Scale, folder: Path, broker: KafkaBroker, processor: ProcessorProcess
) -> Result:
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
        Kind("few windows, dense stream", dense, in_topic["dense"], FEW, 100),
        Kind("every kind, dense stream", dense, in_topic["dense"], EVERY, 60),
        Kind("few windows, simulated fleet", fleet, in_topic["fleet"], FEW, 100),
        Kind("every kind, simulated fleet", fleet, in_topic["fleet"], EVERY, 60),
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
    fleets = [
        FleetRolling(broker, _ship, kinds[number].log, processor, folder / f"fleet-{number}")
        for number in (1, 3)
    ]
    sides: list[Side] = []
    meters: dict[str, Meter] = {}

    def metered(name: str, run: Callable[[], object], prepare: Callable[[], object]) -> None:
        meters[name] = meter = Meter(broker, run)
        sides.append(Side(name, 1, meter.run, prepare))

    for kind, (over_kafka, embedded) in zip(kinds, rollings, strict=True):
        metered(kind.what, over_kafka.run, over_kafka.prepare)
        metered(f"embedded {kind.what}", embedded.run, embedded.prepare)
    for number, by_group in zip((1, 3), fleets, strict=True):
        metered(f"group {kinds[number].what}", by_group.run, by_group.prepare)
    shipped = fleet_settings(broker, "shipped")
    for log, name in ((dense, "dense stream"), (fleet, "simulated fleet")):
        metered(
            f"ship {name}",
            partial(_ship, shipped, log),
            partial(forget_cursors, log.root),
        )
    for log, name in ((dense, "dense"), (fleet, "fleet")):
        metered(f"read {name}", _reading(in_topic[name], log), lambda: None)
    take_turns(sides, scale.pick(3, 1), clock=time.perf_counter)
    for number, by_group in zip((1, 3), fleets, strict=True):
        _expect_same(
            counted(by_group.store_file, EVERY),
            rollings[number][1].counted(),
            "processor and owner",
        )
    live = measure_latencies(fleet_settings(broker, "live"), folder / "live", scale.pick(30, 8))
    return _result(
        TEXT,
        [
            *(speed(kind, meters) for kind in kinds),
            *(group_speed(kinds[number], meters) for number in (1, 3)),
            *processor_cost(kinds[1], meters, fleets[0]),
            *client_alone(dense, fleet, meters),
            *shipping(dense, fleet, meters),
            *latency_figures(live),
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
    _expect_same(over_kafka.counted(), embedded.counted(), "one process")
    gc.collect()


def _expect_same(over_kafka: tuple[int, int], embedded: tuple[int, int], way: str) -> None:
    if over_kafka != embedded:
        message = f"{way} gave {over_kafka} (tokens, rows) over Kafka, the batch log {embedded}"
        raise AssertionError(message)


def _profile(title: str, run: Rolling) -> Profile:
    from kafka import KafkaConsumer  # noqa: PLC0415 (as moescope does)

    from moescope.processors.sources.topic_reader import TopicReader  # noqa: PLC0415 - needs the client, too

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
