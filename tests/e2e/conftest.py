"""What several end-to-end modules look at, made once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.command_line import moescope
from support.few_recordings import few_recordings

if TYPE_CHECKING:
    from pathlib import Path


PLAYED = ("healthy_aligned", "few_shot_with", "few_shot_without")

DEMO_SECONDS = 300
"""The longest that the demo may take on a busy machine, and a test that waits for it."""

QUICK = {
    "MOESCOPE_CALIBRATION_RESAMPLES": "50",
    "MOESCOPE_WINDOWS_TOKEN": "128",
    "MOESCOPE_WINDOWS_TIME": "60",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever test needs the demo first waits for it."""
    for item in items:
        if {"small_demo", "another_demo"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.timeout(DEMO_SECONDS))


@pytest.fixture(scope="session")
def small_demo(
    repository_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """A folder in which a small demo ran, as `make demo` leaves the checkout, and its report."""
    return run_small_demo(repository_root, tmp_path_factory)


@pytest.fixture(scope="session")
def another_demo(
    repository_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """The same once more, in a folder of its own."""
    return run_small_demo(repository_root, tmp_path_factory)


def run_small_demo(
    repository_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """Run a demo with two nodes and a few recordings."""
    folder = tmp_path_factory.mktemp("demo")
    recordings = few_recordings(repository_root, tmp_path_factory.mktemp("few"), *PLAYED)
    told = moescope(
        "demo", "--recordings", recordings, "--nodes", "2", "--duration", "300", "--json",
        folder=folder,
        variables=QUICK,
        patience=DEMO_SECONDS,
    )  # fmt: skip
    return folder, json.loads(told.stdout)
