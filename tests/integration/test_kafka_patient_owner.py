"""A running owner closes no window before a partition that is behind had its time to come back."""

from __future__ import annotations

import threading
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import pytest
from support.fleet_processes import wait_for
from support.processor_fleet import PATIENCE_S, SMALL_WINDOWS
from support.routed_topic import make_streams, make_topics, send, topic_settings

from moescope.console.fleet_work import FleetWork
from moescope.console.opened_store import opened_store
from moescope.console.processor_work import run_processor
from moescope.core.self_metrics import SelfMetrics

if TYPE_CHECKING:
    from pathlib import Path

    from support.broker_choice import SharedBroker

    from moescope.storage import Store

PARTITIONS = (0, 1)


@pytest.mark.parametrize(
    ("source", "patience", "misses_none"),
    [("routing", 600.0, True), ("routing", 0.0, False), ("deltas", 600.0, True)],
)
def test_partitions_that_come_back_one_after_the_other_miss_no_window(
    kafka_broker: SharedBroker,
    topic_prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    source: str,
    patience: float,
    misses_none: bool,
) -> None:
    """The first has all of its records before the second has the later half of its own.

    Nothing of the second is unread meanwhile: its records are not in the topic yet.
    """
    monkeypatch.setattr("moescope.storage.stragglers.PATIENCE_SECONDS", patience)
    small = {name.replace(".", "__"): value for name, value in SMALL_WINDOWS.items()}
    settings = topic_settings(
        kafka_broker.bootstrap,
        topic_prefix,
        kafka__partitions=len(PARTITIONS),
        processor__commit_interval=0.1,
        store__source=source,
        data__directory=str(tmp_path),
        **small,
    )
    make_topics(settings)
    streams = make_streams(3, PARTITIONS, passes=12)
    # Behind the last row there is silence.
    half = {
        number: [place for place, each in enumerate(records) if each.rows][-1] // 2
        for number, records in streams.items()
    }
    steps = [
        {number: (0, end) for number, end in half.items()},
        {0: (half[0], len(streams[0]))},
        {1: (half[1], len(streams[1]))},
    ]
    stop = threading.Event()
    with opened_store(settings, closes_windows=True) as parts:
        with FleetWork(parts, SelfMetrics()).running(stop):
            for step in steps:
                send(settings, {each: streams[each][slice(*part)] for each, part in step.items()})
                if source == "deltas":
                    run_processor(settings, threading.Event(), until_idle=True)
                reached = partial(is_stored, parts.store, topic_prefix, step)
                wait_for("a commit", reached, PATIENCE_S)
            stop.set()
        assert is_whole(parts.store) == misses_none


def is_stored(store: Store, prefix: str, step: dict[int, tuple[int, int]]) -> bool:
    """Whether the records of a step are applied."""
    places = {name: each.emitted_to for name, each in store.load_progress().items()}
    return all(
        places.get(f"{prefix}.routing-{number}", 0) >= end for number, (_, end) in step.items()
    )


def is_whole(store: Store) -> bool:
    """Whether no row came late, and no window had to be opened again."""
    with closing(store.cursor()) as cursor:
        windows, again = cursor.execute(
            "SELECT count(*), count(*) FILTER (row_version > 1) FROM windows"
            " WHERE window_kind = 'time' AND scope_kind = 'all' AND domain = 'live'"
        ).fetchall()[0]
        late = cursor.execute("SELECT late_rows FROM domains WHERE domain = 'live'").fetchall()
    assert windows
    return (again, late) == (0, [(0,)])
