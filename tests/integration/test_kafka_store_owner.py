"""`moescope run store` with a real broker: killed owners, standbys, and what one says of itself."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from support.deltas_topic import send_emissions
from support.fleet_processes import Nursery, wait_for
from support.fleet_roles import run_command
from support.kafka_settings import kafka_settings, make_topics, variables_of
from support.shared_rows import SECOND, RowProcessor, make_records

from moescope.console.opened_store import opened_store
from moescope.console.store_work import run_store
from moescope.core.errors import InputError, SettingsError
from moescope.core.settings import load_settings
from moescope.storage.errors import StoreInUseError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.broker_choice import SharedBroker
    from support.fleet_processes import FleetProcess

    from moescope.core.emission import Emission
    from moescope.core.settings import Settings

TABLES = ("windows", "metric_histograms", "batches", "offsets")
PATIENCE_SECONDS = 90.0


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


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    """Makes processes, of which none is left."""
    with Nursery(tmp_path / "logs") as made:
        yield made


def told(process: FleetProcess, words: str) -> bool:
    """Whether a process has said some words; it has to live."""
    assert process.is_running, process.last_words()
    return words in process.last_words()


def waiting(settings: Settings) -> int:
    """How many standbys say in their health files that they wait."""
    files = settings.data_directory.glob("health-store-*.json")
    return sum('"waiting"' in each.read_text(encoding="utf-8") for each in files)


def test_standbys_take_over_and_apply_everything_once(
    settings: Settings, tmp_path: Path, nursery: Nursery
) -> None:
    """Owners that are killed while they read leave tables as if none had been."""
    sent, variables = emissions(settings, 40), variables_of(settings)

    def start(name: str, *options: str) -> FleetProcess:
        return nursery.start(name, run_command, ["run", "store", *options], variables)

    first = start("first")
    wait_for("an owner", lambda: told(first, "owner 1 of"), PATIENCE_SECONDS)
    with pytest.raises(StoreInUseError):
        run_store(settings, threading.Event())
    standbys = [start("second", "--standby"), start("third", "--standby")]
    for each in standbys:
        wait_for("a standby", partial(told, each, "standby: "), PATIENCE_SECONDS)
    wait_for("standbys' health", lambda: waiting(settings) == 2, PATIENCE_SECONDS)
    unneeded = start("unneeded", "--standby")
    wait_for("a standby", lambda: told(unneeded, "standby: "), PATIENCE_SECONDS)
    unneeded.stop()
    send_emissions(settings, "a", sent[:15])
    first.kill()
    wait_for(
        "another owner",
        lambda: any(told(each, "owner 2 of") for each in standbys),
        PATIENCE_SECONDS,
    )
    standbys.sort(key=lambda each: told(each, "owner 2 of"))
    send_emissions(settings, "b", sent[15:30])
    standbys.pop().kill()
    (last,) = standbys
    wait_for("the last owner", lambda: told(last, "owner 3 of"), PATIENCE_SECONDS)
    send_emissions(settings, "c", sent[30:])
    last.stop()
    run_store(settings, threading.Event(), until_idle=True)
    direct = load_settings(environment={}, options={"data.directory": str(tmp_path / "direct")})
    with opened_store(direct, closes_windows=True) as parts:
        for emission in sent:
            parts.store.apply(emission)
    found, expected = contents(settings), contents(direct)
    # Three owners, the one that ended when idle, and this test.
    assert (found.pop("owners"), expected.pop("owners")) == (5, 2)
    assert found == expected


def test_a_standby_that_took_over_is_none_any_more(settings: Settings, nursery: Nursery) -> None:
    """It says that it waits while it does, and not afterwards."""
    stop = threading.Event()
    owner = nursery.start("owner", run_command, ["run", "store"], variables_of(settings))
    wait_for("an owner", lambda: told(owner, "owner 1 of"), PATIENCE_SECONDS)

    def end_owners() -> None:
        wait_for("a standby's health", lambda: waiting(settings) == 1, PATIENCE_SECONDS)
        owner.kill()
        wait_for("its end", lambda: waiting(settings) == 0, PATIENCE_SECONDS)
        stop.set()

    thread = threading.Thread(target=end_owners)
    thread.start()
    metrics = run_store(settings, stop, standby=True)
    thread.join()
    assert metrics.value("moescope_store_fencing_token") == 2
    assert metrics.value("moescope_store_standby") == 0


def test_no_brokers_is_a_clear_error(tmp_path: Path) -> None:
    """Without Kafka there is no fleet, and the message says what runs instead."""
    settings = load_settings(environment={}, options={"data.directory": str(tmp_path)})
    with pytest.raises(SettingsError, match="moescope run all"):
        run_store(settings, threading.Event())


def test_a_standby_never_resets_processors(tmp_path: Path) -> None:
    """Left in a unit file, that would throw their work away at each take-over."""
    settings = kafka_settings(
        "127.0.0.1:1", "nobody", store__source="deltas", data__directory=str(tmp_path)
    )
    with pytest.raises(InputError, match="cannot reset"):
        run_store(settings, threading.Event(), standby=True, reset_processors=True)
