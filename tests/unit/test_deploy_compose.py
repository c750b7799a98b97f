"""docker-compose.yml: no engine runs it here, so everything that can be read is compared."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose
from support.command_line import environment
from support.deployment import (
    ANY_VARIABLE,
    SETTING_VARIABLES,
    VARIABLE,
    interpolated,
    parse_command,
    refused_by,
    settings_of,
    yaml_documents,
)

from moescope.core.kafka.broker_settings import BROKER_SETTINGS, SINGLE_NODE_SETTINGS

ROOT = Path(__file__).resolve().parents[2]
MAIN = ROOT / "docker-compose.yml"
SECURED = ROOT / "deploy" / "compose" / "secured-kafka.yml"
EXAMPLE = ROOT / ".env.example"
WITHOUT_DEFAULT = {
    "MOESCOPE_KAFKA_BOOTSTRAP_SERVERS": "kafka.example:9093",
    "KAFKA_PASSWORD_FILE": "password",
    "KAFKA_CA_FILE": "ca.pem",
}
OURS = ("topics", "store", "standby", "processor", "simulator", "agent")
WHERE_IT_LISTENS = {
    "KAFKA_PROCESS_ROLES",
    "KAFKA_NODE_ID",
    "KAFKA_CONTROLLER_QUORUM_VOTERS",
    "KAFKA_CONTROLLER_LISTENER_NAMES",
    "KAFKA_INTER_BROKER_LISTENER_NAME",
    "KAFKA_LISTENERS",
    "KAFKA_ADVERTISED_LISTENERS",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP",
    "KAFKA_LOG_DIRS",
    "KAFKA_HEAP_OPTS",
}
"""Of the broker: what only the compose file can know."""


def compose(path: Path = MAIN) -> dict[str, Any]:
    """A compose file with its defaults in place."""
    (document,) = yaml_documents(path.read_text(encoding="utf-8"))
    found = interpolated(document, WITHOUT_DEFAULT if path != MAIN else {})
    assert isinstance(found, dict)
    return found


def service(name: str) -> dict[str, Any]:
    """One service of the compose file."""
    found = compose()["services"][name]
    assert isinstance(found, dict)
    return found


def examples() -> dict[str, tuple[str, bool]]:
    """Variables of .env.example: value, and whether it is commented out."""
    found = {}
    for line in EXAMPLE.read_text(encoding="utf-8").splitlines():
        match = re.fullmatch(r"(#?)([A-Z_]+)=(.*)", line)
        if match:
            assert match[2] not in found, match[2]
            found[match[2]] = (match[3], bool(match[1]))
    return found


@pytest.mark.parametrize("path", [MAIN, SECURED], ids=lambda path: str(path.name))
def test_the_file_is_what_the_specification_calls_one(path: Path) -> None:
    """A mistyped key is an error of compose; here it is found without compose."""
    document = compose(path)
    # `!reset` is for merging files, and compose turns text into numbers where it wants them.
    document["services"] = {
        name: {key: value for key, value in each.items() if value is not None}
        for name, each in document["services"].items()
        if each is not None
    }
    if path == MAIN:
        count = document["services"]["processor"]["deploy"]["replicas"]
        document["services"]["processor"]["deploy"]["replicas"] = int(count)
    assert set(PyCompose.from_yaml(yaml.safe_dump(document)).service_names()) == set(
        document["services"]
    )
    document["services"]["store"]["enviroment"] = {}
    with pytest.raises(ValueError, match="enviroment"):
        PyCompose.from_yaml(yaml.safe_dump(document))


@pytest.mark.parametrize("path", [MAIN, SECURED], ids=lambda path: str(path.name))
def test_compose_itself_accepts_it(path: Path) -> None:
    """The last word on the two files is compose's own; it needs no engine for that."""
    for command in (["docker", "compose"], ["docker-compose"]):
        known = shutil.which(command[0]) and subprocess.run(
            [*command, "version"], check=False, capture_output=True, text=True
        )
        if known and known.returncode == 0 and "version v1" not in known.stdout:
            break
    else:
        pytest.skip("docker compose is not installed")
    files = [word for each in dict.fromkeys([MAIN, path]) for word in ("-f", str(each))]
    checked = subprocess.run(
        [*command, *files, "--env-file", os.devnull, "--profile", "*", "config", "--quiet"],
        check=False,
        capture_output=True,
        text=True,
        env=environment(WITHOUT_DEFAULT),
        cwd=ROOT,
    )
    assert checked.returncode == 0, checked.stderr


def test_every_variable_is_in_the_example_with_its_default() -> None:
    """Whoever copies .env.example changes nothing by it, and finds every variable there."""
    used: dict[str, set[str]] = {}
    for path in (MAIN, SECURED):
        text = path.read_text(encoding="utf-8")
        assert len(VARIABLE.findall(text)) == len(ANY_VARIABLE.findall(text)), "an odd form"
        for name, kind, rest in VARIABLE.findall(text):
            used.setdefault(name, set())
            if kind == ":-":
                used[name].add(rest)
    listed = examples()
    assert set(used) == set(listed)
    for name, defaults in used.items():
        value, is_commented = listed[name]
        assert defaults == ({value} if value or not is_commented else set()), name


def test_the_broker_is_set_up_like_the_native_one() -> None:
    """Tests run against a native broker: what they show has to hold for this one, too."""
    declared = {
        "KAFKA_" + name.upper().replace(".", "_"): value
        for name, value in {**BROKER_SETTINGS, **SINGLE_NODE_SETTINGS}.items()
    }
    given = service("broker")["environment"]
    assert {name for name in given if name not in declared} == WHERE_IT_LISTENS | {"CLUSTER_ID"}
    assert {name: given[name] for name in declared} == declared


def test_listeners_of_the_broker_agree() -> None:
    """A listener that is advertised under another name or port is one that nobody can use."""
    given = service("broker")["environment"]

    def listeners(name: str) -> dict[str, str]:
        return dict(item.split("://") for item in given[name].split(","))

    listening, advertised = listeners("KAFKA_LISTENERS"), listeners("KAFKA_ADVERTISED_LISTENERS")
    protocols = dict(
        item.split(":") for item in given["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(",")
    )
    controller = given["KAFKA_CONTROLLER_LISTENER_NAMES"]
    assert set(listening) == set(protocols) == {*advertised, controller}
    assert given["KAFKA_INTER_BROKER_LISTENER_NAME"] in advertised
    inside = settings_of(service("store")["environment"])["kafka.bootstrap_servers"]
    assert advertised["INTERNAL"] == inside == "broker" + listening["INTERNAL"]
    assert given["KAFKA_CONTROLLER_QUORUM_VOTERS"] == "1@broker" + listening[controller]
    (published,) = service("broker")["ports"]
    address, outside, port = published.rsplit(":", 2)
    assert ":" + port == listening["HOST"]
    assert advertised["HOST"] == f"localhost:{outside}"
    assert address == "127.0.0.1"


def test_commands_and_health_checks_are_commands_of_moescope() -> None:
    """A command that was renamed would only fail in a container that nobody starts here."""
    paths = {name: parse_command(service(name)["command"]) for name in OURS}
    assert paths == {
        "topics": "moescope kafka topics-apply",
        "store": "moescope run store",
        "standby": "moescope run store",
        "processor": "moescope run processor",
        "simulator": "moescope simulate",
        "agent": "moescope run agent",
    }
    for name in ("store", "standby", "processor", "agent"):
        kind, program, *words = service(name)["healthcheck"]["test"]
        assert (kind, program) == ("CMD", "moescope")
        assert parse_command(words) == "moescope doctor"
        component = "store" if name == "standby" else name
        assert words[-2:] == ["--component", component]
    assert refused_by(lambda: parse_command(["run", "stores"]))
    assert refused_by(lambda: parse_command(["doctor", "--component", "broker"]))


@pytest.mark.parametrize("name", OURS)
def test_environments_are_settings(name: str) -> None:
    """A mistyped variable has no effect, and nobody is told."""
    settings = settings_of(service(name).get("environment", {}))
    if name != "simulator":
        assert settings["store.source"] == "deltas"
        assert settings["watch.port"]
    if name in {"simulator", "agent"}:
        assert settings["log.byte_cap"] < 1 << 30
    secured = compose(SECURED)["services"]
    if name != "simulator":
        assert settings_of(secured[name]["environment"])["kafka.security_protocol"] == "SASL_SSL"


def test_everything_that_is_referred_to_exists() -> None:
    """A volume, secret, service, file or stage under another name is an error at the start."""
    document = compose()
    services, volumes = document["services"], document["volumes"]
    stages = re.findall(r" AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for each in services.values():
        for volume in each.get("volumes", []):
            source = volume.split(":")[0]
            assert (ROOT / source).exists() if source.startswith(".") else source in volumes
        for other, how in each.get("depends_on", {}).items():
            wanted = how["condition"]
            assert wanted != "service_healthy" or "test" in services[other]["healthcheck"]
            assert wanted != "service_completed_successfully" or services[other]["restart"] == "no"
            # A service that is always started must not wait for one that is not.
            assert not services[other].get("profiles")
        if "build" in each:
            assert each["build"]["target"] in stages
    assert {source for each in services.values() for source in _volumes(each)} == set(volumes)
    secured = compose(SECURED)
    named = {secret for each in secured["services"].values() if each for secret in each["secrets"]}
    assert named == set(secured["secrets"])
    assert set(secured["services"]) <= set(services)
    for setting, secret in (("SASL_PASSWORD", "kafka_password"), ("SSL_CA", "kafka_ca")):
        variables = secured["services"]["store"]["environment"]
        assert variables[f"MOESCOPE_KAFKA_{setting}_FILE"] == f"/run/secrets/{secret}"


def _volumes(each: dict[str, Any]) -> list[str]:
    sources = [volume.split(":")[0] for volume in each.get("volumes", [])]
    return [source for source in sources if not source.startswith(".")]


def test_store_and_agent_share_no_data_directory() -> None:
    """The store reads batch logs in its data directory: what is shipped would be counted twice."""
    assert set(_volumes(service("store"))) & set(_volumes(service("agent"))) == set()
    assert _volumes(service("store")) == _volumes(service("standby"))
    assert _volumes(service("agent")) == _volumes(service("simulator"))


@pytest.mark.parametrize("name", sorted(compose()["services"]))
def test_containers_may_do_little(name: str) -> None:
    """A process that is taken over can write to its volumes, and that is all."""
    each = service(name)
    assert each["cap_drop"] == ["ALL"]
    assert each["security_opt"] == ["no-new-privileges:true"]
    assert each.get("read_only") or name == "broker"
    assert not {"privileged", "pid", "ipc", "network_mode", "cap_add", "devices"} & set(each)
    assert each["logging"]["options"] == {"max-size": "10m", "max-file": "3"}
    assert all(port.startswith("127.0.0.1:") for port in each.get("ports", []))
    assert not any("docker.sock" in volume for volume in each.get("volumes", []))
    if name != "topics":
        assert each["deploy"]["resources"]["limits"]["memory"]
    if name in OURS:
        writable = {entry.split(":")[0] for entry in each["tmpfs"]}
        writable |= {volume.split(":")[1] for volume in each.get("volumes", [])}
        assert "/tmp" in writable  # noqa: S108 (of the container)
        assert name == "topics" or "/var/lib/moescope" in writable


def test_processors_can_be_many() -> None:
    """`--scale processor=3` needs no fixed name, port or folder."""
    processor = service("processor")
    assert not {"container_name", "hostname", "ports"} & set(processor)
    assert _volumes(processor) == ["kernels"]


def test_prometheus_scrapes_the_services_at_their_port() -> None:
    """What is watched under a name that nobody has is watched by nobody."""
    (scraping,) = yaml_documents(
        (ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
    )
    port = settings_of(service("store")["environment"])["watch.port"]
    watched = {}
    for job in scraping["scrape_configs"]:
        (found,) = job["dns_sd_configs"]
        assert (found["type"], found["port"]) == ("A", port)
        watched[job["job_name"]] = found["names"]
    assert watched == {
        "moescope-agent": ["agent"],
        "moescope-processor": ["processor"],
        "moescope-store": ["store", "standby"],
    }
    (alerting,) = scraping["alerting"]["alertmanagers"]
    assert alerting["static_configs"] == [{"targets": ["alertmanager:9093"]}]
    for name, setting in (("prometheus", "prometheus.yml"), ("alertmanager", "alertmanager.yml")):
        mounts = dict(volume.split(":")[:2] for volume in service(name)["volumes"])
        folder = mounts[f"./deploy/{name}"]
        assert f"--config.file={folder}/{setting}" in service(name)["command"]


def test_variables_that_the_page_names_exist() -> None:
    """Whoever follows the page types these."""
    page = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\bMOESCOPE_[A-Z_]+[A-Z]", page))
    assert named
    assert named <= SETTING_VARIABLES
