"""Runs a benchmark: repetitions in turns, results as JSON, a table on the terminal."""

from __future__ import annotations

import argparse
import gc
import json
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.machine import ROOT, describe, load
from benchmarks.table import terminal_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.figures import Result

RESULTS = Path(ROOT / "build" / "benchmarks")
_ORDER = 1


class Scale(NamedTuple):
    """How much to do."""

    quick: bool

    def pick(self, full: int, quick: int) -> int:
        """One number for the real run, one for a look whether everything works."""
        return quick if self.quick else full


class Side(NamedTuple):
    """One of several ways to do the same.

    Attributes:
        work: What one call gets done; the rate is work over time.
        run: The call.
        prepare: Called before it, not measured.
    """

    name: str
    work: float
    run: Callable[[], object]
    prepare: Callable[[], object] | None = None


def take_turns(
    sides: Sequence[Side], repetitions: int, *, clock: Callable[[], float] = time.process_time
) -> dict[str, list[float]]:
    """Seconds of each call of each side, in turns, after one call of each that is not counted.

    The order is drawn anew for each repetition: what a side leaves behind (caches, a warm clock)
    would otherwise always meet the same other one. The default clock is the CPU time of the
    process, all its threads added: for work that is done by one thread, that is the time which it
    takes on a core of its own.
    """
    seconds: dict[str, list[float]] = {side.name: [] for side in sides}
    order = random.Random(_ORDER)  # noqa: S311 - an order needs no secrecy
    for repetition in range(repetitions + 1):
        for side in order.sample(sides, len(sides)):
            if side.prepare is not None:
                side.prepare()
            gc.collect()
            began = clock()
            side.run()
            elapsed = clock() - began
            if repetition:
                seconds[side.name].append(elapsed)
    return seconds


def rates(
    sides: Sequence[Side], repetitions: int, *, clock: Callable[[], float] = time.process_time
) -> dict[str, list[float]]:
    """Millions of work items per second, of each repetition of each side."""
    seconds = take_turns(sides, repetitions, clock=clock)
    return {side.name: [side.work / 1e6 / each for each in seconds[side.name]] for side in sides}


def main(topic: str, measure: Callable[[Scale], Result]) -> None:
    """What `python -m benchmarks.bench_…` does."""
    parser = argparse.ArgumentParser(description=f"Measure {topic}.")
    parser.add_argument("--quick", action="store_true", help="tiny inputs: does it work at all?")
    quick = parser.parse_args().quick
    machine = describe()
    result = measure(Scale(quick))
    result = replace(result, machine=machine | {"load_after": load()}, quick=quick)
    folder = RESULTS / ("quick" if quick else "full")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{topic}.json").write_text(json.dumps(result.to_json(), indent=1), encoding="utf-8")
    print(terminal_table(result))
