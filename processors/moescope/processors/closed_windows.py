"""Closed token windows of a lane, until they are handed out in groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from moescope.core.clock import NO_TIME
from moescope.core.emission import WindowGroup
from moescope.core.vocabulary import CloseReason, ScopeKind, WindowKind
from moescope.processors.kernels.records import REASONS
from moescope.processors.lane_references import UNTIMED
from moescope.processors.panes import PHASE_NAMES, told_drops, told_router
from moescope.processors.trailing import PERIOD_US

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from moescope.core.emission import LaneKey
    from moescope.processors.kernels.records import Records
    from moescope.processors.lane_references import LaneReferences
    from moescope.processors.row_sampling import RowSampling

_REASONS = tuple(CloseReason(reason) for reason in REASONS)


class _Closed(NamedTuple):
    records: Records
    counts: NDArray[np.uint16]
    dropped: NDArray[np.uint64]
    router: NDArray[np.int64]
    requests: list[str]
    tasks: list[str]
    nodes: list[str]
    weights: NDArray[np.float64]


class ClosedWindows:
    """Token windows that closed since they were last handed out.

    Args:
        key: Whose they are.
        token: Size and stride of each kind of token window.
        sampling: Says which of them become rows.
        scene_name: Name of a scene's number.
        references: What they are measured against.
    """

    def __init__(
        self,
        key: LaneKey,
        token: Sequence[tuple[int, int]],
        sampling: RowSampling,
        scene_name: Callable[[int], str],
        references: LaneReferences,
    ) -> None:
        self._key = key
        self._shape = (len(key.layers), key.experts)
        self._token = token
        self._sampling = sampling
        self._scene_name = scene_name
        self._references = references
        self._closed: list[_Closed] = []

    def add(  # noqa: PLR0917 (a chunk's closed windows)
        self,
        records: Records,
        counts: NDArray[np.uint16],
        dropped: NDArray[np.uint64],
        router: NDArray[np.int64],
        requests: list[str],
        tasks: list[str],
        nodes: list[str],
    ) -> None:
        """Take windows, and settle which of them become rows."""
        self._sampling.count(records["close_time"], self._shape[0])
        weights = self._sampling.weights(records["first_time"], records["request_hash"])
        self._closed.append(
            _Closed(records, counts, dropped, router, requests, tasks, nodes, weights)
        )

    def take_groups(self) -> Iterator[WindowGroup]:
        """Those since the last call, by period of the trailing reference, size and phase."""
        closed, self._closed = self._closed, []
        if not closed:
            return
        # Into an array of that type: numpy would compare the fields' types again for each part.
        records = np.empty(sum(len(part.records) for part in closed), closed[0].records.dtype)
        np.concatenate([part.records for part in closed], out=records)
        counts = np.concatenate([part.counts for part in closed])
        dropped = np.concatenate([part.dropped for part in closed])
        router = np.concatenate([part.router for part in closed])
        weights = np.concatenate([part.weights for part in closed])
        requests = [name for part in closed for name in part.requests]
        tasks = [name for part in closed for name in part.tasks]
        nodes = [name for part in closed for name in part.nodes]
        timed = records["close_time"] != NO_TIME
        period = np.where(timed, records["close_time"] // PERIOD_US, UNTIMED)
        keys = np.stack([period, records["spec"], records["phase"]], axis=1)
        distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
        inverse = inverse.reshape(-1)
        for index, (group_period, spec, phase) in enumerate(distinct.tolist()):
            chosen = np.flatnonzero(inverse == index)
            part = records[chosen]
            size, stride = self._token[spec]
            trailing, trailing_id = self._references.in_force(phase, group_period)
            rows = chosen.tolist()
            scenes = [self._scene_name(scene) for scene in part["scene"].tolist()]
            complete = (part["seen"] == size) & (part["expected"] == size)
            yield WindowGroup(
                lane=self._key,
                phase=PHASE_NAMES[phase],
                kind=WindowKind.TOKEN,
                size=size,
                stride=stride,
                scope_kind=ScopeKind.ALL,
                scope_value="",
                start=part["start"],
                first_time_us=part["first_time"],
                last_time_us=part["last_time"],
                close_time_us=part["close_time"],
                request=[requests[row] for row in rows],
                task=[tasks[row] for row in rows],
                scene=scenes,
                node=[nodes[row] for row in rows],
                seen=part["seen"],
                expected=part["expected"],
                lost=np.maximum(part["expected"] - part["seen"], 0),
                unknown_gap=np.zeros(len(rows), np.bool_),
                requests=np.ones(len(rows), np.int64),
                close_reason=[_REASONS[reason] for reason in part["reason"].tolist()],
                complete=complete,
                weight=weights[chosen],
                row_version=np.ones(len(rows), np.int32),
                counts=counts[chosen].astype(np.uint32).reshape(-1, *self._shape),
                dropped=told_drops(dropped[chosen]),
                trailing=trailing,
                trailing_id=trailing_id,
                scene_tokens=tuple(
                    {scene: seen} for scene, seen in zip(scenes, part["seen"].tolist(), strict=True)
                ),
                router=told_router(router[chosen], self._shape[0]),
            )
