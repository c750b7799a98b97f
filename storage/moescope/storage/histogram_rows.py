"""The `metric_histograms` table: increments in, sums stay."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import zstandard

from moescope.core.histograms import SLOTS
from moescope.core.metrics import HISTOGRAM_METRICS
from moescope.storage.columns import insert, timestamps
from moescope.storage.lanes import lane_id
from moescope.storage.removals import remove_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def encode_bins(bins: NDArray[np.int64]) -> bytes:
    """A histogram as stored: most bins are empty, and each commit writes some anew.

    Args:
        bins: int64 [L, 66].
    """
    return compressor().compress(np.ascontiguousarray(bins, "<i8").data)


def decode_bins(blob: bytes) -> NDArray[np.int64]:
    """A stored histogram: int64 [L, 66]."""
    raw = zstandard.ZstdDecompressor().decompress(blob)
    return np.frombuffer(raw, "<i8").reshape(-1, SLOTS)


def add_histograms(total: Histograms, increments: Histograms, sign: int = 1) -> None:
    """Add increments (or take them back) to a sum in memory."""
    for key, value in increments.items():
        known = total.get(key)
        total[key] = sign * value if known is None else known + sign * value


def merge_histograms(
    connection: duckdb.DuckDBPyConnection, increments: Histograms, commit_id: int
) -> None:
    """Add increments to the stored histograms; a histogram that becomes empty has no row."""
    keys: list[tuple[HistogramKey, int]] = []
    sums: list[NDArray[np.int64]] = []
    for key, by_metric in increments.items():
        for number in np.flatnonzero(by_metric.any(axis=(1, 2))):
            keys.append((key, int(number)))
            sums.append(by_metric[number])
    if not keys:
        return
    columns = _key_columns(keys)
    connection.register(
        _INCREMENTS, pa.table({**columns, "number": pa.array(np.arange(len(keys)))})
    )
    minutes = sorted({key.minute_us for key, _ in keys})
    found = connection.sql(
        f"SELECT m.rowid AS id, i.number, m.bins FROM metric_histograms m"  # noqa: S608
        f" JOIN {_INCREMENTS} i USING ({', '.join(_KEY)})"
        f" WHERE m.minute IN ({', '.join(f'make_timestamp({minute})' for minute in minutes)})"
    ).to_arrow_table()
    connection.unregister(_INCREMENTS)
    for number, bins in zip(found["number"].to_pylist(), found["bins"].to_pylist(), strict=True):
        sums[number] = sums[number] + decode_bins(bins)
    if len(found):
        connection.register(_REPLACED, found.select(["id"]))
        replaced = f"rowid IN (SELECT id FROM {_REPLACED})"  # noqa: S608 (a constant)
        remove_rows(connection, "metric_histograms", replaced, commit_id)
        connection.unregister(_REPLACED)
    filled = np.array([number for number, bins in enumerate(sums) if bins.any()], np.int64)
    rows = pa.table(
        {
            **columns,
            "bins": pa.array([encode_bins(bins) for bins in sums], pa.binary()),
            "commit_id": pa.array(np.full(len(keys), commit_id, np.int64)),
        }
    )
    insert(connection, "metric_histograms", rows.take(pa.array(filled)))


def _key_columns(keys: Iterable[tuple[HistogramKey, int]]) -> dict[str, Any]:
    listed = list(keys)

    def text(name: str) -> pa.Array:
        return pa.array([str(getattr(key, name)) for key, _ in listed], pa.string())

    def whole(name: str) -> pa.Array:
        return pa.array([getattr(key, name) for key, _ in listed], pa.int64())

    return {
        "minute": timestamps([key.minute_us for key, _ in listed]),
        "lane": pa.array([lane_id(key.lane) for key, _ in listed], pa.string()),
        "phase": text("phase"),
        "scope_kind": text("scope_kind"),
        "scope_value": text("scope_value"),
        "window_kind": text("kind"),
        "size": whole("size"),
        "stride": whole("stride"),
        "band": text("band"),
        "metric": pa.array([METRICS[number] for _, number in listed], pa.string()),
    }
