"""What engine faults do to rows and ids, and what the ring loses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moescope.core.vocabulary import Phase, RowFlag
from moescope.producers.simulator.engine import EngineRows
from moescope.producers.simulator.hashing import combine, seed_from, unit_interval
from moescope.producers.simulator.incidents import layer_places
from moescope.producers.simulator.requests import RequestPlan

if TYPE_CHECKING:
    from moescope.producers.simulator.incidents import EngineFault
    from moescope.producers.simulator.requests import RequestTable
    from moescope.producers.simulator.router import ExpertIds

_ADDED_ROWS = {
    "warmup_rows": (Phase.WARMUP, RowFlag.NONE),
    "unmarked_warmup_rows": (Phase.PREFILL, RowFlag.NONE),
    "padding_rows": (Phase.PREFILL, RowFlag.PADDING),
}


def add_fault_rows(
    rows: EngineRows,
    fault: EngineFault,
    table: RequestTable,
    node: int,
    second_us: int,
) -> EngineRows:
    """Put identical rows before a second's rows, if the fault is of that kind.

    They belong to a request of their own, which begins and ends with them.
    """
    if fault.fault not in _ADDED_ROWS or not fault.effect:
        return rows
    phase, flags = _ADDED_ROWS[fault.fault]
    name = f"{fault.fault.replace('_', '-')}-{node}-{second_us}"
    index = table.add(
        RequestPlan(
            id=name,
            task=name,
            scene="unknown",
            prompt_tokens=fault.rows,
            output_tokens=1,
            content_seed=seed_from(node, second_us),
            domain=0,
            loop_period=1,
            first_phase=phase,
            flags=int(flags),
            incidents=(fault.name,),
        )
    )
    added = EngineRows(
        request=np.full(fault.rows, index, np.intp),
        position=np.arange(fault.rows),
        phase=np.full(fault.rows, phase, np.uint8),
        event_time_us=np.full(fault.rows, second_us),
        pass_id=np.full(fault.rows, -1),
        step=None if rows.step is None else np.zeros(fault.rows, np.int64),
    )
    return added.followed_by(rows)


def spoil_ids(ids: ExpertIds, fault: EngineFault, rows: EngineRows) -> None:
    """Overwrite, in place, ids [T, L, k] as the fault does; `share` of the rows are hit."""
    if not fault.effect or fault.fault in _ADDED_ROWS:
        return
    request, position = rows.request.astype(np.uint64), rows.position.astype(np.uint64)
    hit = unit_interval(combine(request, position)) < fault.share
    for layer in layer_places(fault.layers, ids.shape[1]):
        if fault.fault == "zero_layer":
            ids[hit, layer, :] = 0
        else:
            ids[hit, layer, -1] = ids[hit, layer, 0]


def drop_oldest(rows: EngineRows, share: float) -> tuple[EngineRows, int]:
    """Without the oldest share of the rows, and how many these were."""
    lost = round(len(rows) * share)
    return rows.part(lost, len(rows)), lost
