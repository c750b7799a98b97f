"""What the torch probe costs a decode step, in microseconds over all layers: paired blocks.

    .engines/torch/bin/python -m benchmarks.probe_overhead [--pairs 40] [--write] [--json FILE]

Each pair has a block of decode steps with the probe beside one without, in random order; A/A pairs
have two without. The probe reads up to sixteen steps at a time: so a block's figure is the median,
over its groups of sixteen steps that follow each other, of a group's mean. The CPU time that the
probe takes before and after a pass, without what watching the routers costs, is taken by the
thread's clock in blocks of their own.

`--write` puts the table into docs/explanation/torch-probe.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import tempfile
import time
import warnings
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
import transformers

from benchmarks.machine import ROOT
from benchmarks.paired import Interval, median_interval
from moescope.producers import Recorder, attach
from moescope.producers.torch_probe import RequestFacts, router_shape
from moescope.producers.torch_probe.hooks import AfterPass, BeforePass
from moescope.producers.torch_probe.steps import HELD_STEPS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PAGE: Final = ROOT / "docs" / "explanation" / "torch-probe.md"
BEGIN, END = "<!-- results: probe overhead -->", "<!-- end of results -->"
LIMIT_US: Final = 300.0
TRAINED: Final = ROOT / "examples" / "tiny_moe" / "weights"
PROMPT, STEPS, WARM_STEPS = 64, 5 * HELD_STEPS, 4
MEMORY = Path("/dev/shm")  # noqa: S108 (where the documentation puts rings)
_request_numbers = count()


class Setting(NamedTuple):
    """A model, and how many requests decode at a time."""

    model: str
    layers: int
    requests: int


SETTINGS: Final = (
    Setting("trained", 6, 8),
    Setting("OLMoE-shaped", 16, 8),
    Setting("OLMoE-shaped", 48, 8),
)
FIDELITIES: Final = ("full", "counts")


@dataclass(frozen=True, slots=True)
class Cost:
    """What the probe costs one setting.

    Attributes:
        step_us: Median of a step without the probe.
        same: A/A, difference per step in µs.
        own: A/B, difference per step in µs.
        cpu_us: CPU time that the probe takes before and after a step's pass.
    """

    setting: Setting
    fidelity: str
    step_us: float
    same: Interval
    own: Interval
    cpu_us: float

    @property
    def verdict(self) -> str:
        """Whether the limit is kept; inconclusive where A/A alone is as wide as the limit."""
        if max(self.same.high, -self.same.low) >= LIMIT_US:
            return "inconclusive"
        if self.own.high <= LIMIT_US:
            return "met"
        return "not met" if self.own.low > LIMIT_US else "inconclusive"


def make_model(setting: Setting) -> Any:  # noqa: ANN401 - transformers has no types
    """The trained small MoE, or a narrow one with OLMoE's layers, experts and top-k."""
    if setting.model == "trained":
        return transformers.OlmoeForCausalLM.from_pretrained(TRAINED).eval()
    config = transformers.OlmoeConfig(
        vocab_size=512, hidden_size=128, intermediate_size=64, num_hidden_layers=setting.layers,
        num_attention_heads=4, num_key_value_heads=4, num_experts=64, num_experts_per_tok=8,
        pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    return transformers.OlmoeForCausalLM(config).eval()


class Bench:
    """One model, its recorder, and blocks of decode steps."""

    def __init__(self, setting: Setting, fidelity: str, folder: str) -> None:
        torch.manual_seed(1)
        self.model = make_model(setting)
        self.requests = setting.requests
        shape = router_shape(self.model)
        self.recorder = Recorder(
            model="bench", revision="r1", layers=shape.layers, experts=shape.experts,
            top_k=shape.top_k, score_kind=shape.score_kind, rank_order=shape.rank_order,
            fidelity=fidelity, directory=folder, ring_bytes=64 << 20,
        )  # fmt: skip
        self._step_token = torch.full((self.requests, 1), 5)

    def block(self, *, watched: bool) -> float:
        """Time of a decode step, µs."""
        with ExitStack() as stack:
            if watched:
                probe = stack.enter_context(attach(self.model, self.recorder))
                names = [f"{next(_request_numbers)}" for _ in range(self.requests)]
                stack.enter_context(probe.batch([RequestFacts(id=name) for name in names]))
            return _of_a_step(list(self._steps()))

    def cpu_of_probe(self) -> float:
        """CPU time that the probe takes before and after a decode step's pass, µs."""
        with timed_hooks() as spent:
            probe = attach(self.model, self.recorder)
            names = [f"{next(_request_numbers)}" for _ in range(self.requests)]
            with probe, probe.batch([RequestFacts(id=name) for name in names]):
                taken = []
                for _ in self._steps(spent):
                    taken.append(sum(spent))
                    spent.clear()
        return _of_a_step(taken)

    def _steps(self, spent: list[int] | None = None) -> Iterator[int]:
        cache = transformers.DynamicCache(config=self.model.config)
        columns = PROMPT
        with torch.inference_mode():
            prompt = torch.full((self.requests, PROMPT), 7)
            self.model(prompt, attention_mask=torch.ones_like(prompt), cache=cache, use_cache=True)
            for step in range(WARM_STEPS + STEPS):
                columns += 1
                mask = torch.ones((self.requests, columns), dtype=torch.long)
                if spent is not None and step <= WARM_STEPS:
                    spent.clear()
                begun = time.perf_counter_ns()
                self.model(self._step_token, attention_mask=mask, cache=cache, use_cache=True)
                if step >= WARM_STEPS:
                    yield time.perf_counter_ns() - begun


def _of_a_step(taken_ns: Sequence[int]) -> float:
    """Microseconds of one step, from the nanoseconds of steps that follow each other."""
    groups = np.array(taken_ns, np.float64).reshape(-1, HELD_STEPS)
    return float(np.median(groups.mean(axis=1))) / 1e3


@contextmanager
def timed_hooks() -> Iterator[list[int]]:
    """Lists the CPU time of each call of a hook, without what the clock itself takes."""
    spent: list[int] = []
    clock = time.thread_time_ns
    of_clock = min(-clock() + clock() for _ in range(1000))
    plain = {kind: kind.__call__ for kind in (BeforePass, AfterPass)}

    def timed(call: Any) -> Any:  # noqa: ANN401 - any hook
        def run(*arguments: object) -> None:
            begun = clock()
            call(*arguments)
            spent.append(clock() - begun - of_clock)

        return run

    for kind, call in plain.items():
        kind.__call__ = timed(call)  # type: ignore[method-assign]  # measured for a while
    try:
        yield spent
    finally:
        for kind, call in plain.items():
            kind.__call__ = call  # type: ignore[method-assign]  # the plain one again


def measure(setting: Setting, fidelity: str, pairs: int, order: random.Random) -> Cost:
    """Blocks in pairs, each kind of pair as often as the other, all in random order."""
    own: list[float] = []
    same: list[float] = []
    steps: list[float] = []
    memory = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        bench = Bench(setting, fidelity, folder)
        for watched in (False, True):
            bench.block(watched=watched)
        for kind in order.sample(["own", "same"] * pairs, 2 * pairs):
            second = kind == "own"
            sides = [False, second]
            order.shuffle(sides)
            found = [bench.block(watched=side) for side in sides]
            if second:
                without, watched_us = found if not sides[0] else found[::-1]
                own.append(watched_us - without)
            else:
                without = found[0]
                same.append(found[1] - without)
            steps.append(without)
        cpu = float(np.median([bench.cpu_of_probe() for _ in range(max(3, pairs // 8))]))
        bench.recorder.close()
    return Cost(
        setting, fidelity, float(np.median(steps)), median_interval([same]),
        median_interval([own]), cpu,
    )  # fmt: skip


def table_of(costs: Sequence[Cost]) -> str:
    """As the page shows it."""
    lines = [
        "| model | layers | requests | fidelity | step, µs | A/A, µs | probe, µs | of it reading, CPU µs | ≤ 300 µs |",  # noqa: E501 - a row
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {cost.setting.model} | {cost.setting.layers} | {cost.setting.requests} | "
        f"{cost.fidelity} | {cost.step_us:,.0f} | {_text(cost.same)} | {_text(cost.own)} | "
        f"{cost.cpu_us:.0f} | {cost.verdict} |"
        for cost in costs
    ]
    return "\n".join(lines)


def _text(interval: Interval) -> str:
    return f"{interval.value:+.0f} ({interval.low:+.0f} … {interval.high:+.0f})"


def _conditions(pairs: int) -> str:
    loads = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, {platform.machine()}, "
        f"torch {version('torch')} on {torch.get_num_threads()} threads, transformers "
        f"{version('transformers')}, {pairs} pairs of each kind, {STEPS} steps a block, load "
        f"averages {loads} at the end."
    )


def main() -> None:
    """Measure, print, and write where asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layers", type=int, nargs="*", help="only models with so many layers")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.name}")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    order = random.Random(options.seed)  # noqa: S311 - an order, not a secret
    costs = []
    for setting in SETTINGS:
        if options.layers and setting.layers not in options.layers:
            continue
        for fidelity in FIDELITIES:
            costs.append(measure(setting, fidelity, options.pairs, order))
            print(table_of(costs[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    conditions, table = _conditions(options.pairs), table_of(costs)
    print(f"{conditions}\n\n{table}")
    if options.json:
        found = {"conditions": conditions, "costs": [asdict(cost) for cost in costs]}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if options.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        text = f"{before}{BEGIN}\n\n{conditions}\n\n{table}\n\n{END}{after}"
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
