"""What docker compose would start: its broker's settings in a native broker, then its commands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.broker_choice import require_native
from support.command_line import moescope
from support.deployment import interpolated, yaml_documents
from support.kafka_broker import KafkaBroker, free_port

from moescope.console.watch import serving
from moescope.core.self_metrics import SelfMetrics
from moescope.core.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

COMPOSE = Path(__file__).resolve().parents[2] / "docker-compose.yml"
NO_PROPERTIES = {"KAFKA_HEAP_OPTS"}
"""Variables that the image's start script reads itself."""
HOST = "127.0.0.1"


def service(name: str) -> dict[str, Any]:
    """A service of the compose file, with the defaults of its variables."""
    (document,) = yaml_documents(COMPOSE.read_text(encoding="utf-8"))
    found = interpolated(document["services"][name], {})
    assert isinstance(found, dict)
    return found


def properties(environment: dict[str, str]) -> dict[str, str]:
    """Settings that the image makes of variables: `_` is a dot, `__` a `_`, `___` a dash."""
    marks = {"_": ".", "__": "_", "___": "-"}
    return {
        re.sub("_{1,3}", lambda found: marks[found[0]], name.removeprefix("KAFKA_")).lower(): value
        for name, value in environment.items()
        if name.startswith("KAFKA_") and name not in NO_PROPERTIES
    }


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A native broker with every setting of the compose file, on this machine's free ports."""
    require_native()
    folder = tmp_path_factory.mktemp("compose")
    port, inside = free_port(), free_port()
    ports = {"9092": str(port), "9093": str(port + 1), "19092": str(inside)}
    given = properties(service("broker")["environment"])
    given["log.dirs"] = str(folder / "data")
    for name in ("listeners", "advertised.listeners", "controller.quorum.voters"):
        here = re.sub(
            r"(//|@)(?:broker|localhost)?:(\d+)",
            lambda found: f"{found[1]}{HOST}:{ports[found[2]]}",
            given[name],
        )
        assert here.count(HOST) == given[name].count(",") + 1
        given[name] = here
    with KafkaBroker(folder, port=port, settings=given) as started:
        yield started


def test_topics_are_made_as_compose_makes_them(broker: KafkaBroker, tmp_path: Path) -> None:
    """The one-shot service ends well, and what it made is what the settings declare."""
    topics = service("topics")
    variables = {
        **topics["environment"],
        "MOESCOPE_KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap,
    }
    moescope(*topics["command"], folder=tmp_path, variables=variables)
    moescope("kafka", "topics-check", folder=tmp_path, variables=variables)
    assert not list(tmp_path.iterdir()), "the container's root is read-only"


@pytest.mark.parametrize("name", ["store", "processor", "agent"])
def test_health_checks_answer(name: str, tmp_path: Path) -> None:
    """The command that a container runs says 0 while the component reports, and 1 afterwards."""
    each = service(name)
    variables = {**each["environment"], "MOESCOPE_DATA_DIRECTORY": str(tmp_path)}
    command = each["healthcheck"]["test"][2:]
    settings = load_settings(environment={"MOESCOPE_DATA_DIRECTORY": str(tmp_path)})
    with serving(settings, SelfMetrics(), name):  # type: ignore[arg-type] # one of three words
        moescope(*command, folder=tmp_path, variables=variables)
    moescope(*command, folder=tmp_path, variables=variables, expect=1)
