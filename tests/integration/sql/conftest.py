"""A sample store, its exporter, and pools that are closed after the test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.sample_store import MIDNIGHT_US, SampleStore

from moescope.core.clock import ManualClock
from moescope.storage.export import Exporter
from moescope.storage.query import QueryLimits, QueryPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def sample_store(tmp_path: Path) -> Iterator[SampleStore]:
    """An empty store."""
    directory = tmp_path / "data"
    directory.mkdir()
    store = SampleStore.create(directory)
    yield store
    store.connection.close()


@pytest.fixture
def clock() -> ManualClock:
    """A clock that starts at 2026-01-01."""
    return ManualClock(MIDNIGHT_US)


@pytest.fixture
def exporter(sample_store: SampleStore, clock: ManualClock) -> Exporter:
    """Exports the sample store; replaced files live for 60 s of the manual clock."""
    return Exporter(sample_store.connection, sample_store.export, clock, grace_seconds=60.0)


@pytest.fixture
def open_pool() -> Iterator[Callable[..., QueryPool]]:
    """Opens pools of one small worker, and closes them after the test."""
    pools: list[QueryPool] = []

    def build(path: Path, workers: int = 1, **limits: Any) -> QueryPool:
        kind = {"kind": limits.pop("kind")} if "kind" in limits else {}
        values = {"timeout_seconds": 20.0, "memory_bytes": 512 << 20, "threads": 1} | limits
        pools.append(QueryPool(path, workers, QueryLimits(**values), **kind))
        return pools[-1]

    yield build
    for pool in pools:
        pool.close()
