"""Rolling a log up into a new store, from wherever its records come."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from benchmarks.lanes import watch_lane
from benchmarks.streams import WINDOW
from moescope.processors import engine as engine_module
from moescope.processors import partition as partition_module
from moescope.processors import pipeline as pipeline_module
from moescope.processors.config import WindowConfig
from moescope.processors.finish import WindowFinisher
from moescope.processors.pipeline import Pipeline
from moescope.processors.sources.batch_log import BatchLogSource
from moescope.storage import commit as commit_module
from moescope.storage.shared import SharedWindows, TrailingReferences, WindowShapes
from moescope.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from benchmarks.logs import Log
    from benchmarks.stages import StageClock
    from moescope.processors.sources.protocol import Source

    Opening = Callable[[], AbstractContextManager[Source]]

FEW = WindowConfig(token=((WINDOW, WINDOW),), task=False, step=())
EVERY = WindowConfig()


def shapes(config: WindowConfig) -> WindowShapes:
    """The shared windows of a configuration."""
    return WindowShapes(time=config.time, step=config.step)


class Rolling:
    """Rolls the records of a source up into a new store, until there are no more.

    Args:
        opening: Opens the source at its beginning.
        config: Declared windows.
        folder: Of the store; emptied by `prepare`.
    """

    def __init__(self, opening: Opening, config: WindowConfig, folder: Path) -> None:
        self._opening = opening
        self._config = config
        self._folder = folder

    @property
    def store_file(self) -> Path:
        """Where the rows are."""
        return self._folder / "moescope.duckdb"

    def prepare(self) -> None:
        """Throw the store of the last run away."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()

    def run(self) -> None:
        """What is measured."""
        finisher = WindowFinisher()
        with (
            Store(self.store_file, finisher, shapes(self._config)) as store,
            self._opening() as source,
        ):
            Pipeline(source, store, finisher, self._config).run(until_idle=True)

    def counted(self) -> tuple[int, int]:
        """Tokens of the committed time windows of 1 s at the first layer, and all rows."""
        return counted(self.store_file, self._config)


def counted(store_file: Path, config: WindowConfig) -> tuple[int, int]:
    """Tokens of the committed time windows of 1 s at the first layer, and all rows."""
    with Store(store_file, WindowFinisher(), shapes(config)) as store:
        cursor = store.cursor()
        row = cursor.execute(
            "SELECT sum(tokens) FILTER (window_kind = 'time' AND size = 1000000"
            " AND scope_kind = 'all' AND layer = 0), count(*) FROM windows"
        ).fetchone()
        cursor.close()
    assert row is not None  # noqa: S101 (an aggregate gives a row)
    return int(row[0] or 0), int(row[1])


class LogRolling(Rolling):
    """Rolls a batch log up."""

    def __init__(self, log: Log, config: WindowConfig, folder: Path) -> None:
        super().__init__(lambda: BatchLogSource(log.root), config, folder)
        self._log = log

    def prepare(self) -> None:
        """Forget the last run."""
        super().prepare()
        forget_cursors(self._log.root)


def forget_cursors(root: Path) -> None:
    """Let everybody who reads a log begin again."""
    for folder in root.glob("*/cursors"):
        shutil.rmtree(folder)


def watch_pipeline(clock: StageClock) -> None:
    """Time what a pipeline and its store do; reading from the source is the caller's."""
    reading, writing = "read: ", "commit: "
    clock.watch(reading + "decode records", partition_module, "decode_batch")
    clock.watch(reading + "gates and accounting", partition_module.Partition, "process")
    watch_lane(clock, reading)
    clock.watch(reading + "hand out and save state", engine_module.Engine, "take")
    clock.watch(reading + "wait for the commit before", pipeline_module.Pipeline, "_hand_over")
    clock.watch(writing + "metrics and histograms", WindowFinisher, "__call__")
    clock.watch(writing + "begin, commit, owner's signature", Store, "apply")
    clock.watch(writing + "everything else in Python", commit_module.Commit, "write")
    clock.watch(writing + "sum panes of closed windows", commit_module.Commit, "_sums")
    for name in ("accept", "due", "late", "keep_until"):
        clock.watch(writing + "which shared windows are due", SharedWindows, name)
    for name in ("add", "advance"):
        clock.watch(writing + "trailing references", TrailingReferences, name)
    for stage, name in (
        ("window rows to Arrow", "window_rows"),
        ("insert rows", "insert"),
        ("histograms", "merge_histograms"),
        ("insert deltas", "insert_deltas"),
        ("read panes back", "read_sums"),
        ("which rows are new", "kept_windows"),
        ("progress", "write_progress"),
        ("batch accounts", "insert_batches"),
        ("late windows", "reopen_windows"),
    ):
        clock.watch(writing + stage, commit_module, name)
