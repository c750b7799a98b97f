from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest
from support.command_line import MOESCOPE, environment, moescope
from typer.testing import CliRunner

from moescope.console.app import app

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS = (
    ("demo",),
    ("doctor",),
    ("sql",),
    ("import",),
    ("simulate",),
    ("run", "all"),
    *(("baseline", verb) for verb in ("create", "list", "show")),
    *(
        ("threshold", verb)
        for verb in ("calibrate", "list", "show", "diff", "activate", "rollback")
    ),
    *(("alert", verb) for verb in ("list", "show", "test")),
    ("report", "calibration"),
    *(("pattern", verb) for verb in ("list", "show", "pair")),
    *(("job", verb) for verb in ("list", "run", "pause", "resume")),
    *(
        ("kafka", verb)
        for verb in ("topics-check", "topics-apply", "dlq-list", "dlq-show", "dlq-replay")
    ),
    ("store", "migrate"),
    ("store", "export"),
    ("config", "show"),
    ("config", "check"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_an_example_and_the_common_options(command: tuple[str, ...]) -> None:
    """Whoever asks for help sees how the command is typed, and finds --json and --config on it."""
    text = CliRunner().invoke(app, [*command, "--help"]).stdout
    assert f"Example: moescope {' '.join(command)}" in text
    assert "--json" in text
    assert "--config FILE" in text


def test_the_module_is_the_command(tmp_path: Path) -> None:
    """`python -m moescope` works where the script is not on the path, and lists all commands."""
    outcome = subprocess.run(
        [sys.executable, "-m", "moescope", "--help"],
        cwd=tmp_path,
        env=environment(),
        check=True,
        capture_output=True,
        text=True,
    )
    assert outcome.stdout == moescope("--help", folder=tmp_path).stdout
    listed = outcome.stdout.partition("Commands:")[2]
    assert {line.split()[0] for line in listed.splitlines() if line[:3].strip()} == {
        command[0] for command in COMMANDS
    }


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["nonsense"], 2, "No such command 'nonsense'"),
        (["sql"], 2, "Missing argument"),
        (["demo", "--nodes", "0"], 2, "'--nodes'"),
        (["simulate", "nonsense"], 2, "Choose from healthy"),
        (["simulate", "healthy", "--nodes", "0"], 2, "Use at least 1"),
        (["import", "nonsense", "file"], 2, "jsonl"),
        (["import", "jsonl", "missing.jsonl", "-o", "experts=8"], 2, "missing.jsonl"),
        (["import", "jsonl", "-o", "experts"], 2, "Write -o name=value"),
        (["config", "check", "--config", "missing.toml"], 2, "Check --config"),
        (["store", "export", "new"], 2, "There is no store"),
        (["sql", "select 1"], 3, "There is no moescope data"),
        (["simulate", "healthy", "--data", "a-file/inside"], 3, "Not a directory"),
    ],
)
def test_refusals_say_what_to_do(words: list[str], code: int, says: str, tmp_path: Path) -> None:
    """Wrong use ends with 2, something out of reach with 3; both explain themselves on stderr."""
    (tmp_path / "a-file").write_text("")
    outcome = moescope(*words, folder=tmp_path, expect=code)
    assert says in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert outcome.stdout == ""


def test_a_fault_of_moescope_has_a_code_of_its_own(tmp_path: Path) -> None:
    """A bug is not mistaken for wrong use, and its traceback is there for whoever wants it."""
    code = (
        "import moescope.console.commands.config as config, moescope.console.main as main, sys\n"
        "config.print_table = lambda *_: 1 / 0\n"
        "sys.argv = ['moescope', 'config', 'show']\n"
        "main.main()\n"
    )
    for variables, shown in (({}, "internal error: Zero"), ({"MOESCOPE_TRACEBACK": "1"}, "Trace")):
        outcome = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=environment(variables),
            check=False,
            capture_output=True,
            text=True,
        )
        assert outcome.returncode == (1 if variables else 70)
        assert shown in outcome.stderr


def test_settings_come_from_file_environment_and_options(tmp_path: Path) -> None:
    """`config show` says which value counts and from where, and points at a likely typo."""
    (tmp_path / "moescope.toml").write_text(
        '[data]\ndirectory = "from-file"\n[sql]\ntimeout = 5\n[scopes]\nnode = false\n'
    )
    variables = {
        "MOESCOPE_CONFIG": "moescope.toml",
        "MOESCOPE_DATA_DIRECTORY": "from-environment",
        "MOESCOPE_SQL_TIMEOUT": "6.5",
        "MOESCOPE_SCOPE_NODE": "true",
    }
    outcome = moescope(
        "config", "show", "--json", "--data", "from-option", folder=tmp_path, variables=variables
    )
    shown = {name: (entry["value"], entry["origin"]) for name, entry in
             json.loads(outcome.stdout).items()}  # fmt: skip
    assert shown["data.directory"] == ("from-option", "option")
    assert shown["sql.timeout"] == (6.5, "environment")
    assert shown["scopes.node"] == (False, "file moescope.toml")
    assert shown["sql.memory"] == (1536, "default")
    assert "MOESCOPE_SCOPE_NODE is not a setting" in outcome.stderr
    assert "did you mean MOESCOPE_SCOPES_NODE?" in outcome.stderr


def test_a_reader_that_goes_away_is_no_failure(tmp_path: Path) -> None:
    """`| head -1` ends quietly, however much is still to come."""
    reading, writing = os.pipe()
    os.close(reading)
    outcome = subprocess.run(
        [MOESCOPE, "config", "show", "--json"],
        cwd=tmp_path,
        env=environment(),
        check=False,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writing)
    assert (outcome.returncode, outcome.stderr) == (0, "")


def test_the_version_is_printed(tmp_path: Path) -> None:
    """A bug report can say which version it is about."""
    assert moescope("--version", folder=tmp_path).stdout == f"moescope {version('moescope')}\n"
