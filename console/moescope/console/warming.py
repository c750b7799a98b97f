"""Loading compiled kernels before they are needed."""

from __future__ import annotations

import numpy as np

from moescope.core.emission import LIVE_DOMAIN, LaneKey, WindowGroup
from moescope.core.vocabulary import CloseReason, ScopeKind, WindowKind
from moescope.processors.finish import WindowFinisher


def warm_finisher() -> None:
    """Finish a window of two tokens, so that the next one finds the kernels loaded."""
    for kind in (WindowKind.TIME, WindowKind.TOKEN):
        WindowFinisher()(_group(kind))


def _group(kind: WindowKind) -> WindowGroup:
    one = np.ones(1, np.int64)
    return WindowGroup(
        lane=LaneKey(LIVE_DOMAIN, "warm", "warm", "model", "full", 1.0, 4, 1, (0,)),
        phase="decode",
        kind=kind,
        size=1_000_000,
        stride=1_000_000,
        scope_kind=ScopeKind.ALL,
        scope_value="",
        start=0 * one,
        first_time_us=one,
        last_time_us=one,
        close_time_us=one,
        request=[""],
        task=[""],
        scene=[""],
        node=[""],
        seen=2 * one,
        expected=2 * one,
        lost=0 * one,
        unknown_gap=np.zeros(1, np.bool_),
        requests=one,
        close_reason=[CloseReason.COMPLETE],
        complete=np.ones(1, np.bool_),
        weight=np.ones(1),
        row_version=np.ones(1, np.int32),
        counts=np.array([[[1, 1, 0, 0]]], np.uint32),
        dropped=np.zeros((1, 1), np.uint64),
    )
