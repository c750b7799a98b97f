"""Declared windows that close after a few rows, and the parts that roll logs up into a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.processors.config import WindowConfig
from moescope.processors.finish import WindowFinisher
from moescope.processors.pipeline import Pipeline
from moescope.processors.sources.batch_log import BatchLogSource
from moescope.storage.shared import WindowShapes
from moescope.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from moescope.processors.pipeline import PipelineTotals

CONFIG = WindowConfig(
    token=((4, 4), (8, 8), (16, 8)),
    time=((1_000_000, 1_000_000), (3_000_000, 3_000_000), (6_000_000, 2_000_000)),
    step=((2, 2), (4, 2)),
    row_budget=40,
)


def open_store(path: Path) -> Store:
    """A store for these windows."""
    return Store(path, WindowFinisher(), WindowShapes(CONFIG.time, CONFIG.step))


def roll_up_logs(
    logs: Path,
    store_file: Path,
    commit_records: int = 1,
    on_commit: Callable[[PipelineTotals], None] | None = None,
) -> None:
    """Roll all partitions below `logs` up into a store, in small commits, until nothing is left."""
    with BatchLogSource(logs) as source, open_store(store_file) as store:
        Pipeline(
            source,
            store,
            WindowFinisher(),
            CONFIG,
            commit_interval=60.0,
            commit_records=commit_records,
            on_commit=on_commit,
        ).run(until_idle=True)
