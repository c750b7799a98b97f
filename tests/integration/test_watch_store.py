"""What an owner says of its own tables, and `run all` with its metrics and health."""

from __future__ import annotations

import json
import socket
import threading
from http.client import HTTPConnection
from typing import TYPE_CHECKING

import pytest
from support.outbox_store import CREATED_US, add, open_store

from moescope.console.run_work import run_all
from moescope.console.watch.agent_figures import AgentFigures
from moescope.console.watch.periodic import periodically
from moescope.console.watch.store_figures import StoreFigures
from moescope.core.clock import ManualClock
from moescope.core.self_metrics import SelfMetrics
from moescope.core.settings import load_settings
from moescope.producers.agent import Agent
from moescope.storage.control import insert_rows
from moescope.storage.places import store_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from moescope.storage import Store

SECOND_US = 1_000_000
OLDEST = "moescope_store_oldest_waiting_notification_seconds"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store of its own, open."""
    with open_store(store_file(tmp_path)) as opened:
        yield opened


def figures_of(
    store: Store, directory: Path, metrics: SelfMetrics, later_seconds: int
) -> StoreFigures:
    """Figures as they are so long after a notification was made."""
    clock = ManualClock(CREATED_US + later_seconds * SECOND_US)
    return StoreFigures(store, directory, metrics, clock)


def insert(store: Store, table: str, *rows: dict[str, object]) -> None:
    """Put rows into a table."""
    store.change(
        lambda connection, commit_id: insert_rows(connection, table, rows, commit_id),
        author="test",
        action="insert",
        audit=False,
    )


def run_of(job: str, hour: int, state: str) -> dict[str, object]:
    """A row of `job_runs`."""
    at_us = CREATED_US + hour * 3_600 * SECOND_US
    return {
        "job": job, "scheduled_for": at_us, "fencing_token": 1, "started_at": at_us,
        "state": state, "trigger": "schedule", "result_json": "{}",
    }  # fmt: skip


def test_an_empty_store_has_figures(store: Store, tmp_path: Path) -> None:
    """A store that was just made is measured like any other."""
    metrics = SelfMetrics()
    figures_of(store, tmp_path, metrics, 1).take()
    shown = {metric.name: value for metric, _, value in metrics.samples()}
    assert shown["moescope_store_waiting_notifications"] == shown[OLDEST] == 0
    assert shown["moescope_store_fencing_token"] == 1
    assert shown["moescope_store_file_bytes"] > 0
    assert "moescope_store_watermark_timestamp_seconds" not in shown


def test_what_waits_has_an_age_until_it_is_gone(store: Store, tmp_path: Path) -> None:
    """A receiver that takes nothing is seen by the age of the oldest notification."""
    metrics = SelfMetrics()
    add(store, "one", "two")
    figures_of(store, tmp_path, metrics, 400).take()
    assert metrics.value("moescope_store_waiting_notifications") == 2
    assert metrics.value(OLDEST) == 400
    store.change(
        lambda connection, _: connection.execute("UPDATE outbox SET delivered_at = created_at"),
        author="test",
        action="deliver",
        audit=False,
    )
    figures_of(store, tmp_path, metrics, 500).take()
    assert metrics.value("moescope_store_waiting_notifications") == metrics.value(OLDEST) == 0


def test_a_job_fails_by_its_last_run(store: Store, tmp_path: Path) -> None:
    """A job that failed and then went well is well; one whose owner died in it is not."""
    insert(
        store, "job_runs",
        run_of("report", 1, "failed"), run_of("report", 2, "done"),
        run_of("calibrate", 1, "done"), run_of("calibrate", 2, "failed"),
        run_of("retention", 1, "abandoned"),
    )  # fmt: skip
    metrics = SelfMetrics()
    figures_of(store, tmp_path, metrics, 1).take()
    failing = {
        labels[0]: value
        for metric, labels, value in metrics.samples()
        if metric.name == "moescope_store_job_failing"
    }
    assert failing == {"report": 0, "calibrate": 1, "retention": 1}


def test_dead_letters_and_the_live_watermark_are_shown(store: Store, tmp_path: Path) -> None:
    """Every reason has its sum over partitions; imports do not pass for live traffic."""
    counts = {"kept": 1, "record_bytes": 10}
    insert(
        store, "dead_letter_counts",
        {"partition": "a", "reason": "checksum", "records": 3, **counts},
        {"partition": "b", "reason": "checksum", "records": 4, **counts},
        {"partition": "b", "reason": "version", "records": 1, **counts},
    )  # fmt: skip
    domain = {"step_low": 0, "late_rows": 0, "duplicate_windows": 0}
    insert(
        store, "domains",
        {"domain": "live", "watermark_us": CREATED_US, **domain},
        {"domain": "an-import", "watermark_us": 5, **domain},
    )  # fmt: skip
    metrics = SelfMetrics()
    figures_of(store, tmp_path, metrics, 1).take()
    assert metrics.value("moescope_store_dead_letters", reason="checksum") == 7
    assert metrics.value("moescope_store_dead_letters", reason="version") == 1
    watermarks = [
        (labels, value)
        for metric, labels, value in metrics.samples()
        if metric.name == "moescope_store_watermark_timestamp_seconds"
    ]
    assert watermarks == [(("live",), CREATED_US / SECOND_US)]


def test_figures_that_fail_are_told_once_and_taken_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is measured goes on when it cannot be measured."""
    calls: list[int] = []
    enough = threading.Event()

    def take() -> None:
        calls.append(len(calls))
        if len(calls) > 4:
            enough.set()
        if len(calls) < 4:
            raise OSError("no such file")

    with periodically(take, seconds=0.001):
        assert enough.wait(30)
    ended_at = len(calls)
    assert capsys.readouterr().err.count("no such file") == 1
    assert len(calls) == ended_at


def test_an_agent_without_losses_shows_none(tmp_path: Path) -> None:
    """The counter is there before the first loss, so that a rate sees it."""
    metrics = SelfMetrics()
    with Agent(tmp_path / "ring", tmp_path / "log") as agent:
        AgentFigures(agent, metrics).take()
    assert [(metric.name, value) for metric, _, value in metrics.samples()] == [
        ("moescope_agent_dropped_rows_total", 0.0)
    ]


def test_run_all_serves_its_metrics_and_health(tmp_path: Path) -> None:
    """On one machine a single port shows agent, processing and store, until the clean end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
    environment = {"MOESCOPE_DATA_DIRECTORY": str(tmp_path), "MOESCOPE_WATCH_PORT": str(port)}
    stop = threading.Event()
    running = threading.Thread(
        target=run_all,
        args=(load_settings(environment=environment), stop),
        kwargs={"until_idle": False},
    )
    running.start()
    try:
        while True:
            connection = HTTPConnection("127.0.0.1", port, timeout=30)
            try:
                connection.request("GET", "/metrics")
                text = connection.getresponse().read().decode()
            except ConnectionError:
                text = ""
            finally:
                connection.close()
            if "moescope_store_fencing_token 1.0\n" in text and "moescope_agent_" in text:
                break
            assert running.is_alive()
            stop.wait(0.2)
        (path,) = tmp_path.glob("health-store-*.json")
        assert json.loads(path.read_text())["status"] in {"starting", "ok"}
    finally:
        stop.set()
        running.join()
    assert list(tmp_path.glob("health-*")) == []
