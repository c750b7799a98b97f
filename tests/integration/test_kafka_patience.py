"""Owners wait for partitions that come back one after the other, and say what they wait for."""

from __future__ import annotations

import json
import threading
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
from support.deltas_topic import send_emissions
from support.fleet_processes import wait_for
from support.kafka_settings import kafka_settings, make_topics
from support.shared_rows import (
    BASE,
    MINUTE,
    SECOND,
    SHAPES,
    Record,
    Row,
    RowProcessor,
    share_finisher,
)
from typer.testing import CliRunner

from moescope.console.commands.run import app
from moescope.console.fleet_work import FleetWork
from moescope.console.opened_store import opened_store
from moescope.core.clock import ManualClock, SystemClock
from moescope.core.kafka import open_admin, open_producer
from moescope.core.self_metrics import SelfMetrics
from moescope.storage import Store
from moescope.storage.deltas import DeltasReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.broker_choice import SharedBroker

    from moescope.core.emission import Emission
    from moescope.core.settings import Settings

JUMP = 15 * MINUTE
"""Longer than late rows are taken."""
PATIENCE_SECONDS = 60.0


@pytest.fixture
def settings(kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path) -> Settings:
    """Of this test's topics, which exist."""
    found = kafka_settings(
        kafka_broker.bootstrap,
        topic_prefix,
        store__source="deltas",
        data__directory=str(tmp_path),
    )
    make_topics(found)
    return found


@contextmanager
def reading(reader: DeltasReader) -> Iterator[None]:
    """Read on a thread while the block runs."""
    stop = threading.Event()
    thread = threading.Thread(target=reader.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def is_stored(store: Store, reached: dict[str, int]) -> bool:
    """Whether partitions are applied so far."""
    return (
        reached.items()
        <= {name: each.emitted_to for name, each in store.load_progress().items()}.items()
    )


@pytest.mark.parametrize(
    ("is_patient", "found"), [(True, [(2, 1)]), (False, [(1, 1)])], ids=["running", "draining"]
)
def test_a_running_reader_waits_for_the_partition_behind(
    settings: Settings, tmp_path: Path, *, is_patient: bool, found: list[tuple[int, int]]
) -> None:
    """The first partition's heap, in a commit of its own, closes nothing of the second's."""
    first, second = RowProcessor("first"), RowProcessor("second")
    window = BASE - BASE % (5 * SECOND)
    rows = [Row(window + place, name, "t", (1, 2)) for place, name in enumerate("ab")]
    steps = [
        [first.emission([Record((), window)]), second.emission([Record((), window)])],
        [first.emission([Record((rows[0],), window + JUMP)])],
        [second.emission([Record((rows[1],), window + JUMP)])],
    ]
    with Store(tmp_path / "s.duckdb", share_finisher, SHAPES) as store:
        reader = DeltasReader(
            settings,
            store,
            SelfMetrics(),
            # Partitions are behind for no time at all.
            ManualClock(BASE),
            lambda _: None,
            waits_for_stragglers=is_patient,
        )
        with reading(reader):
            for number, step in enumerate(steps):
                send_emissions(settings, f"s{number}", step)
                reached = {each.partition: each.emitted_to for one in step for each in one.progress}
                wait_for("a commit", partial(is_stored, store, reached), PATIENCE_SECONDS)
        with store.cursor() as cursor:
            windows = cursor.execute(
                "SELECT seen, row_version FROM windows WHERE window_kind = 'time'"
                " AND size = 1000000 AND layer = 0 AND scope_kind = 'all' AND start <= ?",
                [window],
            ).fetchall()
    assert windows == found


def test_a_partition_that_nobody_serves_holds_no_window_back(
    settings: Settings, tmp_path: Path
) -> None:
    """Its records wait for two minutes; then the others' windows close, and people are told."""
    routing = f"{settings['kafka.topic_prefix']}.routing"
    healthy, stuck = RowProcessor(f"{routing}-0"), RowProcessor(f"{routing}-1")
    window = BASE - BASE % (5 * SECOND)
    rows = [Row(window + place, name, "t", (1, 2)) for place, name in enumerate("ab")]
    clock, metrics, told = ManualClock(BASE), SelfMetrics(), list[str]()
    with closing(open_producer(settings)) as producer:
        for _ in range(2):
            producer.send(routing, b"x", partition=1).get(timeout=PATIENCE_SECONDS)
    with Store(tmp_path / "s.duckdb", share_finisher, SHAPES) as store:
        reader = DeltasReader(
            settings, store, metrics, clock, told.append, waits_for_stragglers=True
        )

        def apply(*emissions: Emission) -> tuple[int, list[int]]:
            """Partitions that nobody serves, and rows of the first window as it is stored."""
            clock.sleep(20.0)
            send_emissions(settings, f"s{clock.monotonic()}", emissions)
            reader.run(threading.Event(), until_idle=True)
            with store.cursor() as cursor:
                seen = cursor.execute(
                    "SELECT seen FROM windows WHERE window_kind = 'time' AND size = 1000000"
                    " AND layer = 0 AND scope_kind = 'all' AND start <= ?",
                    [window],
                ).fetchall()
            return int(metrics.value("moescope_store_unserved_partitions")), [n for (n,) in seen]

        assert apply(
            healthy.emission([Record((), window)]), stuck.emission([Record((), window)])
        ) == (0, [])
        assert apply(healthy.emission([Record((rows[0],), window + JUMP)])) == (0, [])
        assert not told
        clock.sleep(121.0)
        assert apply(healthy.emission([Record((), window + 2 * JUMP)])) == (1, [1])
        assert [f"{routing}-1" in line for line in told] == [True]
        apply(stuck.emission([Record((rows[1],), window + 2 * JUMP)]))
        assert apply() == (0, [1])


def test_a_topic_that_is_gone_is_named(settings: Settings, tmp_path: Path) -> None:
    """A broker that answers is not blamed, and reading goes on once the topic is there again."""
    routing = f"{settings['kafka.topic_prefix']}.routing"
    processor = RowProcessor(f"{routing}-0")
    with Store(tmp_path / "s.duckdb", share_finisher, SHAPES) as store:
        reader = DeltasReader(settings, store, SelfMetrics(), SystemClock(), lambda _: None)
        with reading(reader), closing(open_admin(settings)) as admin:
            send_emissions(settings, "a", [processor.emission([Record((), BASE)])])
            wait_for("a commit", lambda: bool(store.load_progress()), PATIENCE_SECONDS)
            assert reader.trouble == ""
            admin.delete_topics([routing])
            wait_for("its name", lambda: routing in reader.trouble, PATIENCE_SECONDS)
            assert "does not exist" in reader.trouble
            assert "topics-apply" in reader.trouble
            admin.create_topics({routing: {"num_partitions": 2}}, wait_for_metadata=True)
            wait_for("its end", lambda: reader.trouble == "", PATIENCE_SECONDS)


def test_a_broker_that_is_away_is_what_an_owner_waits_for(tmp_path: Path) -> None:
    """Its health says so from the first try on, whatever is read."""
    settings = kafka_settings(
        "127.0.0.1:9",
        "nobody",
        store__source="deltas",
        kafka__connect_timeout=1.0,
        data__directory=str(tmp_path),
    )
    stop = threading.Event()
    with opened_store(settings, closes_windows=True) as parts:
        fleet = FleetWork(parts, SelfMetrics())
        assert fleet.trouble == ""
        with fleet.running(stop):
            wait_for("trouble", lambda: "127.0.0.1:9" in fleet.trouble, PATIENCE_SECONDS)
            stop.set()


def test_a_store_tells_programs_what_it_did(settings: Settings) -> None:
    """Like the other commands that run for long."""
    send_emissions(
        settings,
        "a",
        [RowProcessor(f"{settings['kafka.topic_prefix']}.routing-0").emission([Record((), BASE)])],
    )
    result = CliRunner().invoke(
        app,
        ["store", "--until-idle", "--json"],
        env={
            "MOESCOPE_" + name.upper().replace(".", "_"): str(settings[name])
            for name, origin in settings.origins.items()
            if origin == "option"
        },
    )
    totals = json.loads(result.stdout)
    assert (totals["emissions"], totals["refused_emissions"]) == (1, 0)
    assert totals["commits"] >= 1
