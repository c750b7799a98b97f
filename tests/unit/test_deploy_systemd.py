"""Units of systemd: checked by systemd's own tools, and against the program that they start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.deployment import files_below, parse_command, settings_of

from moescope.console.fleet_shape import need_processors
from moescope.core.settings import load_settings

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "systemd"
PROGRAM = "/opt/moescope/bin/moescope"
EXPECTED = {
    "moescope-agent.service": "moescope run agent",
    "moescope-processor@.service": "moescope run processor",
    "moescope-store.service": "moescope run store",
    "moescope-store-standby.service": "moescope run store",
}
MOST_EXPOSURE = 20
"""Tenths of `systemd-analyze security`'s points, from 0 (locked in) to 100."""
TOOLS = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None and not os.environ.get("MOESCOPE_REQUIRE_SERVICES"),
    reason="systemd-analyze is missing (Debian: apt-get install systemd)",
)

Unit = dict[tuple[str, str], list[str]]


def read(name: str) -> Unit:
    """A unit's settings by section and name, in order."""
    unit: Unit = {}
    section = ""
    for line in (FOLDER / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, equals, value = line.partition("=")
            assert equals, line
            unit.setdefault((section, key), []).append(value)
    return unit


def one(unit: Unit, key: str, section: str = "Service") -> str:
    """The only value of a setting."""
    (value,) = unit[section, key]
    return value


def expanded(text: str) -> str:
    """The specifiers that the units use, as systemd would fill them in."""
    for specifier, value in {"%H": "host", "%i": "1", "%t": "/run", "%C": "/var/cache"}.items():
        text = text.replace(specifier, value)
    assert "%" not in text
    return text


def environment(unit: Unit) -> dict[str, str]:
    """Variables that a unit sets."""
    pairs = [expanded(each).partition("=") for each in unit["Service", "Environment"]]
    return {name: value for name, _, value in pairs}


def test_every_unit_is_known() -> None:
    """A unit that nobody checks is one that nobody runs."""
    assert {path.name for path in files_below(FOLDER, "*.service")} == set(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_unit_starts_what_it_says(name: str) -> None:
    """Commands and variables are those of this version."""
    unit = read(name)
    program, *words = one(unit, "ExecStart").split()
    assert program == PROGRAM
    assert parse_command(words) == EXPECTED[name]


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_variables_of_a_unit_are_settings(name: str) -> None:
    """Folders that are named are those that systemd makes and lets the process write to."""
    unit = read(name)
    variables = environment(unit)
    made = {
        f"{root}/{expanded(folder)}"
        for key, root in (
            ("StateDirectory", "/var/lib"),
            ("RuntimeDirectory", "/run"),
            ("CacheDirectory", "/var/cache"),
        )
        for folder in unit.get(("Service", key), [])
    }
    settings = settings_of(variables)
    assert settings["data.directory"] in made
    assert variables.get("NUMBA_CACHE_DIR") in made or name == "moescope-agent.service"
    if "@" in name:
        assert settings["kafka.instance_id"] == "host-1"


def test_agent_and_store_share_no_data_directory() -> None:
    """The store reads batch logs in its data directory: what is shipped would be counted twice."""
    folders = {name: settings_of(environment(read(name)))["data.directory"] for name in EXPECTED}
    assert folders["moescope-store.service"] == folders["moescope-store-standby.service"]
    assert len(set(folders.values())) == 3


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_unit_comes_back_unless_its_settings_are_wrong(name: str) -> None:
    """A killed process is started again; exit code 2 asks for somebody who changes something."""
    unit = read(name)
    assert one(unit, "Restart") == "on-failure"
    assert one(unit, "RestartPreventExitStatus") == "2"
    assert one(unit, "StartLimitIntervalSec", "Unit") == "0"
    assert one(unit, "User") == "moescope"
    drain = settings_of({})["kafka.delivery_timeout"]
    assert int(one(unit, "TimeoutStopSec")) > drain


def test_compiling_needs_memory_that_may_be_executed() -> None:
    """Kernels are compiled in processors and stores; an agent has none."""
    forbidding = {name for name in EXPECTED if ("Service", "MemoryDenyWriteExecute") in read(name)}
    assert forbidding == {"moescope-agent.service"}


@pytest.mark.parametrize("name", ["server.toml", "node.toml"])
def test_a_settings_file_is_complete_and_is_what_the_page_shows(name: str) -> None:
    """With it and the units' own variables alone, everything starts; the page shows no other."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert text in (ROOT / "docs/how-to/deploy.md").read_text(encoding="utf-8")
    settings = load_settings(FOLDER / name, environment={})
    assert settings["kafka.bootstrap_servers"]
    assert settings["watch.port"] > 0
    assert settings.origins["data.directory"] == "default"
    if name == "server.toml":
        need_processors(settings, "moescope-processor@")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The units as installed here: with a program that exists, and an instance of the template."""
    folder = tmp_path_factory.mktemp("units")
    program = str(Path(sys.executable).with_name("moescope"))
    for path in files_below(FOLDER, "moescope*"):
        text = path.read_text(encoding="utf-8").replace(PROGRAM, program)
        (folder / path.name.replace("@.", "@1.")).write_text(text, encoding="utf-8")
        (folder / path.name).write_text(text, encoding="utf-8")
    return folder


@TOOLS
def test_systemd_accepts_the_units(installed: Path) -> None:
    """A mistyped setting is ignored by systemd, with a line in a log that nobody reads."""
    names = [name.replace("@.", "@1.") for name in EXPECTED]
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *names],
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{installed}:"},
        cwd=installed,
        check=False,
        capture_output=True,
        text=True,
    )
    said = [line for line in checked.stderr.splitlines() if "moescope" in line]
    assert not said
    assert checked.returncode == 0, checked.stderr


@TOOLS
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_units_are_locked_in(installed: Path, name: str) -> None:
    """By systemd's own count of what a process that was taken over could still do."""
    checked = subprocess.run(
        [
            "systemd-analyze", "security", "--offline=yes", "--no-pager",
            f"--threshold={MOST_EXPOSURE}", f"./{name.replace('@.', '@1.')}",
        ],
        cwd=installed,
        check=False,
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout[-500:] + checked.stderr


@TOOLS
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders that belong to others")
def test_user_and_ring_folder_are_made(tmp_path: Path) -> None:
    """The agent's group owns the ring folder, and the data directory leads to it."""
    etc = tmp_path / "etc"
    etc.mkdir()
    (etc / "passwd").write_text("root:x:0:0::/root:/bin/sh\n", encoding="utf-8")
    (etc / "group").write_text("root:x:0:\n", encoding="utf-8")
    for tool, *words in (
        ("systemd-sysusers", str(FOLDER / "moescope.sysusers.conf")),
        ("systemd-tmpfiles", "--create", str(FOLDER / "moescope.tmpfiles.conf")),
    ):
        subprocess.run(
            [tool, f"--root={tmp_path}", *words], check=True, capture_output=True, text=True
        )
    user = dict(
        line.split(":", 1) for line in (etc / "passwd").read_text(encoding="utf-8").splitlines()
    )["moescope"]
    unit = read("moescope-agent.service")
    rings = tmp_path / "run" / one(unit, "RuntimeDirectory")
    data = tmp_path / "var" / "lib" / one(unit, "StateDirectory")
    for folder in (rings, data):
        assert folder.stat().st_mode & 0o7777 == int(one(unit, "StateDirectoryMode"), 8) == 0o2770
        assert folder.stat().st_uid == int(user.split(":")[1])
    assert (data / "ring").readlink() == Path("/run") / one(unit, "RuntimeDirectory")
