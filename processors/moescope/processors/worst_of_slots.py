"""What paging reads of judged windows: the worst exceedance of each slot and family."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from moescope.core.clock import NO_TIME
from moescope.core.exceedance import SLOT_US, Exceedance, ExceedanceKey, Exceedances
from moescope.core.metrics import JUDGED_METRICS, Family

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from moescope.core.emission import WindowGroup

NO_LAYER = -1
"""Layer of an exceedance of which nothing entered the value."""

_BITS = {
    family: np.uint64(
        sum(1 << bit for bit, metric in enumerate(JUDGED_METRICS) if metric.family is family)
    )
    for family in Family
}
_MIX_SHIFT = np.uint64(
    1 << next(bit for bit, each in enumerate(JUDGED_METRICS) if each.name == "mix_shift")
)


class WorstOfWindows(NamedTuple):
    """The largest exceedance of each of W windows and F families.

    Attributes:
        value: float64 [W, F]; −inf where no metric of the family has a red line and a value.
        place: int64 [W, F, 2], layer's place in the lane and metric's in `JUDGED_METRICS`; −1.
    """

    value: NDArray[np.float64]
    place: NDArray[np.int64]


def worst_of_slots(
    group: WindowGroup,
    versions: Sequence[str],
    judged: NDArray[np.uint64],
    red: NDArray[np.uint64],
    worst: WorstOfWindows,
    *,
    minimum_coverage: float,
) -> Exceedances:
    """Exceedances of a group: those of covered, timed windows at their first closing.

    Args:
        group: Judged windows.
        versions: [W] names of the versions that judged; "": none.
        judged: uint64 [W, L], as `Judgement`.
        red: uint64 [W, L].
        worst: Of each window, by family in the order of `Family`.
        minimum_coverage: A shared window that saw less is insufficient, and cannot page.
    """
    counted = group.is_covered(minimum_coverage) & (group.row_version == 1)
    counted &= group.close_time_us != NO_TIME
    windows = np.flatnonzero(counted)
    slots = group.close_time_us[windows] // SLOT_US * SLOT_US
    names, version_of = np.unique(np.array(versions)[windows], return_inverse=True)
    keys, slot_of = np.unique(np.stack([version_of, slots]), axis=1, return_inverse=True)
    mixed = ((red[windows] & _MIX_SHIFT) != 0).any(axis=1)
    found: Exceedances = {}
    for place, family in enumerate(Family):
        mine = ((judged[windows] & _BITS[family]) != 0).any(axis=1)
        if not mine.any():
            continue
        is_red = ((red[windows] & _BITS[family]) != 0).any(axis=1)
        value = worst.value[windows, place]
        if family is not Family.ROUTING:
            value = np.where(mixed, -np.inf, value)
        number = keys.shape[1]
        most = np.full(number, -np.inf)
        np.maximum.at(most, slot_of[mine], value[mine])
        sums = [
            np.bincount(slot_of[mine & flag], minlength=number).tolist()
            for flag in (mine, is_red, mixed)
        ]
        is_worst = mine & (value == most[slot_of])
        first = _first_of_slots(
            group, windows[is_worst], slot_of[is_worst], worst.place[windows[is_worst], place]
        )
        for slot, window in first.items():
            key = ExceedanceKey(
                lane=group.lane,
                phase=group.phase,
                kind=group.kind,
                size=group.size,
                stride=group.stride,
                scope_kind=group.scope_kind,
                scope_value=group.scope_value,
                family=family,
                slot_us=int(keys[1, slot]),
                version=str(names[keys[0, slot]]),
            )
            layer, metric = worst.place[window, place].tolist()
            entered = most[slot] > -np.inf
            found[key] = Exceedance(
                float(most[slot]),
                JUDGED_METRICS[metric].name if entered else "",
                group.lane.layers[layer] if entered else NO_LAYER,
                int(group.start[window]),
                group.request[window],
                *(of_kind[slot] for of_kind in sums),
            )
    return found


def _first_of_slots(
    group: WindowGroup,
    windows: NDArray[np.int64],
    slot_of: NDArray[np.int64],
    place: NDArray[np.int64],
) -> dict[int, int]:
    """Slot → the first of equally bad windows, in the order in which `Exceedance` merges."""
    first: dict[int, tuple[tuple[int, str, int, str], int]] = {}
    for window, slot, (layer, metric) in zip(
        windows.tolist(), slot_of.tolist(), place.tolist(), strict=True
    ):
        order = (
            int(group.start[window]),
            group.request[window],
            group.lane.layers[layer],
            JUDGED_METRICS[metric].name,
        )
        if slot not in first or (order, window) < first[slot]:
            first[slot] = order, window
    return {slot: window for slot, (_, window) in first.items()}
