"""The windows of a baseline, read from `windows` into arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from moescope.core.clock import NO_TIME
from moescope.core.errors import InsufficientDataError, InternalError
from moescope.core.metrics import JUDGED_METRICS, Reference
from moescope.core.thresholds import ThresholdScope

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import duckdb
    import pyarrow as pa
    from numpy.typing import DTypeLike, NDArray

    from moescope.jobs.baselines.selection import Baseline, Span

STORED_METRICS = tuple(
    metric.name for metric in JUDGED_METRICS if metric.reference is not Reference.BASELINE
)
"""Judged metrics whose stored values do not depend on an earlier calibration."""

_IDENTITY = ("lane", "scope_value", "start", "request", "task")
"""What tells windows of one kind apart, in the order that they are read in."""
_TEXTS = ("scope_value", "request", "task", "node", "scene", "band", "lane")


class ModelShape(NamedTuple):
    """What all lanes of a scope have to share, and their ids."""

    layers: tuple[int, ...]
    experts: int
    top_k: int
    lanes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineWindows:
    """W disjoint, complete windows of one phase, kind, size, stride and scope kind.

    Attributes:
        first_us, last_us, close_us: int64 [W]; `NO_TIME` when absent.
        weight: float64 [W], how many windows each stands for.
        scope_value, request, task, node, scene, band, lane: [W].
        scene_tokens: [W] rows per scene.
        counts: int64 [W, L, E].
        values: Metric → float64 [W, L]; NaN is null.
    """

    phase: str
    kind: str
    size: int
    stride: int
    scope_kind: str
    first_us: NDArray[np.int64]
    last_us: NDArray[np.int64]
    close_us: NDArray[np.int64]
    weight: NDArray[np.float64]
    scope_value: NDArray[np.object_]
    request: NDArray[np.object_]
    task: NDArray[np.object_]
    node: NDArray[np.object_]
    scene: NDArray[np.object_]
    band: NDArray[np.object_]
    lane: NDArray[np.object_]
    scene_tokens: Sequence[Mapping[str, int]]
    counts: NDArray[np.int64]
    values: Mapping[str, NDArray[np.float64]]

    def __len__(self) -> int:
        """Number of windows W."""
        return len(self.weight)


def scopes_of(cursor: duckdb.DuckDBPyConnection, baseline: Baseline) -> list[ThresholdScope]:
    """Scopes of the lanes that a baseline selects, in order."""
    rows = cursor.execute(
        f"SELECT DISTINCT {', '.join(ThresholdScope._fields)} FROM lanes WHERE {_LANES}"
        " ORDER BY ALL",
        _lane_values(baseline),
    ).fetchall()
    return [ThresholdScope(*row) for row in rows]


_LANES = " AND ".join(
    f"(len(${name}::VARCHAR[]) = 0 OR list_contains(${name}, {column}))"
    for name, column in (("models", "model"), ("revisions", "revision"), ("domains", "domain"))
)


def _lane_values(baseline: Baseline) -> dict[str, list[str]]:
    return {name: list(getattr(baseline, name)) for name in ("models", "revisions", "domains")}


def model_shape(
    cursor: duckdb.DuckDBPyConnection, baseline: Baseline, scope: ThresholdScope
) -> ModelShape:
    """The lanes of a scope that a baseline selects; of several shapes the one with most windows.

    Raises:
        InsufficientDataError: There are none.
    """
    own = " AND ".join(f"{name} = ${name}" for name in scope._fields)
    row = cursor.execute(
        "SELECT layers, experts, top_k, list(DISTINCT lane ORDER BY lane) FROM lanes"
        " JOIN (SELECT lane, count(*) AS stored FROM windows GROUP BY lane) USING (lane)"
        f" WHERE {own} AND {_LANES} GROUP BY layers, experts, top_k"
        " ORDER BY sum(stored) DESC, layers LIMIT 1",
        scope._asdict() | _lane_values(baseline),
    ).fetchone()
    if row is None:
        raise InsufficientDataError(
            f"Baseline {baseline.name!r} has no windows of {scope.model} {scope.revision}.",
            why=f"No lane of origin {scope.origin} and fidelity {scope.fidelity} fits it.",
            next_step="Check the models, revisions and domains of the baseline.",
        )
    layers, experts, top_k, lanes = row
    return ModelShape(tuple(layers), experts, top_k, tuple(lanes))


def read_windows(
    cursor: duckdb.DuckDBPyConnection,
    baseline: Baseline,
    shape: ModelShape,
    *,
    minimum_coverage: float,
    without: Sequence[Span] = (),
) -> Iterator[BaselineWindows]:
    """Windows of a baseline, one kind at a time.

    Only covered and disjoint windows (stride = size; token windows: whole ones), and only row
    versions as they stand. Training is left out: no run has enough units for a line. Where token
    rows were sampled, a row counts as its weight says: red ones were all kept, each for itself.

    Args:
        cursor: A connection for reading.
        baseline: What to select.
        shape: Of the model; windows of other lanes are not read.
        minimum_coverage: Windows that saw less are left out.
        without: Further spans of event time that are out.
    """
    where, values = _conditions(baseline, shape, minimum_coverage, without)
    kinds = cursor.execute(
        "SELECT DISTINCT phase, window_kind, size, stride, scope_kind FROM windows"
        f" WHERE {where} ORDER BY ALL",
        values,
    ).fetchall()
    for kind in kinds:
        found = _read_kind(cursor, shape, kind, where, values)
        if len(found):
            yield found


def _conditions(
    baseline: Baseline, shape: ModelShape, minimum_coverage: float, without: Sequence[Span]
) -> tuple[str, dict[str, Any]]:
    parts = [
        "list_contains($lanes::VARCHAR[], lane)",
        "phase <> 'train' AND stride = size AND weight > 0",
        # The windows that paging reads: of a token window all positions, of others a known share.
        "(complete OR window_kind <> 'token') AND coverage >= $coverage",
    ]
    values: dict[str, Any] = {"lanes": list(shape.lanes), "coverage": minimum_coverage}
    if baseline.spans:
        inside = [
            f"(epoch_us(first_time) >= {begin:d} AND epoch_us(last_time) < {end:d})"
            for begin, end in baseline.spans
        ]
        parts.append(f"({' OR '.join(inside)})")
    parts += [
        f"(first_time IS NULL OR epoch_us(last_time) < {begin:d}"
        f" OR epoch_us(first_time) >= {end:d})"
        for begin, end in (*baseline.without_spans, *without)
    ]
    if baseline.scenes:
        parts.append("len(scenes) > 0 AND list_has_all($scenes::VARCHAR[], scenes)")
        values["scenes"] = list(baseline.scenes)
    if baseline.nodes:
        parts.append("list_contains($nodes::VARCHAR[], node)")
        values["nodes"] = list(baseline.nodes)
    if baseline.without_nodes:
        parts.append("node <> '' AND NOT list_contains($bad_nodes::VARCHAR[], node)")
        values["bad_nodes"] = list(baseline.without_nodes)
    return " AND ".join(parts), values


def _read_kind(
    cursor: duckdb.DuckDBPyConnection,
    shape: ModelShape,
    kind: tuple[Any, ...],
    where: str,
    values: dict[str, Any],
) -> BaselineWindows:
    phase, window_kind, size, stride, scope_kind = kind
    names = ("phase", "window_kind", "size", "stride", "scope_kind")
    own = " AND ".join(f"{name} = $own_{name}" for name in names)
    found = cursor.sql(
        "SELECT layer, start, epoch_us(first_time) AS first_us, epoch_us(last_time) AS last_us,"
        f" epoch_us(close_time) AS close_us, weight, {', '.join(_TEXTS)}, scenes, scene_tokens,"
        " counts, tokens < $coverage * expected AS is_thin,"
        f" {', '.join(STORED_METRICS)} FROM windows WHERE {where} AND {own}",
        params=values | {f"own_{name}": value for name, value in zip(names, kind, strict=True)},
    )
    layers = len(shape.layers)
    table = _layer_by_layer(found.to_arrow_table(), shape.layers)
    firsts = table.take(np.arange(0, table.num_rows, layers))
    chosen = pc.sort_indices(firsts, sort_keys=[(name, "ascending") for name in _IDENTITY])
    chosen = chosen.to_numpy()
    firsts = firsts.take(chosen)

    def times(name: str) -> NDArray[np.int64]:
        return _numbers(firsts, name, np.int64, NO_TIME)

    is_thin = table.column("is_thin").to_numpy()

    def by_layer(name: str) -> NDArray[np.float64]:
        values = np.where(is_thin, np.nan, _numbers(table, name, np.float64, np.nan))
        in_order: NDArray[np.float64] = values.reshape(-1, layers)[chosen]
        return in_order

    counts = table.column("counts").combine_chunks().flatten().to_numpy(zero_copy_only=False)
    mixes = [
        dict(zip(scenes, tokens, strict=True))
        for scenes, tokens in zip(
            firsts.column("scenes").to_pylist(),
            firsts.column("scene_tokens").to_pylist(),
            strict=True,
        )
    ]
    texts = {
        name: np.array(firsts.column(name).to_pylist(), np.object_).reshape(-1) for name in _TEXTS
    }
    return BaselineWindows(
        phase=phase,
        kind=window_kind,
        size=size,
        stride=stride,
        scope_kind=scope_kind,
        first_us=times("first_us"),
        last_us=times("last_us"),
        close_us=times("close_us"),
        weight=_numbers(firsts, "weight", np.float64),
        scene_tokens=mixes,
        counts=counts.view(np.int64).reshape(-1, layers, shape.experts)[chosen],
        values={name: by_layer(name) for name in STORED_METRICS},
        **texts,
    )


def _layer_by_layer(table: pa.Table, layers: Sequence[int]) -> pa.Table:
    """Rows of a window one after the other, as they usually are stored.

    Raises:
        InternalError: A window lacks a layer.
    """
    if not _is_layer_by_layer(table, layers):
        keys = [(name, "ascending") for name in (*_IDENTITY, "layer")]
        table = table.take(pc.sort_indices(table, sort_keys=keys))
        if not _is_layer_by_layer(table, layers):
            raise InternalError(
                "Windows of a lane do not have a row for each of its layers.",
                next_step="Report it; `moescope doctor` says what the store holds.",
            )
    return table


def _is_layer_by_layer(table: pa.Table, layers: Sequence[int]) -> bool:
    if table.num_rows % len(layers):
        return False
    if (_numbers(table, "layer", np.int32).reshape(-1, len(layers)) != np.array(layers)).any():
        return False
    for name in _IDENTITY:
        column = table.column(name).combine_chunks()
        codes = column.dictionary_encode().indices.to_numpy().reshape(-1, len(layers))
        if (codes != codes[:, :1]).any():
            return False
    return True


def _numbers(table: pa.Table, name: str, dtype: DTypeLike, null: object = None) -> NDArray[Any]:
    column = table.column(name)
    if null is not None:
        column = column.fill_null(null)
    found: NDArray[Any] = column.to_numpy().astype(dtype, copy=False)
    return found
