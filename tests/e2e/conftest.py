"""What several end-to-end modules look at, made once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.command_line import moescope

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def small_demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder in which a small demo ran, as `make demo` leaves the checkout, and its report."""
    folder = tmp_path_factory.mktemp("demo")
    told = moescope("demo", "--nodes", "2", "--duration", "60", "--json", folder=folder)
    return folder, json.loads(told.stdout)
