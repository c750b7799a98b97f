"""What holds for every test: markers by folder, hypothesis profiles, the repository's root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["support.kafka_fixtures"]

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
FOLDERS = frozenset({"unit", "property", "integration", "e2e", "engines"})

# A shared machine stalls now and then: a deadline would only measure that.
settings.register_profile(
    "quick", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("gate", settings.get_profile("quick"), derandomize=True, database=None)
settings.register_profile("fuzz", settings.get_profile("quick"), max_examples=5_000)
settings.load_profile(
    os.environ.get("MOESCOPE_HYPOTHESIS_PROFILE") or ("gate" if os.environ.get("CI") else "quick")
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with the name of the folder it lies in."""
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""
        if folder in FOLDERS:
            item.add_marker(folder)


@pytest.fixture(scope="session")
def repository_root() -> Path:
    """The root of the checkout."""
    return ROOT
