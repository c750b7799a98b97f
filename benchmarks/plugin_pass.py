"""What the vLLM plugin itself does for a decode pass, in microseconds over all layers.

    .engines/torch/bin/python -m benchmarks.plugin_pass [--pairs 40] [--layers 6 16] [--json FILE]

vLLM's own Python does as well; nothing of vLLM runs. A runner with the structures that the plugin
reads of vLLM's calls one router per layer, which returns what was chosen before; nothing else is
computed. Timed is `execute_model`: with the plugin that is the look at the schedule, the copy in
each layer, and the call of the recorder, which writes into a real ring. Each pair has a block of
passes with the plugin beside one without, in random order; A/A pairs have two without. An empty
pass is so short that the machine hardly ever disturbs it: so there are pairs with the plugin on
both sides, too (B/B), and the verdict is *inconclusive* where either kind differs by the limit. A
block's figure is the median, over its groups of passes that follow each other, of a group's mean:
so what the plugin does now and then is in, and a moment in which another program ran is not. CPU
time is taken by the thread's clock, in blocks of their own.

What is left out, so that a pass of an engine may cost more:

- the caches: here the plugin's code and buffers stay in those of the processor, where between two
  passes of an engine the model's own work would take their place;
- GPUs: buffers are in the host's memory, as those of a model on a CPU; no copy is launched on a
  device, or waited for;
- other threads that wait for Python's lock, and the agent, which shares the machine;
- prefill, draft tokens, requests that begin and end, content keys, token ids, recorded weights.
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
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

from benchmarks.paired import Interval, median_interval
from moescope.producers import Recorder
from moescope.producers.vllm_plugin.capture import RoutingCapture, wrap_router
from moescope.producers.vllm_plugin.host import host_copies
from moescope.producers.vllm_plugin.probe import EngineProbe
from moescope.producers.vllm_plugin.requests import EngineRequests
from moescope.producers.vllm_plugin.runners import layout_of
from moescope.producers.vllm_plugin.workers import hook_runner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LIMIT_US: Final = 300.0
EXPERTS, TOP_K = 64, 8
PROMPT, GROUP, CHOICES = 64, 16, 16
STEPS, WARM_STEPS = 20 * GROUP, GROUP
RING_BYTES: Final = 64 << 20
MEMORY = Path("/dev/shm")  # noqa: S108 (where the documentation puts rings)
_request_numbers = count()


class Setting(NamedTuple):
    """What a pass has."""

    layers: int
    requests: int
    fidelity: str


LAYERS: Final = (6, 16, 48)
REQUESTS: Final = (8, 32)
FIDELITIES: Final = ("full", "counts")


@dataclass(frozen=True, slots=True)
class Cost:
    """What the plugin costs a pass of one setting.

    Attributes:
        pass_us: Median of a pass without the plugin: calls of routers that do nothing.
        same: A/A, difference per pass in µs.
        both: B/B, likewise.
        own: A/B, likewise.
        cpu_us: CPU time that the plugin takes per pass.
    """

    setting: Setting
    pass_us: float
    same: Interval
    both: Interval
    own: Interval
    cpu_us: float

    @property
    def verdict(self) -> str:
        """Whether the limit is kept; inconclusive where equal sides differ by as much."""
        if any(max(pair.high, -pair.low) >= LIMIT_US for pair in (self.same, self.both)):
            return "inconclusive"
        if self.own.high <= LIMIT_US:
            return "met"
        return "not met" if self.own.low > LIMIT_US else "inconclusive"


class Router:
    """Returns what it chose before, another choice at each call."""

    def __init__(self, requests: int, generator: Any) -> None:  # noqa: ANN401 - torch has no types
        scores = torch.rand((CHOICES, requests, EXPERTS), generator=generator).softmax(-1)
        weights, ids = scores.topk(TOP_K)
        self._choices = [*zip(weights, ids.to(torch.int32), strict=True)]
        self._calls = count()

    def _compute_routing(self) -> Any:  # noqa: ANN401 - see above
        return self._choices[next(self._calls) % CHOICES]


class Runner:
    """Holds what the plugin reads of vLLM's first generation of runners, and calls the routers."""

    def __init__(self, setting: Setting) -> None:
        generator = torch.Generator().manual_seed(1)
        self.routers = [Router(setting.requests, generator) for _ in range(setting.layers)]
        self.vllm_config = SimpleNamespace(
            parallel_config=SimpleNamespace(data_parallel_rank=0), speculative_config=None
        )
        self.requests: dict[str, Any] = {}
        self.input_ids = SimpleNamespace(gpu=torch.zeros(setting.requests, dtype=torch.int32))
        self.input_batch = SimpleNamespace(
            req_ids=[], num_computed_tokens_cpu=np.zeros(setting.requests, np.int32)
        )

    def execute_model(self, scheduler_output: Any) -> None:  # noqa: ANN401 - vLLM's, by shape
        """One forward pass."""
        if scheduler_output.total_num_scheduled_tokens:
            for router in self.routers:
                router._compute_routing()  # noqa: SLF001 - what the plugin wraps

    def sample_tokens(self) -> None:
        """Not called without draft tokens."""


def schedule(names: Sequence[str], new: Sequence[str] = (), finished: Sequence[str] = ()) -> Any:  # noqa: ANN401 - vLLM's, by shape
    """What the scheduler tells of one step: a row of each request."""
    return SimpleNamespace(
        total_num_scheduled_tokens=len(names),
        num_scheduled_tokens=dict.fromkeys(names, 1),
        scheduled_spec_decode_tokens={},
        finished_req_ids={*finished},
        scheduled_new_reqs=[
            SimpleNamespace(
                req_id=name, prompt_token_ids=[1] * PROMPT, prompt_embeds=None,
                num_computed_tokens=0, sampling_params=None,
            )
            for name in new
        ],
    )  # fmt: skip


class Bench:
    """A runner without the plugin, one with it, and blocks of decode passes."""

    def __init__(self, setting: Setting, folder: str) -> None:
        self.setting = setting
        self.plain, self.watched = Runner(setting), Runner(setting)
        self.recorder = Recorder(
            model="bench", revision="r1", layers=range(setting.layers), experts=EXPERTS,
            top_k=TOP_K, score_kind="softmax", rank_order="selection_score",
            fidelity=setting.fidelity, directory=folder, ring_bytes=RING_BYTES,
        )  # fmt: skip
        capture = RoutingCapture(
            setting.layers, 4 * setting.requests, TOP_K, torch.device("cpu"), is_replayed=False
        )
        for index, router in enumerate(self.watched.routers):
            wrap_router(router, capture, index)
        self.probe = EngineProbe(
            self.recorder, EngineRequests(self.recorder, "unknown"), layout_of(self.watched),
            capture, host_copies(capture, with_token_ids=False),
        )  # fmt: skip
        hook_runner(self.watched, self.probe)
        self._blocks_watched = 0

    def block(self, *, watched: bool, clock: Callable[[], int] = time.perf_counter_ns) -> float:
        """Time of a pass, µs: of requests that are all decoding."""
        runner = self.watched if watched else self.plain
        self._blocks_watched += watched
        names = [f"cmpl-{next(_request_numbers)}-0-{0:08x}" for _ in range(self.setting.requests)]
        batch, taken = runner.input_batch, []
        batch.req_ids = names
        batch.num_computed_tokens_cpu[:] = PROMPT
        runner.execute_model(schedule(names, new=names))
        for _ in range(WARM_STEPS + STEPS):
            batch.num_computed_tokens_cpu += 1
            step = schedule(names)
            begun = clock()
            runner.execute_model(step)
            taken.append(clock() - begun)
        runner.execute_model(schedule((), finished=names))
        groups = np.array(taken[WARM_STEPS:], np.float64).reshape(-1, GROUP)
        return float(np.median(groups.mean(axis=1))) / 1e3

    def close(self) -> None:
        """End, and make sure that what was measured was recording.

        Raises:
            RuntimeError: Rows are missing.
        """
        self.probe.flush()
        counters = self.recorder.counters()
        self.probe.close()
        rows = self._blocks_watched * self.setting.requests * (1 + WARM_STEPS + STEPS)
        if counters.recorded_rows != rows or self.probe.counters.errors:
            message = f"{counters.recorded_rows} of {rows} rows were recorded: {counters}"
            raise RuntimeError(message)


def measure(setting: Setting, pairs: int, order: random.Random) -> Cost:
    """Blocks in pairs, each kind of pair as often as the other, all in random order."""
    differences: dict[str, list[float]] = {"same": [], "both": [], "own": []}
    passes: list[float] = []
    memory = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        bench = Bench(setting, folder)
        for watched in (False, True):
            bench.block(watched=watched)
        for kind in order.sample([*differences] * pairs, len(differences) * pairs):
            sides = [kind == "both", kind != "same"]
            order.shuffle(sides)
            found = [bench.block(watched=side) for side in sides]
            if kind == "own" and sides[0]:
                found.reverse()
            differences[kind].append(found[1] - found[0])
            if kind != "both":
                passes.append(found[0])
        cpu = [
            bench.block(watched=True, clock=time.thread_time_ns)
            - bench.block(watched=False, clock=time.thread_time_ns)
            for _ in range(max(3, pairs // 4))
        ]
        bench.close()
    return Cost(
        setting, float(np.median(passes)), cpu_us=float(np.median(cpu)),
        **{kind: median_interval([found]) for kind, found in differences.items()},
    )  # fmt: skip


def table_of(costs: Sequence[Cost]) -> str:
    """For a page."""
    lines = [
        "| layers | requests | fidelity | empty pass, µs | A/A, µs | B/B, µs | plugin, µs | CPU, µs | ≤ 300 µs |",  # noqa: E501 - a row
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {cost.setting.layers} | {cost.setting.requests} | {cost.setting.fidelity} | "
        f"{cost.pass_us:.1f} | {_text(cost.same)} | {_text(cost.both)} | {_text(cost.own)} | "
        f"{cost.cpu_us:.0f} | {cost.verdict} |"
        for cost in costs
    ]
    return "\n".join(lines)


def _text(interval: Interval) -> str:
    return f"{interval.value:+.1f} ({interval.low:+.1f} … {interval.high:+.1f})"


def _conditions(pairs: int) -> str:
    loads = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, {platform.machine()}, Python "
        f"{platform.python_version()}, torch {version('torch')}, numpy {version('numpy')}; top "
        f"{TOP_K} of {EXPERTS} experts; medians with 95 % intervals of {pairs} pairs of each kind, "
        f"{STEPS} passes a block; load averages {loads} at the end."
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--layers", type=int, nargs="+", default=LAYERS)
    parser.add_argument("--requests", type=int, nargs="+", default=REQUESTS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    order = random.Random(options.seed)  # noqa: S311 - an order, not a secret
    costs = []
    for layers in options.layers:
        for requests in options.requests:
            for fidelity in FIDELITIES:
                costs.append(measure(Setting(layers, requests, fidelity), options.pairs, order))
                print(table_of(costs[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    conditions = _conditions(options.pairs)
    print(f"{conditions}\n\n{table_of(costs)}")
    if options.json:
        found = {
            "conditions": conditions,
            "costs": [asdict(cost) | {"verdict": cost.verdict} for cost in costs],
        }
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
