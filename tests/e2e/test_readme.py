from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from moescope.core.settings import load_settings

MOESCOPE = ".venv/bin/moescope"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")


@pytest.fixture(scope="module")
def readme(repository_root: Path) -> str:
    """The front page."""
    return (repository_root / "README.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    """Code blocks of one language."""
    return [body for found, body in BLOCK.findall(text) if found == language]


def shell_commands(text: str) -> list[list[str]]:
    """Commands of the shell blocks, without comments."""
    return [
        words
        for body in blocks(text, "sh")
        for line in body.splitlines()
        if (words := shlex.split(line, comments=True))
    ]


def test_every_block_has_a_language_that_is_tested(readme: str) -> None:
    """No code on the front page escapes the tests below."""
    languages = {language for language, _ in BLOCK.findall(readme)}
    assert languages
    assert languages <= {"sh", "python", "sql"}


def test_make_commands_are_targets(readme: str, repository_root: Path) -> None:
    """The two commands of the front page exist under these names."""
    targets = set(
        re.findall(r"^([a-z][a-z-]*):", (repository_root / "Makefile").read_text(), re.MULTILINE)
    )
    used = {words[1] for words in shell_commands(readme) if words[0] == "make"}
    assert {"demo", "test"} <= used
    assert used <= targets


def test_extras_exist(readme: str, repository_root: Path) -> None:
    """Nobody is told to install an extra that the package does not have."""
    project = tomllib.loads((repository_root / "pyproject.toml").read_text())["project"]
    named = set(re.findall(r"\[(\w+)\]'", readme)) | set(re.findall(r"`\[(\w+)\]`", readme))
    assert named
    assert named <= set(project["optional-dependencies"])


def test_every_shell_command_is_covered(readme: str) -> None:
    """A command of a new kind on the front page needs a test that knows it."""
    assert {words[0] for words in shell_commands(readme)} <= {"export", "make", "pip", MOESCOPE}


def test_exported_variables_are_settings(readme: str) -> None:
    """What a reader exports is understood, under that name."""
    exported = [words[1] for words in shell_commands(readme) if words[0] == "export"]
    assert exported
    for assignment in exported:
        name, _, value = assignment.partition("=")
        told = load_settings(environment={name: value}, options={})
        assert value in [
            told[setting] for setting, where in told.origins.items() if where != "default"
        ]


def test_broker_is_named_before_commands_that_need_it(readme: str) -> None:
    """Typed from top to bottom, no command is the first to ask for what comes below it."""
    kinds = [words[:2] for words in shell_commands(readme)]
    broker = kinds.index(["make", "kafka"])
    address = kinds.index(["export", "MOESCOPE_KAFKA_BOOTSTRAP_SERVERS=127.0.0.1:9092"])
    assert broker < address < kinds.index([MOESCOPE, "kafka"])


def test_the_broker_brings_the_environment_that_later_commands_use(repository_root: Path) -> None:
    """Whoever begins with the fleet section has `.venv` after its first command."""
    steps = subprocess.run(
        ["make", "--dry-run", "kafka"],
        cwd=repository_root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert steps.index("scripts/bootstrap.sh") < steps.index(".venv/bin/python")


def test_agent_reads_the_ring_that_the_fleet_section_names(readme: str) -> None:
    """The recorder's directory is the `ring` of the agent's data directory."""
    (data,) = (
        words[words.index("--data") + 1]
        for words in shell_commands(readme)
        if words[1:3] == ["run", "agent"]
    )
    assert f'`directory="{data}/ring"`' in readme


def test_python_blocks_run(readme: str, tmp_path: Path) -> None:
    """The Python on the front page runs as it stands, and records what it says."""
    code = "\n".join([*blocks(readme, "python"), "print(recorder.counters())"])
    outcome = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert "recorded_rows=312" in outcome.stdout
    assert "rejected_rows=0" in outcome.stdout


@pytest.fixture
def demo_folder(small_demo: tuple[Path, dict[str, Any]]) -> Path:
    """A folder in which a small demo ran, as `make demo` leaves the checkout."""
    return small_demo[0]


def moescope(folder: Path, *arguments: str) -> str:
    """Run the installed command and return what it prints."""
    return subprocess.run(
        [Path(sys.executable).with_name("moescope"), *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def test_moescope_commands_run(readme: str, demo_folder: Path) -> None:
    """What a reader types after the demo works, and prints something."""
    commands = [words[1:] for words in shell_commands(readme) if words[0] == MOESCOPE]
    assert commands
    for words in commands:
        # They serve until stopped, or need a broker or what comes from one; their own tests do.
        serves = words[0] in {"run", "kafka"} or "store-data" in words
        assert moescope(demo_folder, *words, *(["--help"] if serves else []))


def test_sql_blocks_run(readme: str, demo_folder: Path) -> None:
    """The query on the front page names columns that exist, and finds windows."""
    queries = blocks(readme, "sql")
    assert queries
    for query in queries:
        rows = json.loads(moescope(demo_folder, "sql", "--data", "demo-data", "--json", query))
        assert rows


def test_links_lead_somewhere(readme: str, repository_root: Path) -> None:
    """A link to a file of the repository names a file that exists."""
    links = LINK.findall(readme)
    assert links
    assert [link for link in links if not (repository_root / link).exists()] == []
