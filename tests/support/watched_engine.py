"""An engine's recorders, their agent and the store behind them, on one clock that a test moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb
from support.rings import EXPERTS, LAYERS, START_US, ids_of, small_recorder
from support.small_windows import roll_up_logs

from moescope.core.batchlog import WriterSettings
from moescope.core.clock import ManualClock
from moescope.producers.agent import Agent, AgentSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from moescope.producers import Recorder

SECOND = 1_000_000


class Seconds(NamedTuple):
    """A window of a second at a layer, over everything that one lane saw."""

    seen: int
    lost: int
    tokens: int
    counts: tuple[int, ...]
    coverage: float | None
    level: str
    reason: str | None


class WatchedEngine:
    """A recorder of layers 1 and 3, eight experts, two per token; further ones if asked for."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.store = folder / "store.duckdb"
        self.clock = ManualClock(START_US)
        self.recorders: list[Recorder] = []
        self.agent = self._agent()
        self._reading: duckdb.DuckDBPyConnection | None = None
        self.recorder = self.start(**settings)

    def start(self, **settings: Any) -> Recorder:
        """Another producer in the same folder."""
        recorder = small_recorder(self.folder, clock=self.clock, **settings)
        self.recorders.append(recorder)
        return recorder

    def restart_agent(self) -> None:
        """What a killed and restarted agent has: the files, and no memory."""
        self.agent.close()
        self.agent = self._agent()

    def ship(self) -> None:
        """What was recorded goes to the log."""
        self.agent.drain()

    def rest(self, seconds: int = 40) -> None:
        """Ship, and let so much time pass without a row that all windows close."""
        self.ship()
        for step in (1, seconds - 1):
            self.clock.sleep(step)
            self.agent.run_once()

    def roll_up(self) -> None:
        """Roll the log up into the store."""
        self.agent.drain()
        self._stop_reading()
        roll_up_logs(self.log, self.store, commit_records=1000)

    def close(self) -> None:
        """The engine ends, and so does its agent; what the store tells is still there."""
        for recorder in self.recorders:
            recorder.close()
        self.agent.close()

    def _agent(self) -> Agent:
        settings = AgentSettings(log=WriterSettings(durability="none"))
        return Agent(self.folder, self.log, clock=self.clock, settings=settings)

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.close()
            self._reading = None

    # ---- what the store tells ------------------------------------------------------------

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What a query finds."""
        if self._reading is None:
            self._reading = duckdb.connect(str(self.store), read_only=True)
        return self._reading.execute(query).fetchall()

    def seconds(self, layer: int, where: str = "true") -> list[Seconds]:
        """Windows of a second over all nodes and scenes, in order of time."""
        found = self.rows(
            "SELECT seen, lost, tokens, counts, coverage, level, level_reason FROM windows"
            " WHERE window_kind = 'time' AND size = 1000000 AND scope_kind = 'all'"
            f" AND layer = {layer} AND {where} ORDER BY start"
        )
        return [
            Seconds(seen, lost, tokens, tuple(counts), coverage, level, reason)
            for seen, lost, tokens, counts, coverage, level, reason in found
        ]

    def token_windows(self, layer: int, size: int = 4) -> list[tuple[Any, ...]]:
        """Request, start, seen, expected, complete and tokens of token windows."""
        return self.rows(
            "SELECT request, start, seen, expected, complete, tokens FROM windows"
            f" WHERE window_kind = 'token' AND size = {size} AND layer = {layer}"
            " ORDER BY request, start"
        )

    def reasons(self) -> set[str]:
        """What the batches were marked with."""
        found = self.rows("SELECT DISTINCT unnest(reasons) FROM batches")
        return {str(reason) for (reason,) in found}

    def total(self, column: str) -> int:
        """Sum of a column of the batches."""
        [(total,)] = self.rows(f"SELECT coalesce(sum({column}), 0) FROM batches")
        return int(total)


def routes(serials: Iterable[int]) -> NDArray[np.int64]:
    """Sound routes [T, 2, 2] of rows that differ by their serial numbers."""
    return ids_of(serials)


def counts_of(ids: NDArray[Any], layer: int) -> tuple[int, ...]:
    """How often each expert was chosen at one of the recorder's layers, by plain counting."""
    column = LAYERS.index(layer)
    chosen = [expert for row in ids.tolist() for expert in row[column]]
    return tuple(chosen.count(expert) for expert in range(EXPERTS))


def added(windows: Sequence[Seconds]) -> tuple[int, ...]:
    """Counts of several windows together."""
    return tuple(map(sum, zip(*(window.counts for window in windows), strict=True)))
