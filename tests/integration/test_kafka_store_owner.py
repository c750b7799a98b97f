"""`moescope run store` with a real broker: killed owners, standbys, and what one says of itself."""

from __future__ import annotations

import random
import subprocess
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from support.command_line import MOESCOPE, environment, moescope
from support.deltas_topic import send_emissions
from support.kafka_settings import kafka_settings, make_topics, variables_of
from support.shared_rows import SECOND, RowProcessor, make_records

from moescope.console.opened_store import opened_store
from moescope.core.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.broker_choice import SharedBroker

    from moescope.core.emission import Emission
    from moescope.core.settings import Settings

TABLES = ("windows", "metric_histograms", "batches", "offsets")
PATIENCE_SECONDS = 40.0


@pytest.fixture
def settings(kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path) -> Settings:
    """Of a fleet whose processors' deltas are read; its topics exist."""
    found = kafka_settings(
        kafka_broker.bootstrap,
        topic_prefix,
        store__source="deltas",
        data__directory=str(tmp_path / "fleet"),
    )
    make_topics(found)
    return found


def emissions(settings: Settings, commits: int) -> list[Emission]:
    """Commits of one partition of the routing topic."""
    processor = RowProcessor(f"{settings['kafka.topic_prefix']}.routing-0")
    records = make_records(5, 2 * commits, longest_us=20 * SECOND)
    return [processor.emission(records[at : at + 2]) for at in range(0, len(records), 2)]


def contents(settings: Settings) -> dict[str, Any]:
    """Rows that emissions wrote, and the owners so far, of a store that nobody has open."""
    found: dict[str, Any] = {}
    with opened_store(settings, closes_windows=False) as parts, parts.store.cursor() as cursor:
        for table in TABLES:
            # The last column is the number of the transaction.
            found[table] = sorted(repr(row[:-1]) for row in cursor.table(table).fetchall())
        found["owners"] = parts.store.fencing_token
    return found


class StoreProcess:
    """`moescope run store` of a test."""

    def __init__(self, settings: Settings, *options: str, log: Path) -> None:
        self._log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [MOESCOPE, "run", "store", *options],
                env=environment(variables_of(settings)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def told(self) -> str:
        """What it has said."""
        return self._log.read_text(encoding="utf-8")

    def wait_until_told(self, words: str) -> None:
        """Wait until it says some words."""
        gives_up = time.monotonic() + PATIENCE_SECONDS
        while words not in self.told():
            assert self.process.poll() is None, self.told()
            assert time.monotonic() < gives_up, self.told()
            time.sleep(0.05)

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Ask it to end; it has to end well."""
        self.process.terminate()
        assert self.process.wait(PATIENCE_SECONDS) == 0, self.told()


@contextmanager
def started(settings: Settings, tmp_path: Path) -> Iterator[Any]:
    """Starts processes, and leaves none behind."""
    with ExitStack() as closing:

        def start(*options: str) -> StoreProcess:
            log = tmp_path / f"{random.getrandbits(40)}.log"
            process = StoreProcess(settings, *options, log=log)
            closing.callback(process.process.wait)
            closing.callback(process.process.kill)
            return process

        yield start


def test_standbys_take_over_and_apply_everything_once(settings: Settings, tmp_path: Path) -> None:
    """Owners that are killed while they read leave tables as if none had been."""
    sent = emissions(settings, 40)
    with started(settings, tmp_path) as start:
        first = start()
        first.wait_until_told("owner 1 of")
        moescope("run", "store", folder=tmp_path, variables=variables_of(settings), expect=3)
        standbys = [start("--standby"), start("--standby")]
        for standby in standbys:
            standby.wait_until_told("standby: ")
        send_emissions(settings, "a", sent[:15])
        first.kill()
        gives_up = time.monotonic() + PATIENCE_SECONDS
        while not (second := [each for each in standbys if "owner 2 of" in each.told()]):
            assert time.monotonic() < gives_up, [each.told() for each in standbys]
            time.sleep(0.05)
        standbys.remove(second[0])
        send_emissions(settings, "b", sent[15:30])
        second[0].kill()
        standbys[0].wait_until_told("owner 3 of")
        send_emissions(settings, "c", sent[30:])
        standbys[0].stop()
    moescope("run", "store", "--until-idle", folder=tmp_path, variables=variables_of(settings))
    direct = load_settings(environment={}, options={"data.directory": str(tmp_path / "direct")})
    with opened_store(direct, closes_windows=True) as parts:
        for emission in sent:
            parts.store.apply(emission)
    found, expected = contents(settings), contents(direct)
    # Three owners, the one that ended when idle, and this test.
    assert (found.pop("owners"), expected.pop("owners")) == (5, 2)
    assert found == expected


def test_no_brokers_is_a_clear_error(tmp_path: Path) -> None:
    """Without Kafka there is no fleet, and the message says what runs instead."""
    outcome = moescope(
        "run", "store", folder=tmp_path, variables={"MOESCOPE_DATA_DIRECTORY": str(tmp_path)},
        expect=2,
    )  # fmt: skip
    assert "moescope run all" in outcome.stderr
