from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from moescope.console.watch import Health, HealthStatus, http_server, serving
from moescope.console.watch.http_server import MOST_CLIENTS, WatchAddressError
from moescope.core.self_metrics import SelfMetrics
from moescope.core.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from moescope.console.watch import Watch
    from moescope.core.settings import Settings


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def settings_of(directory: Path, port: int = 0) -> Settings:
    """Settings of a component that watches itself."""
    options = {"data.directory": str(directory), "watch.port": port}
    return load_settings(None, environment={}, options=options)


@contextmanager
def served(
    directory: Path, metrics: SelfMetrics, status: Callable[[], Health] = Health
) -> Iterator[tuple[Watch, str]]:
    """A store's metrics and health at a free port, and the address of it."""
    with serving(settings_of(directory, free_port()), metrics, "store", status=status) as watch:
        assert watch.address
        yield watch, f"http://{watch.address[0]}:{watch.address[1]}"


def fetched(url: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    """Status, content type and text that a URL answers with."""
    where = urlsplit(url)
    with closing(HTTPConnection(where.netloc, timeout=30)) as connection:
        connection.request(method, where.path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()


def the_file(directory: Path) -> Path:
    """The one health file of a directory."""
    (path,) = directory.glob("health-*.json")
    return path


def test_metrics_are_served_as_declared(tmp_path: Path) -> None:
    """A scraper finds names, kinds, labels and values, whatever characters a name has."""
    metrics = SelfMetrics()
    metrics.add("moescope_processor_records_total", 3, partition='a"b\\c\nd')
    metrics.set("moescope_store_lag_records", 7.5)
    with served(tmp_path, metrics) as (_, url):
        status, content_type, text = fetched(f"{url}/metrics")
    assert (status, content_type.split(";")[0]) == (200, "text/plain")
    lines = text.splitlines()
    assert "# TYPE moescope_processor_records_total counter" in lines
    assert 'moescope_processor_records_total{partition="a\\"b\\\\c\\nd"} 3.0' in lines
    assert "# TYPE moescope_store_lag_records gauge" in lines
    assert "moescope_store_lag_records 7.5" in lines
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)


def test_a_counter_that_has_not_moved_is_there(tmp_path: Path) -> None:
    """The first failure is a step from 0 to 1, which a rate sees; others' counters are absent."""
    with served(tmp_path, SelfMetrics()) as (_, url):
        lines = fetched(f"{url}/metrics")[2].splitlines()
    assert "moescope_store_refused_emissions_total 0.0" in lines
    assert not [line for line in lines if line.startswith("moescope_agent_")]


def test_a_scraper_may_ask_for_open_metrics(tmp_path: Path) -> None:
    """Prometheus prefers that format, which ends with a mark that nothing is missing."""
    accept = "application/openmetrics-text;version=1.0.0"
    with served(tmp_path, SelfMetrics()) as (_, url):
        _, content_type, text = fetched(f"{url}/metrics", Accept=accept)
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")


@pytest.mark.parametrize(
    ("status", "code"), [("ok", 200), ("starting", 200), ("waiting", 200), ("failing", 503)]
)
def test_health_is_a_status_code_and_says_why(tmp_path: Path, status: str, code: int) -> None:
    """A probe looks at the code, a person at the words; only `failing` asks for a restart."""
    health = Health(HealthStatus(status), "the broker is away", {"lag": 12})
    with served(tmp_path, SelfMetrics(), lambda: health) as (_, url):
        answered, _, text = fetched(f"{url}/healthz")
    document = json.loads(text)
    assert (answered, document["status"]) == (code, status)
    assert (document["why"], document["facts"]) == ("the broker is away", {"lag": 12})


def test_a_status_that_breaks_is_a_failing_one(tmp_path: Path) -> None:
    """Watching outlives a mistake in what it watches, and shows it."""

    def broken() -> Health:
        raise ZeroDivisionError("of lag by age")

    with served(tmp_path, SelfMetrics(), broken) as (watch, url):
        assert fetched(f"{url}/healthz")[0] == 503
    assert "of lag by age" in watch.latest.health.why


def test_other_paths_and_methods_are_refused(tmp_path: Path) -> None:
    """Two things are served, for reading."""
    with served(tmp_path, SelfMetrics()) as (_, url):
        assert fetched(f"{url}/")[0] == 404
        assert fetched(f"{url}/metrics", "POST")[0] == 501
        assert fetched(f"{url}/metrics", "HEAD")[::2] == (200, "")


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    """Two components of one machine with one port is a mistake that names the setting."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = settings_of(tmp_path, taken.getsockname()[1])
        with (
            pytest.raises(WatchAddressError, match=r"watch\.port"),
            serving(settings, SelfMetrics(), "store"),
        ):
            pytest.fail("it was served")
    assert list(tmp_path.glob("*health*")) == []


def connected(watch: Watch) -> socket.socket:
    """A client that says nothing."""
    assert watch.address
    return socket.create_connection(watch.address, timeout=30)


def test_silent_clients_hold_nobody_up(tmp_path: Path) -> None:
    """Clients that never ask take threads, but only so many, and a scrape always gets in."""
    before = threading.active_count()
    with served(tmp_path, SelfMetrics()) as (watch, url):
        silent = [connected(watch) for _ in range(4 * MOST_CLIENTS)]
        for _ in range(3):
            assert fetched(f"{url}/metrics")[0] == 200
            # Whoever had said nothing for longest had to go.
            with silent.pop(0) as gone:
                assert gone.recv(1) == b""
        # One thread more may be about to end.
        assert threading.active_count() <= before + 3 + MOST_CLIENTS
        for client in silent:
            client.close()


def test_a_silent_client_is_let_go_of_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who says nothing is disconnected, also where nobody else wants the place."""
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 0.3)
    with served(tmp_path, SelfMetrics()) as (watch, _), connected(watch) as client:
        assert client.recv(1) == b""


def test_clients_that_do_not_read_their_answer_hold_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All places are taken by answers that nobody fetches: the oldest goes, a scrape gets in."""
    monkeypatch.setattr(http_server, "_EVICTION_SECONDS", 0.3)
    metrics = SelfMetrics()
    for letter in "abcdefgh":
        metrics.add("moescope_processor_records_total", 1, partition=letter * (1 << 20))
    with served(tmp_path, metrics) as (watch, url):
        slow = [connected(watch) for _ in range(MOST_CLIENTS)]
        for client in slow:
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        for client in slow:
            assert client.recv(1) == b"H"
        threading.Event().wait(0.5)
        assert fetched(f"{url}/healthz")[0] == 200
        for client in slow:
            client.close()


def test_a_request_that_drips_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then does not buy more time than the whole request has."""
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 1.0)
    with served(tmp_path, SelfMetrics()) as (watch, _), connected(watch) as client:
        client.settimeout(0.2)
        sent, ended = 0, False
        while not ended:
            assert sent < 1_000
            try:
                client.sendall(b"G")
                sent += 1
                ended = client.recv(1) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                ended = True
    assert sent > 1


def test_an_endless_request_is_cut_off(tmp_path: Path) -> None:
    """What a client sends takes no more memory than the limit."""
    with served(tmp_path, SelfMetrics()) as (watch, url), connected(watch) as client:
        with pytest.raises(ConnectionError):
            client.sendall(b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * (8 << 20))
        assert fetched(f"{url}/healthz")[0] == 200


def test_the_health_file_is_there_while_the_component_is(tmp_path: Path) -> None:
    """Without a port the file alone says how the component is; it goes at a clean end."""
    directory = tmp_path / "data" / "of-its-own"
    metrics = SelfMetrics()
    health = [Health(HealthStatus.STARTING, "opening the store")]
    with serving(settings_of(directory), metrics, "store", status=lambda: health[0]) as watch:
        assert watch.address is None
        document = json.loads(the_file(directory).read_text())
        assert (document["status"], document["pid"]) == ("starting", os.getpid())
        health[0] = Health()
        watch.report()
        assert json.loads(the_file(directory).read_text())["status"] == "ok"
    assert list(directory.iterdir()) == []
    free = os.statvfs(directory)
    assert 0 < metrics.value("moescope_store_free_bytes") <= free.f_blocks * free.f_frsize


def test_a_full_disk_leaves_the_old_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The component goes on, the file grows old, and one line says why."""
    with serving(settings_of(tmp_path), SelfMetrics(), "agent") as watch:
        path = the_file(tmp_path)
        old = path.read_text()
        blocked = path.with_name(f".{path.name}.half")
        blocked.mkdir()
        watch.report()
        watch.report()
        assert path.read_text() == old
        blocked.rmdir()
        watch.report()
        assert path.read_text() != old
    assert capsys.readouterr().err.count("cannot be written") == 1


def test_a_killed_process_leaves_no_file_for_ever(tmp_path: Path) -> None:
    """The next start of the component removes what a killed one left, and nobody else's."""
    with serving(settings_of(tmp_path), SelfMetrics(), "agent") as watch:
        document = watch.latest.document()

    def left_behind(name: str, **changes: object) -> Path:
        path = tmp_path / f"health-agent-{name}.json"
        path.write_text(json.dumps(document | changes))
        return path

    killed = left_behind("killed", birth=1)
    elsewhere = left_behind("elsewhere", birth=2, host="node-7")
    forgotten = left_behind("forgotten", birth=3, host="node-8", written_at_us=1)
    with serving(settings_of(tmp_path), SelfMetrics(), "agent"):
        assert not killed.exists()
        assert not forgotten.exists()
        assert elsewhere.exists()
