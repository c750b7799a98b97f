"""Where the experts were: what nodes said, and what was in force at the end of a window."""

from __future__ import annotations

from collections import defaultdict
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from moescope.core.batch import Placement
from moescope.core.clock import NO_TIME
from moescope.core.vocabulary import ScopeKind, WindowKind
from moescope.storage.columns import insert, records

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import duckdb

    from moescope.core.emission import LaneKey, PlacementNotice
    from moescope.storage.shared import ClosedWindow

REMEMBERED_US = 2 * 3_600_000_000
"""How long what was superseded is remembered: task windows last an hour, and may reopen."""

_ALWAYS_US = 0
"""As stored, of what has no times."""

PlacementOf = tuple[str, Placement | None]
"""Id and placement; an empty id and None where nothing is known."""
UNPLACED: PlacementOf = ("", None)


class _Model(NamedTuple):
    """What lanes have in common that placements hold for, but for the layers."""

    domain: str
    model: str
    revision: str
    experts: int


class Said(NamedTuple):
    """What a node said, in the order in which it holds."""

    effective_from_us: int
    version: int
    node: str
    placement_id: str
    layers: tuple[int, ...]
    placement: Placement


def _model(lane: LaneKey) -> _Model:
    return _Model(lane.domain, lane.model, lane.revision, lane.experts)


def placement_id(lane: LaneKey, placement: Placement) -> str:
    """Id of a placement: the same for all nodes that say the same."""
    what = (*_model(lane), lane.layers, placement.version, placement.ranks)
    digest = blake2b(repr(what).encode("utf-8", "surrogatepass"), digest_size=8)
    digest.update(np.ascontiguousarray(placement.rank_of, "<u2").tobytes())
    return digest.hexdigest()


class Placements:
    """What nodes said of their placements, as far as windows may still need it."""

    def __init__(self) -> None:
        self._said: dict[_Model, dict[str, list[Said]]] = defaultdict(lambda: defaultdict(list))

    def note(self, notice: PlacementNotice) -> Said | None:
        """Take in what a node said; None where it only repeats what holds already."""
        lane = notice.lane
        said = Said(
            notice.effective_from_us, notice.placement.version, notice.node,
            placement_id(lane, notice.placement), lane.layers, notice.placement,
        )  # fmt: skip
        of_node = self._said[_model(lane)][notice.node]
        held = _in_force(of_node, lane.layers, notice.effective_from_us)
        if held is not None and held.placement_id == said.placement_id:
            return None
        self.add(_model(lane), said)
        return said

    def add(self, model: _Model, said: Said) -> None:
        """Remember what was said."""
        of_model = self._said[model]
        same = (each for node in of_model.values() for each in node)
        known = next((each for each in same if each.placement_id == said.placement_id), said)
        # One table, however many nodes say it.
        of_model[said.node].append(said._replace(placement=known.placement))

    def of_window(self, window: ClosedWindow) -> PlacementOf:
        """The placement in force at a window's end; of a window that was finished, its own.

        Windows of all nodes take what was said last. Where another node says something else
        under the same version, nobody knows, and there is none.
        """
        series = window.span.series
        of_model = self._said.get(_model(series.lane))
        if not of_model:
            return UNPLACED
        if window.placement_id is not None:
            return _by_id(of_model, series.lane, window.placement_id)
        end_us = window.close_time_us
        if series.kind is WindowKind.TIME:
            end_us -= 1  # its end is the next one's begin
        nodes = of_model
        if series.scope_kind is ScopeKind.NODE:
            nodes = {series.scope_value: of_model.get(series.scope_value, [])}
        held = [_in_force(said, series.lane.layers, end_us) for said in nodes.values()]
        found = [each for each in held if each is not None]
        newest = max(found, key=lambda each: each[:3], default=None)
        if newest is None or any(
            each.version == newest.version and each.placement_id != newest.placement_id
            for each in found
        ):
            return UNPLACED
        return newest.placement_id, _for_layers(newest, series.lane)

    def forget(self, domain: str, watermark_us: int) -> None:
        """Drop what was superseded long ago."""
        oldest = watermark_us - REMEMBERED_US
        for model, nodes in self._said.items():
            if model.domain != domain:
                continue
            for node, said in nodes.items():
                if len(said) > 1:
                    nodes[node] = [each for each in said if not _is_over(each, said, oldest)]


def _is_over(one: Said, said: Sequence[Said], oldest_us: int) -> bool:
    """Whether another one held from before a time on."""
    return any(
        one.effective_from_us < each.effective_from_us < oldest_us and each.layers == one.layers
        for each in said
    )


def _in_force(said: Iterable[Said], layers: tuple[int, ...], time_us: int) -> Said | None:
    """What a node said last before a time, for these layers at least."""
    wanted = set(layers)
    held = (
        each for each in said if each.effective_from_us <= time_us and wanted.issubset(each.layers)
    )
    return max(held, key=lambda each: each[:2], default=None)


def _by_id(nodes: dict[str, list[Said]], lane: LaneKey, placement: str) -> PlacementOf:
    for said in nodes.values():
        for each in said:
            if each.placement_id == placement:
                return placement, _for_layers(each, lane)
    return UNPLACED


def _for_layers(said: Said, lane: LaneKey) -> Placement:
    placement = said.placement
    if said.layers == lane.layers:
        return placement
    place = {layer: index for index, layer in enumerate(said.layers)}
    rank_of = placement.rank_of[[place[layer] for layer in lane.layers]]
    return Placement(version=placement.version, ranks=placement.ranks, rank_of=rank_of)


def insert_placements(
    connection: duckdb.DuckDBPyConnection,
    said: Sequence[tuple[LaneKey, Said]],
    commit_id: int,
) -> None:
    """Store what nodes said, one row per layer."""
    rows = [
        {
            "placement": each.placement_id,
            "domain": lane.domain,
            "model": lane.model,
            "revision": lane.revision,
            "node": each.node,
            "effective_from": max(each.effective_from_us, _ALWAYS_US),
            "layer": layer,
            "version": each.version,
            "ranks": each.placement.ranks,
            "rank_of": rank_of.tolist(),
            "commit_id": commit_id,
        }
        for lane, each in said
        for layer, rank_of in zip(each.layers, each.placement.rank_of, strict=True)
    ]
    insert(connection, "placements", records("placements", rows))


def read_placements(connection: duckdb.DuckDBPyConnection) -> Placements:
    """What is stored."""
    placements = Placements()
    found = connection.execute(
        """
        SELECT domain, model, revision, node, placement,
            epoch_us(effective_from) AS effective_from_us,
            any_value(version), any_value(ranks),
            list(layer ORDER BY layer), list(rank_of ORDER BY layer)
        FROM placements
        GROUP BY domain, model, revision, node, placement, effective_from
        ORDER BY effective_from_us, node, placement
        """
    ).fetchall()
    for domain, model, revision, node, name, from_us, version, ranks, layers, rank_of in found:
        placement = Placement(version=version, ranks=ranks, rank_of=np.array(rank_of, np.uint16))
        effective_us = NO_TIME if from_us == _ALWAYS_US else from_us
        said = Said(effective_us, version, node, name, tuple(layers), placement)
        placements.add(_Model(domain, model, revision, placement.rank_of.shape[1]), said)
    return placements
