"""What a lane hands to the store: closed token windows, deltas of shared windows, references."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.clock import NO_TIME
from moescope.core.emission import SharedDelta
from moescope.core.vocabulary import Fidelity, Phase, ScopeKind, WindowKind
from moescope.processors.closed_windows import ClosedWindows
from moescope.processors.kernels.records import MINUTE_US, NONE, PANE_US
from moescope.processors.lane_references import LaneReferences
from moescope.processors.panes import (
    NO_FIRST,
    NO_LAST,
    PHASE_NAMES,
    PaneArena,
    PaneKey,
    told_drops,
    told_router,
)
from moescope.processors.passes import PassPanes
from moescope.processors.sums import sum_of
from moescope.processors.trailing import PERIOD_US

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from moescope.core.batch import TimeBlocks
    from moescope.core.emission import LaneKey, TrailingReference, WindowGroup
    from moescope.core.router_sums import LagSums, PassSums, PositionCounts, SimilaritySums
    from moescope.processors.config import WindowConfig
    from moescope.processors.kernels.records import Records
    from moescope.processors.pane_profiles import PaneProfiles
    from moescope.processors.panes import Pane
    from moescope.processors.passes import ClosedPasses
    from moescope.processors.row_sampling import RowSampling

TASK_GAPS = 60
"""Minutes of the longest task window."""


def has_router_sums(key: LaneKey) -> bool:
    """Whether a lane's producers tell rows apart: sums of counts know of no pairs."""
    return key.fidelity != Fidelity.COUNTS.name.lower()


class LaneOutput:
    """Collects a lane's output between two commits."""

    def __init__(  # noqa: PLR0917 (what a lane is made of)
        self,
        key: LaneKey,
        partition: str,
        config: WindowConfig,
        sampling: RowSampling,
        scene_name: Callable[[int], str],
        profiles: PaneProfiles,
    ) -> None:
        self._key = key
        self._config = config
        self._scene_name = scene_name
        self._profiles = profiles
        self._shape = (len(key.layers), key.experts)
        self._deltas: list[SharedDelta] = []
        with_router = has_router_sums(key)
        self._time_panes = PaneArena(*self._shape, config.gap_limit, with_router=with_router)
        self._step_panes = PaneArena(*self._shape, config.step_gap_limit, with_router=with_router)
        self._pass_panes = PassPanes(PANE_US, config.step_pane)
        self._trailing = LaneReferences(key, partition, self._collect_panes)
        self._closed = ClosedWindows(key, config.token, sampling, scene_name, self._trailing)
        self._scoped_nodes: set[str] = set()

    # ---- in ------------------------------------------------------------------------------

    def add_cells(  # noqa: PLR0917 (a chunk's cells)
        self,
        cells: Records,
        n_cells: int,
        counts: NDArray[np.unsignedinteger[Any]],
        dropped: NDArray[np.uint64],
        router: NDArray[np.int64],
        scenes: NDArray[np.int64],
        node: str,
        *,
        with_panes: bool,
    ) -> None:
        """Add a chunk's cells to their time and step panes."""
        used = cells[:n_cells]
        scene = scenes[used["request_row"]]
        phase = used["phase"]
        for arena, pane, gap, wanted in (
            (self._time_panes, used["pane"], used["gap"], with_panes),
            (self._step_panes, used["step_pane"], used["step_gap"], True),
        ):
            if not wanted or not (pane != NO_TIME).any():
                continue
            # A batch has few cells: sorting them in an array takes longer.
            codes = list(zip(pane.tolist(), scene.tolist(), phase.tolist(), strict=True))
            rows = {
                (number, scene_id, phase_id): NONE
                if number == NO_TIME
                else arena.row(PaneKey(number, phase_id, scene_id, node))
                for number, scene_id, phase_id in sorted(set(codes))
            }
            row_of_cell = np.fromiter(map(rows.__getitem__, codes), np.int64, n_cells)
            gaps = np.ascontiguousarray(gap)
            arena.add(cells, n_cells, row_of_cell, gaps, counts, dropped, router)

    def add_time_blocks(
        self, blocks: TimeBlocks, node: str, scene_id: Callable[[str], int]
    ) -> None:
        """Add a producer's own per-second counts."""
        scenes = [scene_id(name) for name in blocks.scenes]
        for index in range(len(blocks)):
            if int(blocks.phase[index]) not in _COUNTED_PHASES:
                continue
            second = int(blocks.second_us[index])
            scene = scenes[int(blocks.scene[index])]
            row = self._time_panes.row(
                PaneKey(second // PANE_US, int(blocks.phase[index]), scene, node)
            )
            self._time_panes.add_block(
                row,
                blocks.counts[index],
                None if blocks.dropped is None else blocks.dropped[index],
                int(blocks.tokens[index]),
                second,
                second + PANE_US - 1,
                int(blocks.requests[index]),
            )

    def add_lost(
        self,
        phase: int,
        scene: int,
        node: str,
        panes: Sequence[int],
        lost: int,
        *,
        unknown_gap: bool,
    ) -> None:
        """Spread rows that will never arrive evenly over the panes they belong to."""
        share, rest = divmod(lost, len(panes))
        for index, pane in enumerate(panes):
            row = self._time_panes.row(PaneKey(pane, phase, scene, node))
            self._time_panes.add_lost(row, share + (index < rest), unknown_gap=unknown_gap)

    def add_closed(  # noqa: PLR0917 (a chunk's closed windows)
        self,
        records: Records,
        counts: NDArray[np.uint16],
        dropped: NDArray[np.uint64],
        router: NDArray[np.int64],
        requests: list[str],
        tasks: list[str],
        nodes: list[str],
    ) -> None:
        """Take closed token windows, and settle which of them become rows."""
        self._closed.add(records, counts, dropped, router, requests, tasks, nodes)

    def add_pieces(
        self,
        pieces: Records,
        counts: NDArray[np.uint32],
        dropped: NDArray[np.uint64],
        router: NDArray[np.int64],
        tasks: list[str],
    ) -> None:
        """Take task pieces."""
        for index, task in enumerate(tasks):
            piece = pieces[index]
            seen = int(piece["seen"])
            self._deltas.append(
                SharedDelta(
                    lane=self._key,
                    phase=PHASE_NAMES[int(piece["phase"])],
                    kind=WindowKind.TASK,
                    scope_kind=ScopeKind.ALL,
                    scope_value="",
                    pane=int(piece["minute"]) * MINUTE_US,
                    counts=counts[index].reshape(self._shape),
                    dropped=told_drops(dropped[index]),
                    seen=seen,
                    scene_tokens={self._scene_name(int(piece["scene"])): seen} if seen else {},
                    task=task,
                    first_time_us=int(piece["first_time"]),
                    last_time_us=int(piece["last_time"]),
                    request_gaps=_one_gap(int(piece["gap"])),
                    last_of_task=bool(piece["last_of_task"]),
                    router=told_router(router[index], self._shape[0]),
                )
            )

    def add_similarity(self, phase: int, sums: SimilaritySums) -> None:
        """Take a similarity pane that closed."""
        if not self._config.time:
            return
        layers = self._shape[0]
        self._deltas.append(
            SharedDelta(
                lane=self._key,
                phase=PHASE_NAMES[phase],
                kind=WindowKind.TIME,
                scope_kind=ScopeKind.ALL,
                scope_value="",
                pane=sums.start_us + sums.size_us - PANE_US,
                counts=np.zeros(self._shape, np.uint32),
                dropped=np.zeros(layers, np.uint64),
                seen=0,
                first_time_us=NO_TIME,
                last_time_us=NO_TIME,
                request_gaps=np.zeros(self._config.gap_limit, np.int64),
                similarity=sums,
            )
        )

    def add_passes(self, closed: Sequence[ClosedPasses]) -> None:
        """Take complete passes."""
        for each in closed:
            self._pass_panes.add(each)

    # ---- out -----------------------------------------------------------------------------

    def drain(self) -> tuple[list[WindowGroup], list[SharedDelta], list[TrailingReference]]:
        """Everything since the last call."""
        self._collect_panes()
        groups = list(self._closed.take_groups())
        deltas, self._deltas = self._deltas, []
        return groups, deltas, self._trailing.take_made()

    def _open_panes_of_passes(self) -> PassPanes:
        """Passes since the last call, each of whose panes is open, even if its rows went before."""
        passes = self._pass_panes
        self._pass_panes = PassPanes(PANE_US, self._config.step_pane)
        for number, phase, node in passes.by_time:
            self._time_panes.row(PaneKey(number, phase, NONE, node))
        for number, phase in passes.by_step:
            self._step_panes.row(PaneKey(number, phase, NONE, ""))
        return passes

    def _collect_panes(self) -> None:
        passes = self._open_panes_of_passes()
        shared: dict[tuple[int, int, str], list[tuple[int, Pane]]] = {}
        for key, pane in self._time_panes.drain():
            shared.setdefault((key.number, key.phase, key.node), []).append((key.scene, pane))
        for (number, phase, node), parts in shared.items():
            total = _sum_panes([pane for _, pane in parts])
            if total.seen or total.lost or total.unknown_gap:
                self._trailing.sums_of(phase).add(number * PANE_US // PERIOD_US, total.counts)
            if not self._config.time:
                continue
            of_pane = (number, phase, node)
            for scope_kind, scope_value, pane, scene_tokens in self._scopes(node, total, parts):
                positions = lags = None
                if scope_kind is ScopeKind.ALL:
                    positions, lags = self._profiles.take(number, phase)
                delta = self._pane_delta(
                    WindowKind.TIME,
                    phase,
                    scope_kind,
                    scope_value,
                    number * PANE_US,
                    pane,
                    scene_tokens,
                    positions,
                    lags,
                    None if scope_kind is ScopeKind.SCENE else passes.by_time.get(of_pane),
                )
                self._deltas.append(delta)
        steps: dict[tuple[int, int], list[tuple[int, Pane]]] = {}
        for key, pane in self._step_panes.drain():
            steps.setdefault((key.number, key.phase), []).append((key.scene, pane))
        for (number, phase), parts in steps.items():
            self._deltas.append(
                self._pane_delta(
                    WindowKind.STEP,
                    phase,
                    ScopeKind.ALL,
                    "",
                    number * self._config.step_pane,
                    _sum_panes([pane for _, pane in parts]),
                    self._by_scene(parts),
                    passes=passes.by_step.get((number, phase)),
                )
            )

    def _pane_delta(  # noqa: PLR0917 (a delta's key)
        self,
        kind: WindowKind,
        phase: int,
        scope_kind: ScopeKind,
        scope_value: str,
        start: int,
        pane: Pane,
        scene_tokens: dict[str, int],
        positions: PositionCounts | None = None,
        lags: LagSums | None = None,
        passes: PassSums | None = None,
    ) -> SharedDelta:
        return SharedDelta(
            lane=self._key,
            phase=PHASE_NAMES[phase],
            kind=kind,
            scope_kind=scope_kind,
            scope_value=scope_value,
            pane=start,
            counts=pane.counts,
            dropped=told_drops(pane.dropped),
            seen=pane.seen,
            lost=pane.lost,
            unknown_gap=pane.unknown_gap,
            first_time_us=NO_TIME if pane.first_time_us == NO_FIRST else pane.first_time_us,
            last_time_us=NO_TIME if pane.last_time_us == NO_LAST else pane.last_time_us,
            request_gaps=pane.gaps,
            scene_tokens=scene_tokens,
            router=told_router(pane.router, self._shape[0]),
            positions=positions,
            lags=lags,
            passes=passes,
        )

    def _by_scene(self, parts: list[tuple[int, Pane]]) -> dict[str, int]:
        tokens: dict[str, int] = {}
        for scene, pane in parts:
            if scene != NONE:
                name = self._scene_name(scene)
                tokens[name] = tokens.get(name, 0) + pane.seen
        return tokens

    def _scopes(
        self, node: str, total: Pane, parts: list[tuple[int, Pane]]
    ) -> Iterator[tuple[ScopeKind, str, Pane, dict[str, int]]]:
        by_scene = self._by_scene(parts)
        yield ScopeKind.ALL, "", total, by_scene
        if self._config.node_scope and self._has_node_scope(node):
            yield ScopeKind.NODE, node, total, by_scene
        if self._config.scene_scope:
            for scene, pane in parts:
                if scene != NONE:
                    name = self._scene_name(scene)
                    yield ScopeKind.SCENE, name, pane, {name: pane.seen}

    def _has_node_scope(self, node: str) -> bool:
        if node not in self._scoped_nodes:
            if len(self._scoped_nodes) >= self._config.scope_limit:
                return False
            self._scoped_nodes.add(node)
        return True

    # ---- memory --------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """The trailing sums; everything else was handed out by `drain`."""
        trailing, arrays = self._trailing.state()
        return {"trailing": trailing, "scoped_nodes": sorted(self._scoped_nodes)}, arrays

    def restore(self, values: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Take over a saved state."""
        self._scoped_nodes = set(values["scoped_nodes"])
        self._trailing.restore(values["trailing"], arrays)


_COUNTED_PHASES = frozenset(
    {int(Phase.PREFILL), int(Phase.DECODE), int(Phase.EVAL), int(Phase.TRAIN)}
)


def _one_gap(minutes: int) -> NDArray[np.int64]:
    gaps = np.zeros(TASK_GAPS, np.int64)
    if minutes:
        gaps[min(minutes, TASK_GAPS) - 1] = 1
    return gaps


def _sum_panes(panes: list[Pane]) -> Pane:
    first = panes[0]
    if len(panes) == 1:
        return first
    return first._replace(
        counts=sum_of([pane.counts for pane in panes]),
        dropped=sum_of([pane.dropped for pane in panes]),
        router=sum_of([pane.router for pane in panes]),
        seen=sum(pane.seen for pane in panes),
        first_time_us=min(pane.first_time_us for pane in panes),
        last_time_us=max(pane.last_time_us for pane in panes),
        gaps=sum_of([pane.gaps for pane in panes]),
        lost=sum(pane.lost for pane in panes),
        unknown_gap=any(pane.unknown_gap for pane in panes),
    )
