"""Fixtures with a real Apache Kafka: tests share one broker, and differ in topics and groups."""

from __future__ import annotations

import fcntl
import gc
import os
import sys
import uuid
from importlib import import_module
from typing import TYPE_CHECKING

import pytest
from support import broker_choice

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.broker_choice import Broker, SharedBroker

BROKERS = frozenset({"kafka_broker", "own_broker"})
LONGEST_TEST_S = 400
"""Of one with a broker; the machine may be busy, and a single wait may take 90 s."""
_NEEDS_KERNELS = pytest.StashKey[bool]()


FORGOTTEN = r"ignore:unclosed <(socket\.socket|ssl\.SSLSocket) :ResourceWarning"
"""kafka-python leaves sockets in reference cycles where a connection fails or a broker dies."""


def pytest_configure(config: pytest.Config) -> None:
    """Nothing is compiled yet."""
    config.stash[_NEEDS_KERNELS] = True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests with a broker time, and let none fail for what the client forgets."""
    for item in items:
        if _uses_client(item):
            item.add_marker(pytest.mark.filterwarnings(FORGOTTEN))
        if _has_broker(item) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LONGEST_TEST_S))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compile kernels where this machine has not, while no test's time limit runs."""
    runs = not session.config.option.collectonly
    uses_kernels = "moescope.processors.kernels.apply" in sys.modules
    if runs and uses_kernels and not _are_kernels_compiled():
        session.config.stash[_NEEDS_KERNELS] = False
        _compile_kernels(_run_folder(session.config))


# Outermost, so that no test's time limit runs yet: on a cold cache compiling takes a minute.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Compile what processes of Kafka tests need, before the first such test of a worker."""
    if _has_broker(item) and item.config.stash[_NEEDS_KERNELS]:
        item.config.stash[_NEEDS_KERNELS] = False
        _compile_kernels(_run_folder(item.config))
    return (yield)


def _uses_client(item: pytest.Item) -> bool:
    return item.path.name.startswith("test_kafka_")


def _has_broker(item: pytest.Item) -> bool:
    return not BROKERS.isdisjoint(getattr(item, "fixturenames", ()))


def _run_folder(config: pytest.Config) -> Path:
    """A folder that all workers of a test run have in common."""
    base: Path = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # noqa: SLF001 - pytest has no public one
    # A worker's folder lies inside the run's; without workers it is the run's.
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def _are_kernels_compiled() -> bool:
    from moescope.console.compiling import has_machine_code  # noqa: PLC0415 (slow to import)
    from moescope.processors.finish_rows import finish_rows  # noqa: PLC0415 - slow to import
    from moescope.processors.kernels.apply import apply_ops  # noqa: PLC0415 - slow to import

    return has_machine_code(apply_ops) and has_machine_code(finish_rows)


def _compile_kernels(run: Path) -> None:
    # One worker compiles, the others load what it has cached.
    with (run / "kernels.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        import_module("support.fleet_warm")


@pytest.fixture(scope="session")
def kafka_broker(pytestconfig: pytest.Config) -> Iterator[SharedBroker]:
    """One broker for all tests and workers of the run. Not to be stopped: see `own_broker`."""
    with broker_choice.shared_broker(_run_folder(pytestconfig) / "kafka") as broker:
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


@pytest.fixture(autouse=True)
def _forgotten_sockets(request: pytest.FixtureRequest) -> Iterator[None]:
    """Find what the client forgot with the test that used it, and not in one that comes later."""
    yield
    if _uses_client(request.node):
        gc.collect()
