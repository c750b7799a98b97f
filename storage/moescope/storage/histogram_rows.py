"""The `metric_histograms` table: increments in, sums stay."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import zstandard

from moescope.core.histograms import SLOTS
from moescope.core.metrics import HISTOGRAM_METRICS
from moescope.storage.columns import insert, timestamps
from moescope.storage.lanes import lane_id
from moescope.storage.removals import remove_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import duckdb
    from numpy.typing import NDArray

    from moescope.core.emission import HistogramKey, Histograms

METRICS = tuple(metric.name for metric in HISTOGRAM_METRICS)
_KEY = (
    "minute", "lane", "phase", "scope_kind", "scope_value", "window_kind", "size", "stride",
    "band", "metric",
)  # fmt: skip
_INCREMENTS = "histogram_increments"
_REPLACED = "replaced_histograms"


_LOCAL = threading.local()


def compressor() -> zstandard.ZstdCompressor:
    """One per thread: making one costs more than using it, and two threads must not share it."""
    known: zstandard.ZstdCompressor | None = getattr(_LOCAL, "compressor", None)
    if known is None:
        known = _LOCAL.compressor = zstandard.ZstdCompressor(level=1)
    return known


def _decompressor() -> zstandard.ZstdDecompressor:
    known: zstandard.ZstdDecompressor | None = getattr(_LOCAL, "decompressor", None)
    if known is None:
        known = _LOCAL.decompressor = zstandard.ZstdDecompressor()
    return known


def decode_bins(blob: bytes) -> NDArray[np.int64]:
    """A stored histogram: int64 [L, 66]; compressed, for most bins are empty."""
    return np.frombuffer(_decompressor().decompress(blob), "<i8").reshape(-1, SLOTS)


def add_histograms(total: Histograms, increments: Histograms, sign: int = 1) -> None:
    """Add increments (or take them back) to a sum in memory."""
    for key, value in increments.items():
        known = total.get(key)
        signed = value if sign == 1 else sign * value
        total[key] = signed if known is None else known + signed


def merge_histograms(
    connection: duckdb.DuckDBPyConnection, increments: Histograms, commit_id: int
) -> None:
    """Add increments to the stored histograms; a histogram that becomes empty has no row."""
    keys = list(increments)
    filled = [np.flatnonzero(increments[key].any(axis=(1, 2))) for key in keys]
    if not any(len(metrics) for metrics in filled):
        return
    place = np.repeat(np.arange(len(keys)), [len(metrics) for metrics in filled])
    columns = _key_columns(keys, place, np.concatenate(filled))
    stored = _take_stored(connection, columns, commit_id)
    blobs: list[bytes] = []
    kept: list[int] = []
    first = 0
    # Key by key: what is summed and compressed then stays in the processor's cache.
    for key, metrics in zip(keys, filled, strict=True):
        if not len(metrics):
            continue
        bins = increments[key][metrics].reshape(len(metrics), -1)
        for number in stored.keys() & range(first, first + len(metrics)):
            bins[number - first] += decode_bins(stored[number]).reshape(-1)
        left = np.flatnonzero(bins.any(axis=1))
        blobs += _compressed(bins[left])
        kept += (left + first).tolist()
        first += len(metrics)
    rows = pa.table(columns).take(pa.array(kept, pa.int64()))
    commit = pa.array(np.full(len(rows), commit_id, np.int64))
    rows = rows.append_column("bins", pa.array(blobs, pa.binary()))
    insert(connection, "metric_histograms", rows.append_column("commit_id", commit))


def _take_stored(
    connection: duckdb.DuckDBPyConnection, columns: Mapping[str, pa.Array], commit_id: int
) -> dict[int, bytes]:
    """Stored histograms by the number of the row with the same key, removed from the table."""
    minutes = columns["minute"].cast(pa.int64()).unique().to_pylist()
    number = pa.array(np.arange(len(columns["minute"])))
    connection.register(_INCREMENTS, pa.table({**columns, "number": number}))
    found = connection.sql(
        f"SELECT m.rowid AS id, i.number, m.bins FROM metric_histograms m"
        f" JOIN {_INCREMENTS} i USING ({', '.join(_KEY)})"
        f" WHERE m.minute IN ({', '.join(f'make_timestamp({minute})' for minute in minutes)})"
    ).to_arrow_table()
    connection.unregister(_INCREMENTS)
    if len(found):
        connection.register(_REPLACED, found.select(["id"]))
        replaced = f"rowid IN (SELECT id FROM {_REPLACED})"
        remove_rows(connection, "metric_histograms", replaced, commit_id)
        connection.unregister(_REPLACED)
    return dict(zip(found["number"].to_pylist(), found["bins"].to_pylist(), strict=True))


def _compressed(bins: NDArray[np.int64]) -> list[bytes]:
    """Each row as `decode_bins` reads it."""
    if not len(bins):
        return []
    frames = compressor().multi_compress_to_buffer(list(bins.astype("<i8", copy=False)))
    return [frames[number].tobytes() for number in range(len(frames))]


def _key_columns(
    keys: Sequence[HistogramKey], place: NDArray[np.int64], metric: NDArray[np.int64]
) -> dict[str, pa.Array]:
    """Key columns of rows, each of the key at its place and of its metric."""
    row_of_key = pa.array(place)

    def text(values: Iterable[str]) -> pa.Array:
        return pa.array([str(value) for value in values], pa.string()).take(row_of_key)

    def whole(values: Iterable[int]) -> pa.Array:
        return pa.array(list(values), pa.int64()).take(row_of_key)

    return {
        "minute": timestamps([key.minute_us for key in keys]).take(row_of_key),
        "lane": text(lane_id(key.lane) for key in keys),
        "phase": text(key.phase for key in keys),
        "scope_kind": text(key.scope_kind for key in keys),
        "scope_value": text(key.scope_value for key in keys),
        "window_kind": text(key.kind for key in keys),
        "size": whole(key.size for key in keys),
        "stride": whole(key.stride for key in keys),
        "band": text(key.band for key in keys),
        "metric": pa.array(METRICS, pa.string()).take(pa.array(metric)),
    }
