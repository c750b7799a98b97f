"""A store that read routing batches itself hands over to processors, and takes back."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING

import duckdb
import pytest
from kafka import TopicPartition
from support.fleet_processes import Nursery, wait_for
from support.fleet_roles import run_command
from support.kafka_settings import variables_of
from support.processor_fleet import PATIENCE_S, SMALL_WINDOWS
from support.routed_topic import make_streams, make_topics, roll_up_embedded, send, topic_settings
from support.stored import tables

from moescope.console.handing_over import ProcessorsActiveError
from moescope.console.processor_work import run_processor
from moescope.console.store_work import run_store
from moescope.core.kafka import open_admin, open_consumer
from moescope.storage.deltas import DeltasRewoundError, ProcessorsDivergedError
from moescope.storage.places import store_file

if TYPE_CHECKING:
    from pathlib import Path

    from support.broker_choice import SharedBroker
    from support.fleet_processes import FleetProcess
    from support.routed_topic import Streams

    from moescope.core.settings import Settings


def part(streams: Streams, first: int, end: int) -> Streams:
    """Thirds of the records of each partition, from one up to another."""
    return {
        number: records[len(records) * first // 3 : len(records) * end // 3]
        for number, records in streams.items()
    }


def own(settings: Settings, *, reset: bool = False) -> None:
    """Own the store until everything that was sent is in it; nothing of it is seen as a fault."""
    metrics = run_store(settings, threading.Event(), until_idle=True, reset_processors=reset)
    assert metrics.value("moescope_store_gap_emissions_total") == 0
    assert metrics.value("moescope_store_refused_emissions_total") == 0


def deltas_left(settings: Settings, prefix: str) -> int:
    """Records of the deltas topic from the store's place on."""
    place = TopicPartition(f"{prefix}.deltas", 0)
    with closing(open_consumer(settings)) as consumer:
        end = consumer.end_offsets([place])[place]
    with duckdb.connect(str(store_file(settings.data_directory)), read_only=True) as connection:
        rows = connection.execute("SELECT next_offset FROM delta_offsets").fetchall()
    assert len(rows) == 1
    return int(end) - int(rows[0][0])


def process(settings: Settings) -> None:
    """Process everything that was sent, as the group's only processor."""
    run_processor(settings, threading.Event(), until_idle=True)


def test_processors_go_on_where_the_store_is(
    kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path
) -> None:
    """From routing to deltas and back, with offsets deleted by hand on the way: the same tables."""
    common = {"data__directory": str(tmp_path / "fleet")} | {
        name.replace(".", "__"): value for name, value in SMALL_WINDOWS.items()
    }
    alone = topic_settings(kafka_broker.bootstrap, topic_prefix, **common)
    shared = topic_settings(kafka_broker.bootstrap, topic_prefix, store__source="deltas", **common)
    make_topics(alone)
    streams = make_streams(5, (0, 1))
    send(alone, part(streams, 0, 1))
    own(alone)
    own(shared)
    send(alone, part(streams, 1, 2))
    process(shared)
    own(shared)
    # What the owner handed over holds its place nowhere.
    assert deltas_left(shared, topic_prefix) == 0
    with closing(open_admin(shared)) as admin:
        places = [TopicPartition(f"{topic_prefix}.routing", number) for number in range(3)]
        admin.delete_group_offsets(shared["kafka.group"], places)
    send(alone, part(streams, 2, 3))
    process(shared)
    with pytest.raises(ProcessorsDivergedError):
        own(shared)
    with closing(open_consumer(shared, group_id=shared["kafka.group"])) as member:
        member.subscribe([f"{topic_prefix}.routing"])
        member.poll(3_000)
        with pytest.raises(ProcessorsActiveError, match="Stop all processors") as caught:
            own(shared, reset=True)
        # For whoever starts commands again by their exit codes.
        assert caught.value.retriable
        assert caught.value.exit_code == 3
    own(shared, reset=True)
    process(shared)
    own(shared)
    assert deltas_left(shared, topic_prefix) == 0
    own(alone)
    embedded = roll_up_embedded(tmp_path, alone, streams)
    assert tables(store_file(tmp_path / "fleet")) == tables(embedded)


@pytest.mark.parametrize("said", [3, 12])
def test_another_number_of_partitions_is_told(
    kafka_broker: SharedBroker,
    topic_prefix: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    said: int,
) -> None:
    """A topic that was made with other settings is read whole, and its owner names both numbers."""
    options = {"data__directory": str(tmp_path / "fleet")}
    make_topics(topic_settings(kafka_broker.bootstrap, topic_prefix, **options))
    own(topic_settings(kafka_broker.bootstrap, topic_prefix, kafka__partitions=said, **options))
    line = f"{topic_prefix}.routing has 3 partitions, and kafka.partitions is 12"
    assert (line in capsys.readouterr().err) == (said == 12)


def test_a_store_waits_for_processors_that_are_in_the_way(
    kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path
) -> None:
    """It says which group, goes on by itself once the last is forgotten, and stays up meanwhile."""
    folder = tmp_path / "fleet"
    common = {"data__directory": str(folder)} | {
        name.replace(".", "__"): value for name, value in SMALL_WINDOWS.items()
    }
    alone = topic_settings(kafka_broker.bootstrap, topic_prefix, **common)
    shared = topic_settings(kafka_broker.bootstrap, topic_prefix, store__source="deltas", **common)
    make_topics(alone)
    send(alone, make_streams(5, (0,), passes=3))
    own(alone)
    # One with a name does not leave: once it is closed it looks like one that was killed.
    member = open_consumer(
        shared, group_id=topic_prefix, group_instance_id="p0", session_timeout_ms=6_000
    )
    with Nursery(tmp_path / "logs") as nursery:
        with closing(member):
            member.subscribe([f"{topic_prefix}.routing"])
            member.poll(3_000)
            owner = nursery.start("owner", run_command, ["run", "store"], _variables(shared))
            line = f"waiting: A processor of the group {topic_prefix} still runs. Stop"
            wait_for("a line", lambda: _told(owner, line), PATIENCE_S)
            assert "members of the group: p0 at" in owner.last_words()
            wait_for("its health", lambda: '"waiting"' in _health(folder), PATIENCE_S)
        wait_for("its turn", lambda: _told(owner, "processors go on from"), PATIENCE_S)
        wait_for("its health", lambda: '"ok"' in _health(folder), PATIENCE_S)
        assert owner.last_words().count("still runs") == 1
        owner.stop()


def test_processors_go_on_with_deltas_that_were_made_anew(
    kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path
) -> None:
    """What the old topic held and the store had not applied is made again; nothing counts twice."""
    common = {"data__directory": str(tmp_path / "fleet")} | {
        name.replace(".", "__"): value for name, value in SMALL_WINDOWS.items()
    }
    shared = topic_settings(kafka_broker.bootstrap, topic_prefix, store__source="deltas", **common)
    make_topics(shared)
    streams = make_streams(5, (0, 1), passes=9)
    send(shared, part(streams, 0, 1))
    process(shared)
    own(shared)
    send(shared, part(streams, 1, 2))
    process(shared)
    with closing(open_admin(shared)) as admin:
        admin.delete_topics([f"{topic_prefix}.deltas"])
        admin.create_topics(
            {f"{topic_prefix}.deltas": {"num_partitions": 1}}, wait_for_metadata=True
        )
    with pytest.raises(DeltasRewoundError, match="fewer records") as caught:
        own(shared)
    assert "--reset-processors" in caught.value.next_step
    own(shared, reset=True)
    send(shared, part(streams, 2, 3))
    process(shared)
    own(shared)
    assert deltas_left(shared, topic_prefix) == 0
    assert tables(store_file(tmp_path / "fleet")) == tables(
        roll_up_embedded(tmp_path, shared, streams)
    )


def _variables(settings: Settings) -> dict[str, str]:
    """Environment variables with the same settings."""
    small = {
        "MOESCOPE_" + name.upper().replace(".", "_"): str(value)
        for name, value in SMALL_WINDOWS.items()
    }
    return variables_of(settings) | small


def _told(process: FleetProcess, words: str) -> bool:
    """Whether a process has said some words; it has to live."""
    assert process.is_running, process.last_words()
    return words in process.last_words()


def _health(folder: Path) -> str:
    """What the owner says of itself."""
    return "".join(each.read_text() for each in folder.glob("health-store-*.json"))
