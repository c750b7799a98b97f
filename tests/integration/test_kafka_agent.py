"""The agent's command and a real broker: killed, stopped and drained, it loses nothing."""

from __future__ import annotations

import json
import signal
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

from support.command_line import MOESCOPE, environment, moescope
from support.rings import ids_of, small_recorder
from support.shipping import (
    PATIENCE_SECONDS,
    arrived,
    fill,
    first_arrivals,
    logged_payloads,
    make_topic,
    shipping_settings,
    wait_until,
)

from moescope.core.batchlog import cursor_offsets
from moescope.core.wire import peek_identity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from support.broker_choice import SharedBroker

KILLS = 2
BACKLOG = 400
QUICK_TO_GIVE_UP = {
    "MOESCOPE_KAFKA_CONNECT_TIMEOUT": "0.5",
    "MOESCOPE_KAFKA_DELIVERY_TIMEOUT": "1",
    "MOESCOPE_KAFKA_REQUEST_TIMEOUT": "1",
}


def variables_of(broker: SharedBroker, prefix: str) -> dict[str, str]:
    """The environment of an agent."""
    return {
        "MOESCOPE_KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap,
        "MOESCOPE_KAFKA_TOPIC_PREFIX": prefix,
    }


@contextmanager
def agent(data: Path, variables: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """`moescope run agent` as a process, killed at the end if it still runs."""
    process = subprocess.Popen(
        [MOESCOPE, "run", "agent", "--json", "--data", data],
        env=environment(variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_until_beyond(partition: Path, offset: int) -> None:
    """Wait until more was acknowledged."""
    wait_until(lambda: cursor_offsets(partition).get("kafka", 0) > offset, "nothing shipped")


def record(data: Path, rows: range) -> None:
    """An engine of node-a computes some tokens, and ends."""
    with small_recorder(data / "ring") as recorder:
        for start in range(rows.start, rows.stop, 100):
            serials = range(start, min(rows.stop, start + 100))
            recorder.record("r", list(serials), ids_of(serials), "decode", token_ids=list(serials))


def test_an_agent_that_is_killed_while_shipping_loses_nothing(
    kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path
) -> None:
    """Every logged batch arrives, in order; what arrives twice is the same batch again."""
    settings = shipping_settings(kafka_broker.bootstrap, topic_prefix)
    make_topic(settings)
    variables = variables_of(kafka_broker, topic_prefix)
    log = tmp_path / "log"
    fill(log, "node-b", range(BACKLOG), size=100_000)
    record(tmp_path, range(500))
    killed_at: list[int] = []
    for _ in range(KILLS):
        before = killed_at[-1] if killed_at else 0
        with agent(tmp_path, variables):
            wait_until_beyond(log / "node-b", before)
        killed_at.append(cursor_offsets(log / "node-b")["kafka"])
    assert killed_at[0] < BACKLOG, "it was never killed while it shipped"
    arguments = ("run", "agent", "--until-idle", "--json", "--data", tmp_path)
    totals = json.loads(moescope(*arguments, folder=tmp_path, variables=variables).stdout)
    assert totals["waiting_batches"] == 0
    records = arrived(settings)
    for node in ("node-a", "node-b"):
        assert first_arrivals(records, node) == logged_payloads(log, node)
    sent = [record.value for record in records if record.key == "node-a"]
    assert {peek_identity(payload) for payload in sent} == {
        peek_identity(payload) for payload in logged_payloads(log, "node-a")
    }


def test_an_agent_that_is_told_to_stop_ships_what_was_recorded(
    kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path
) -> None:
    """SIGTERM drains ring and log, saves the cursors, and ends with 0: a drained node is done."""
    settings = shipping_settings(kafka_broker.bootstrap, topic_prefix)
    make_topic(settings)
    log = tmp_path / "log"
    with agent(tmp_path, variables_of(kafka_broker, topic_prefix)) as process:
        wait_until(lambda: any(tmp_path.glob("health-agent-*.json")), "the agent did not start")
        record(tmp_path, range(500))
        process.send_signal(signal.SIGTERM)
        printed, said = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, said
    logged = logged_payloads(log, "node-a")
    totals = json.loads(printed)
    assert (totals["logged_rows"], totals["lost_rows"]) == (500, 0)
    assert totals["shipped_batches"] == totals["logged_batches"] == len(logged)
    assert [record.value for record in arrived(settings)] == logged
    assert cursor_offsets(log / "node-a") == {"kafka": len(logged)}


def test_an_agent_without_a_broker_waits_and_says_so(tmp_path: Path) -> None:
    """No broker is no error: rows reach the batch log, and a stopped agent ends in order."""
    variables = {"MOESCOPE_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9", **QUICK_TO_GIVE_UP}

    def is_waiting() -> bool:
        reports = [json.loads(path.read_text()) for path in tmp_path.glob("health-agent-*.json")]
        return [report["status"] for report in reports] == ["waiting"]

    with agent(tmp_path, variables) as process:
        record(tmp_path, range(100))
        wait_until(is_waiting, "the health file does not tell that a broker is missing")
        process.send_signal(signal.SIGTERM)
        printed, said = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, said
    assert said.count("No Kafka broker answered") == 1
    totals = json.loads(printed)
    assert totals["logged_rows"] == 100
    assert totals["waiting_batches"] == len(logged_payloads(tmp_path / "log", "node-a")) > 0


def test_a_batch_job_without_a_broker_ends_with_an_error(tmp_path: Path) -> None:
    """Exit code 3, whether something waits or not; what waits is counted, and stays."""
    variables = {"MOESCOPE_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9", **QUICK_TO_GIVE_UP}
    arguments = ("run", "agent", "--until-idle", "--data", tmp_path)
    said = moescope(*arguments, folder=tmp_path, variables=variables, expect=3).stderr
    assert "No broker took us; no batch waits for one." in said
    record(tmp_path, range(100))
    said = moescope(*arguments, folder=tmp_path, variables=variables, expect=3).stderr
    number = len(logged_payloads(tmp_path / "log", "node-a"))
    assert number > 0
    assert f"stopped after 0 batches shipped; {number} wait for the next start" in said
    assert f"{number} batch{'es' * (number != 1)} could not be shipped." in said
    assert "No Kafka broker answered" in said


def test_a_batch_job_without_its_topic_ends_with_an_error(
    kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path
) -> None:
    """Exit code 3 and the topic's name, though nothing waits to be sent there."""
    variables = {**variables_of(kafka_broker, topic_prefix), "MOESCOPE_KAFKA_DELIVERY_TIMEOUT": "4"}
    arguments = ("run", "agent", "--until-idle", "--data", tmp_path)
    said = moescope(*arguments, folder=tmp_path, variables=variables, expect=3).stderr
    assert f"The topic {topic_prefix}.routing does not exist" in said
    assert "topics-apply" in said


def test_two_agents_do_not_share_a_folder(tmp_path: Path) -> None:
    """The second one says who is in the way: two cursors would ship everything twice."""
    variables = {"MOESCOPE_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9"}
    with agent(tmp_path, variables):
        wait_until(lambda: any(tmp_path.glob("health-agent-*.json")), "the agent did not start")
        arguments = ("run", "agent", "--data", tmp_path)
        said = moescope(*arguments, folder=tmp_path, variables=variables, expect=3).stderr
    assert "Another agent serves" in said


def test_without_brokers_the_command_names_the_setting(tmp_path: Path) -> None:
    """A node that was not told where to ship to fails at once, with what to do."""
    said = moescope("run", "agent", "--data", tmp_path, folder=tmp_path, expect=2).stderr
    assert "MOESCOPE_KAFKA_BOOTSTRAP_SERVERS" in said
