"""The installed `moescope` command, run as a person runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

MOESCOPE = Path(sys.executable).with_name("moescope")
TIMEOUT_SECONDS = 100


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without settings of moescope."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("MOESCOPE_")}
    return {**kept, **(extra or {})}


def moescope(
    *arguments: str | Path,
    folder: Path,
    answers: str = "",
    variables: Mapping[str, str] | None = None,
    expect: int = 0,
    patience: float = TIMEOUT_SECONDS,
) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder; fails unless it ends with the exit code that is expected."""
    outcome = subprocess.run(
        [MOESCOPE, *arguments],
        cwd=folder,
        env=environment(variables),
        input=answers,
        check=False,
        capture_output=True,
        text=True,
        timeout=patience,
    )
    assert outcome.returncode == expect, outcome.stdout + outcome.stderr
    return outcome


def query(data: Path, text: str) -> list[dict[str, Any]]:
    """Rows of `moescope sql --json`, each as a dictionary."""
    printed = moescope("sql", "--data", data, "--json", text, folder=data.parent).stdout
    result = json.loads(printed)
    assert not result["truncated"]
    names = [column["name"] for column in result["columns"]]
    return [dict(zip(names, row, strict=True)) for row in result["rows"]]
