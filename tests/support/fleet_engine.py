"""An engine that decodes and records, and how long each `record()` keeps it.

A step decodes one token of each of 32 running requests over 16 MoE layers. Ids of experts come
from a table made before: the engine's own work is no part of what is measured.
"""

from __future__ import annotations

import gc
import json
import signal
import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from support.fleet_disk import enter_disk

from moescope.producers import Recorder

if TYPE_CHECKING:
    from pathlib import Path

REQUESTS = 32
LAYERS = 16
EXPERTS = 64
TOP_K = 8
PROMPT = 16
TABLE = 64
"""Steps whose ids are made before; then they come again."""


@dataclass(frozen=True)
class EnginePlan:
    """How an engine runs.

    Attributes:
        node: Its name.
        steps_per_second: Decode steps.
        length: Tokens that a request decodes before another takes its place.
        ring_bytes: Size of the ring.
    """

    node: str = "engine"
    steps_per_second: float = 20.0
    length: int = 200
    ring_bytes: int = 64 << 20


class Step(NamedTuple):
    """One call of `record()`.

    Attributes:
        at: Wall-clock time at its begin.
        us: How long it took.
        cpu_us: CPU time of its thread: what it did itself, without waiting for a core.
    """

    at: float
    us: float
    cpu_us: float


@dataclass(frozen=True)
class EngineReport:
    """What an engine recorded, and the steps that it took."""

    rows: int
    rejected_rows: int
    steps: tuple[Step, ...]

    @classmethod
    def read(cls, path: Path) -> EngineReport:
        """The report of an engine that has ended."""
        told = json.loads(path.read_text())
        return cls(
            told["rows"], told["rejected_rows"], tuple(Step(*step) for step in told["steps"])
        )


def run_engine(plan: EnginePlan, ring_directory: Path, report: Path, disk_holder: int = 0) -> None:
    """Decode until SIGTERM, then end all requests and write the report.

    Args:
        plan: How.
        ring_directory: Where its ring lies.
        report: Where its report goes.
        disk_holder: Process whose small disk the ring lies on; 0: none.
    """
    if disk_holder:
        enter_disk(disk_holder)
    asked: set[int] = set()

    def ask(number: int, _: Any) -> None:
        asked.add(number)

    signal.signal(signal.SIGTERM, ask)
    table = ids_of_steps()
    recorder = Recorder(
        model="engine-moe",
        revision="r1",
        layers=range(LAYERS),
        experts=EXPERTS,
        top_k=TOP_K,
        directory=ring_directory,
        node=plan.node,
        token_id_kind="plain",
        ring_bytes=plan.ring_bytes,
    )
    running = [0] * REQUESTS
    names = [_begin(recorder, plan, slot, 0) for slot in range(REQUESTS)]
    positions = np.array([PROMPT + slot * plan.length // REQUESTS for slot in range(REQUESTS)])
    steps: list[Step] = []
    serial = 0
    due = time.monotonic()
    gc.freeze()
    while signal.SIGTERM not in asked:
        tokens = np.arange(serial, serial + REQUESTS)
        ids = table[len(steps) % TABLE]
        at = time.time()
        cpu_begin = time.thread_time_ns()
        begin = time.perf_counter_ns()
        recorder.record(names, positions, ids, "decode", token_ids=tokens)
        end = time.perf_counter_ns()
        cpu = time.thread_time_ns() - cpu_begin
        steps.append(Step(at, (end - begin) / 1e3, cpu / 1e3))
        serial += REQUESTS
        positions += 1
        for slot in np.flatnonzero(positions >= PROMPT + plan.length).tolist():
            recorder.end_request(names[slot])
            running[slot] += 1
            names[slot] = _begin(recorder, plan, slot, running[slot])
            positions[slot] = PROMPT
        due += 1 / plan.steps_per_second
        time.sleep(max(0.0, due - time.monotonic()))
    for name in names:
        recorder.end_request(name)
    counters = recorder.counters()
    recorder.close()
    half = report.with_suffix(".half")
    half.write_text(
        json.dumps(
            {
                "rows": counters.recorded_rows,
                "rejected_rows": counters.rejected_rows,
                "steps": steps,
            }
        )
    )
    half.replace(report)


def _begin(recorder: Recorder, plan: EnginePlan, slot: int, number: int) -> str:
    name = f"{plan.node}-{slot}/{number}"
    recorder.begin_request(name, prompt_tokens=PROMPT)
    return name


@cache
def ids_of_steps() -> Any:
    """Distinct experts of each token and layer, uint8 [TABLE, REQUESTS, LAYERS, TOP_K]."""
    random = np.random.default_rng(5)
    scores = random.random((TABLE, REQUESTS, LAYERS, EXPERTS))
    return np.ascontiguousarray(np.argsort(scores, axis=-1)[..., :TOP_K].astype(np.uint8))
