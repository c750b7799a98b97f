"""What one would use otherwise: numpy, polars and DuckDB on the same expert ids."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

ONE_THREAD = 1


def polars_with_threads(threads: int) -> Any:  # noqa: ANN401 (the module)
    """Import polars; its number of threads is settled by the first import of a process."""
    os.environ["POLARS_MAX_THREADS"] = str(threads)
    import polars as pl  # noqa: PLC0415 - after its threads are settled

    return pl


def duckdb_with_threads(threads: int) -> Any:  # noqa: ANN401 (an untyped connection)
    """An in-memory DuckDB."""
    import duckdb  # noqa: PLC0415 - only where it is measured

    connection = duckdb.connect()
    connection.execute(f"SET threads = {threads}")
    return connection


class NumpyCounts:
    """The two fastest ways to count with `numpy.bincount` that are known to us.

    Args:
        ids: uint8 [T, L, k].
        experts: E.
        window: Rows per window.
    """

    def __init__(self, ids: NDArray[np.uint8], experts: int, window: int) -> None:
        tokens, self._layers, _ = ids.shape
        self._by_layer = np.ascontiguousarray(ids.transpose(1, 0, 2))
        self._experts = experts
        self._windows = -(-tokens // window)
        self._of_row = np.arange(tokens) // window

    def fused(self) -> NDArray[np.int64]:
        """One bincount over (layer, window, expert): counts [L, W, E]."""
        cell = np.arange(self._layers)[:, None] * self._windows + self._of_row
        index = np.add(self._by_layer, (cell * self._experts)[:, :, None], dtype=np.int64)
        counts = np.bincount(index.reshape(-1), minlength=self._cells * self._layers)
        return counts.reshape(self._layers, self._windows, self._experts)

    def by_layer(self) -> NDArray[np.int64]:
        """One bincount per layer over (window, expert), with 16-bit indices: counts [L, W, E]."""
        offset = (self._of_row * self._experts).astype(np.uint16)[:, None]
        counts = np.empty((self._layers, self._cells), np.int64)
        for layer in range(self._layers):
            index = np.add(self._by_layer[layer], offset, dtype=np.uint16)
            counts[layer] = np.bincount(index.reshape(-1), minlength=self._cells)
        return counts.reshape(self._layers, self._windows, self._experts)

    @property
    def _cells(self) -> int:
        return int(self._windows * self._experts)


def assignment_rows(pl: Any, ids: NDArray[np.uint8], window: int) -> Any:  # noqa: ANN401 - polars, loaded late
    """One row per assignment: layer, window, expert, in the smallest types."""
    tokens, layers, top_k = ids.shape
    by_layer = ids.transpose(1, 0, 2)
    of_row = (np.arange(tokens) // window).astype(np.uint16)
    return pl.DataFrame(
        {
            "layer": np.repeat(np.arange(layers, dtype=np.uint8), tokens * top_k),
            "window": np.tile(np.repeat(of_row, top_k), layers),
            "expert": by_layer.reshape(-1),
        }
    )


def counts_from_rows(shape: tuple[int, int, int], *columns: ArrayLike) -> NDArray[np.int64]:
    """Counts [L, W, E] from the columns of a GROUP BY: layer, window, expert, count."""
    counts = np.zeros(shape, np.int64)
    layer, window, expert, count = (np.asarray(column) for column in columns)
    counts[layer, window, expert] = count
    return counts
