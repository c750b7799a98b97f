"""Fixtures with a real Apache Kafka: tests share one broker, and differ in topics and groups."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING

import pytest
from support import broker_choice

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.broker_choice import Broker, SharedBroker


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedBroker]:
    """One broker for all tests and workers of the run. Not to be stopped: see `own_broker`."""
    base = tmp_path_factory.getbasetemp()
    # A worker's folder lies inside the run's; without workers it is the run's.
    run = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with broker_choice.shared_broker(run / "kafka") as broker:
        yield broker


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker of this test's own, started, that it may kill, pause, stop and start again."""
    with broker_choice.own_broker(tmp_path / "kafka") as broker:
        yield broker


@pytest.fixture
def topic_prefix() -> str:
    """What this test's topics, groups and transactional ids begin with; nobody else's do."""
    return f"test-{uuid.uuid4().hex[:12]}"
