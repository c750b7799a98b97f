"""Threshold versions as rows, and read back for the book that judges."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.metrics import BY_NAME
from moescope.core.thresholds import (
    Activation,
    BaselineReference,
    LineKey,
    LineSource,
    MetricLines,
    PagingRule,
    Standing,
    ThresholdScope,
    ThresholdVersion,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import duckdb
    from numpy.typing import NDArray

    from moescope.core.thresholds import ThresholdBook

_SCOPE = ", ".join(ThresholdScope._fields)
_LINES = ("warn_low", "warn_high", "red_low", "red_high")
_NUMBERS = (*_LINES, "centre", "spread")
_KEY = ("phase", "window_kind", "size", "stride", "scope_kind", "scene", "band")
_RULE = ("phase", "window_kind", "size", "stride", "scope_kind", "family")
_RULE_VALUES = ("line", "needed", "of_slots", "expected_per_day", "bound_per_day", "only_bound")
_RULE_FIELDS = {"window_kind": "kind", "of_slots": "of"}
"""Fields of a rule that a column names otherwise."""
_SOURCES = tuple(LineSource)


def line_rows(version: ThresholdVersion) -> Iterator[dict[str, Any]]:
    """Rows of `thresholds`: one per kind of window, metric and layer that has a line.

    Interval ends and `windows` are not part of a version: whoever has them adds them (`windows`
    is 0 until then).
    """
    for key, metrics in version.lines.items():
        for metric, lines in metrics.items():
            for number, layer in enumerate(version.layers):
                values = {name: float(getattr(lines, name)[number]) for name in _NUMBERS}
                if all(math.isnan(value) for value in values.values()):
                    continue
                yield {
                    "version": version.version,
                    **dict(zip(_KEY, key, strict=True)),
                    "metric": metric,
                    "layer": layer,
                    "side": str(BY_NAME[metric].side),
                    **values,
                    "units": lines.units,
                    "windows": 0,
                    "standing": str(lines.standing),
                    "source": str(lines.source),
                }


def reference_rows(version: ThresholdVersion) -> Iterator[dict[str, Any]]:
    """Rows of `baseline_references`."""
    for phase, reference in version.references.items():
        for scene, counts in reference.scenes.items():
            yield {
                "version": version.version,
                "phase": phase,
                "scene": scene,
                "tokens": reference.tokens[scene],
                "counts": np.ascontiguousarray(counts, "<i8").tobytes(),
            }


def paging_rows(version: ThresholdVersion) -> Iterator[dict[str, Any]]:
    """Rows of `paging_rules`."""
    for rule in version.paging:
        yield {
            "version": version.version,
            **{name: getattr(rule, _rule_field(name)) for name in (*_RULE, *_RULE_VALUES)},
        }


def _rule_field(column: str) -> str:
    return _RULE_FIELDS.get(column, column)


def read_versions(
    connection: duckdb.DuckDBPyConnection, names: Iterable[str] | None = None
) -> dict[str, ThresholdVersion]:
    """Stored versions by name.

    Where the layers of one metric differ in standing, source or units, the weakest stands for
    all of them.

    Args:
        connection: Any connection to the store.
        names: Of these only; None: all, drafts and retired ones included.
    """
    wanted = None if names is None else sorted(set(names))
    heads = connection.execute(
        f"SELECT version, layers, experts, top_k, {_SCOPE} FROM threshold_versions"
        " WHERE ?::VARCHAR[] IS NULL OR list_contains(?, version)",
        [wanted, wanted],
    ).fetchall()
    versions = {}
    for name, layers, experts, top_k, *scope in heads:
        versions[name] = ThresholdVersion(
            version=name,
            scope=ThresholdScope(*scope),
            layers=tuple(layers),
            experts=experts,
            top_k=top_k,
            lines=_read_lines(connection, name, layers),
            references=_read_references(connection, name, (len(layers), experts)),
            paging=_read_paging(connection, name),
        )
    return versions


def read_activations(
    connection: duckdb.DuckDBPyConnection,
) -> dict[ThresholdScope, tuple[Activation, ...]]:
    """Stored activations per scope; of two at one event time, the one that wins comes later."""
    found: dict[ThresholdScope, list[Activation]] = defaultdict(list)
    for effective_from_us, version, *scope in connection.execute(
        f"SELECT effective_from_us, version, {_SCOPE} FROM threshold_activations"
        " ORDER BY effective_from_us, activation"
    ).fetchall():
        found[ThresholdScope(*scope)].append(Activation(effective_from_us, version))
    return {scope: tuple(listed) for scope, listed in found.items()}


def read_book(
    connection: duckdb.DuckDBPyConnection, known: Mapping[str, ThresholdVersion]
) -> tuple[dict[str, ThresholdVersion], dict[ThresholdScope, tuple[Activation, ...]]]:
    """What a book needs: activations, and every version that one of them names.

    Args:
        connection: Any connection to the store.
        known: Versions that were read before; since none changes, they are not read again.
    """
    activations = read_activations(connection)
    named = {each.version for listed in activations.values() for each in listed if each.version}
    versions = {name: known[name] for name in named & known.keys()}
    if named - known.keys():
        versions |= read_versions(connection, named - known.keys())
    return versions, activations


def load_book(book: ThresholdBook, connection: duckdb.DuckDBPyConnection) -> None:
    """Fill a book with what is stored."""
    book.replace(*read_book(connection, {}))


def _read_lines(
    connection: duckdb.DuckDBPyConnection, version: str, layers: list[int]
) -> dict[LineKey, dict[str, MetricLines]]:
    key, lists = ", ".join(_KEY), ", ".join(f"list({name} ORDER BY layer)" for name in _NUMBERS)
    rows = connection.execute(
        f"SELECT {key}, metric, list(layer ORDER BY layer), list(DISTINCT standing),"
        f" list(DISTINCT source), min(units), {lists}"
        f" FROM thresholds WHERE version = ? GROUP BY {key}, metric ORDER BY {key}, metric",
        [version],
    ).fetchall()
    place = {layer: number for number, layer in enumerate(layers)}
    width = len(_KEY)
    lines: dict[LineKey, dict[str, MetricLines]] = {}
    for row in rows:
        metric, there, standings, sources, units, *values = row[width:]
        at = [place[layer] for layer in there]
        arrays = {
            name: _spread_out(each, at, len(layers))
            for name, each in zip(_NUMBERS, values, strict=True)
        }
        lines.setdefault(LineKey(*row[:width]), {})[metric] = MetricLines(
            **arrays,
            standing=Standing.FIRM if standings == [Standing.FIRM] else Standing.PROVISIONAL,
            source=max(map(LineSource, sources), key=_SOURCES.index),
            units=units,
        )
    return lines


def _spread_out(values: list[float | None], at: list[int], layers: int) -> NDArray[np.float64]:
    """Values at the places of their layers; NaN elsewhere and for null."""
    result = np.full(layers, np.nan)
    result[at] = np.array(values, np.float64)
    return result


def _read_references(
    connection: duckdb.DuckDBPyConnection, version: str, shape: tuple[int, int]
) -> dict[str, BaselineReference]:
    scenes: dict[str, dict[str, NDArray[np.int64]]] = defaultdict(dict)
    tokens: dict[str, dict[str, int]] = defaultdict(dict)
    for phase, scene, seen, counts in connection.execute(
        "SELECT phase, scene, tokens, counts FROM baseline_references WHERE version = ?"
        " ORDER BY phase, scene",
        [version],
    ).fetchall():
        scenes[phase][scene] = np.frombuffer(counts, "<i8").reshape(shape)
        tokens[phase][scene] = seen
    return {
        phase: BaselineReference(scenes=scenes[phase], tokens=tokens[phase]) for phase in scenes
    }


def _read_paging(connection: duckdb.DuckDBPyConnection, version: str) -> tuple[PagingRule, ...]:
    columns = (*_RULE, *_RULE_VALUES)
    rows = connection.execute(
        f"SELECT {', '.join(columns)} FROM paging_rules WHERE version = ?"
        f" ORDER BY {', '.join(_RULE)}",
        [version],
    ).fetchall()
    fields = [_rule_field(name) for name in columns]
    return tuple(PagingRule(**dict(zip(fields, row, strict=True))) for row in rows)
