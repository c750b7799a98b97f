"""Thresholds in force, from the owner's store through the control topic into another book."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from support.fleet_processes import wait_for
from support.kafka_settings import committed_records, kafka_settings, make_topics
from support.plain_equality import same
from support.shared_rows import BASE, LANE, SHAPES, share_finisher
from support.threshold_versions import activation_row, small_version, store_version

from moescope.core.clock import SystemClock
from moescope.core.control_records import ControlReader
from moescope.core.kafka import Topic, topic_name
from moescope.core.self_metrics import SelfMetrics
from moescope.core.thresholds import BaselineReference, ThresholdBook
from moescope.storage import Store
from moescope.storage.control import insert_rows
from moescope.storage.control_topic import ControlPublisher

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb
    import pytest
    from support.broker_choice import SharedBroker

    from moescope.core.settings import Settings
    from moescope.core.thresholds import ThresholdVersion

PATIENCE_SECONDS = 90.0
WAITING = "moescope_store_control_waiting_seconds"


def store_and_activate(store: Store, version: ThresholdVersion, from_us: int) -> None:
    """Let a version judge from a time on."""

    def change(connection: duckdb.DuckDBPyConnection, commit_id: int) -> None:
        store_version(connection, version, commit_id)
        row = activation_row(from_us, version.scope, version.version, from_us)
        insert_rows(connection, "threshold_activations", [row], commit_id)

    store.change(change, author="me", action="threshold activate")


def published(settings: Settings) -> ThresholdBook:
    """A book filled from the topic."""
    reader, book = ControlReader(), ThresholdBook()
    for record in committed_records(settings, topic_name(settings, Topic.CONTROL)):
        reader.add(record.key, record.value)
    assert reader.fill(book)
    return book


def publisher(
    settings: Settings, store: Store, book: ThresholdBook, told: list[str]
) -> ControlPublisher:
    """Of a store."""
    return ControlPublisher(
        settings, store, book, metrics=SelfMetrics(), clock=SystemClock(), log=told.append
    )


def test_processors_judge_by_the_versions_of_the_store(
    kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path
) -> None:
    """What is in force at each time is the same there, after each change."""
    settings = kafka_settings(kafka_broker.bootstrap, topic_prefix)
    make_topics(settings)
    first = replace(
        small_version("t-1", LANE),
        references={
            "decode": BaselineReference(
                scenes={"chat": np.arange(8, dtype=np.int64).reshape(2, 4)}, tokens={"chat": 14}
            )
        },
    )
    second = small_version("t-2", LANE, 0.75)
    book, told, stop = ThresholdBook(), list[str](), threading.Event()
    with Store(tmp_path / "s.duckdb", share_finisher, SHAPES, book=book) as store:
        store_and_activate(store, first, BASE)
        work = publisher(settings, store, book, told)
        thread = threading.Thread(target=work.run, args=[stop])
        thread.start()
        try:
            wait_for(
                "the first version",
                lambda: published(settings).at(LANE, BASE) is not None,
                PATIENCE_SECONDS,
            )
            store_and_activate(store, second, BASE + 9)
            wait_for(
                "the second version",
                lambda: same(published(settings).at(LANE, BASE + 9), book.at(LANE, BASE + 9)),
                PATIENCE_SECONDS,
            )
        finally:
            stop.set()
            thread.join()
        found = published(settings)
        for time_us in (BASE - 1, BASE, BASE + 8, BASE + 9):
            assert same(found.at(LANE, time_us), book.at(LANE, time_us))
        assert same(found.at(LANE, BASE), first)
        assert publisher(settings, store, book, told).publish() == 0
        store.change(
            lambda connection, _: connection.execute("DELETE FROM threshold_activations"),
            author="me",
            action="forget",
        )
        # Two versions and their activations are taken back.
        assert publisher(settings, store, book, told).publish() == 3
        assert published(settings).at(LANE, BASE + 9) is None
    assert told == []


def test_a_broker_that_is_away_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publishing is tried again, and says so when processors judge by old thresholds meanwhile."""
    monkeypatch.setattr("moescope.storage.control_topic.LATE_SECONDS", 0.0)
    monkeypatch.setattr("moescope.storage.control_topic.RETRY_SECONDS", 0.05)
    settings = kafka_settings("127.0.0.1:1", "nobody", kafka__connect_timeout=0.5)
    book, told, stop, metrics = ThresholdBook(), list[str](), threading.Event(), SelfMetrics()
    with Store(tmp_path / "s.duckdb", share_finisher, SHAPES, book=book) as store:
        work = ControlPublisher(
            settings, store, book, metrics=metrics, clock=SystemClock(), log=told.append
        )
        thread = threading.Thread(target=work.run, args=[stop])
        thread.start()
        try:
            store_and_activate(store, small_version("t-1", LANE), BASE)
            wait_for("a complaint", lambda: bool(told), PATIENCE_SECONDS)
        finally:
            stop.set()
            thread.join()
    (line,) = told
    assert "wait" in line
    assert metrics.value(WAITING) > 0
