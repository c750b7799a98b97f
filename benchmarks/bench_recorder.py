"""What recording costs the engine, and how fast the agent ships."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchmarks.figures import Figure, Result
from benchmarks.harness import Scale, main
from benchmarks.streams import EXPERTS, LAYERS, TOP_K, draw_ids, zipf_popularity
from moescope.producers import Recorder
from moescope.producers.agent import Agent

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

PASS_REQUESTS = 64
RING_BYTES = 256 << 20
STEP_S = 0.002
CHUNK = 64

STEPS_PER_REQUEST = 256
MEMORY = Path("/dev/shm")  # noqa: S108 (where the documentation puts rings)

TEXT = f"""
`Recorder.record` for a decode step of {PASS_REQUESTS} requests, and for a prompt of 1,024 tokens;
{LAYERS} layers, {TOP_K} of {EXPERTS} experts. A request lasts {STEPS_PER_REQUEST} steps, then
another takes its place: the list of requests changes every {STEPS_PER_REQUEST // PASS_REQUESTS}
calls. *With scores*: entropy, margin and a pass number beside the ids, as a probe of torch passes
them. *Mixed*: all requests but one decode, and one computes {CHUNK} tokens of its prompt; with a
phase per row, rows per request, scores and a pass number. The calls come {STEP_S * 1e3:.0f} ms
apart, as from an engine that waits for its accelerator; each call's wall-clock time is taken, and
the CPU time of its thread, which leaves out what other programs do to it. The agent runs beside it
in a process of its own, or does not run. The ring is on a memory file system, where the machine has
one, or on a disk. *The agent's throughput*: what is in the ring, to the batch log, by one thread.
"""

_AGENT = """
import sys, threading
from moescope.producers.agent import Agent
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
with Agent(sys.argv[1], sys.argv[2]) as agent:
    print("ready", flush=True)
    agent.run(stop)
"""


def _recorder(folder: Path) -> Recorder:
    return Recorder(
        model="bench-moe",
        revision="r1",
        layers=range(LAYERS),
        experts=EXPERTS,
        top_k=TOP_K,
        directory=folder,
        node="bench",
        ring_bytes=RING_BYTES,
    )


class _Taken(NamedTuple):
    """Seconds of each call, and of its thread on a core."""

    wall: list[float]
    cpu: list[float]

    def add(self, call: Callable[[], None]) -> None:
        """Make a call, then wait as an engine does."""
        cpu_began = time.thread_time()
        began = time.perf_counter()
        call()
        self.wall.append(time.perf_counter() - began)
        self.cpu.append(time.thread_time() - cpu_began)
        time.sleep(STEP_S)


def _decode(recorder: Recorder, ids: NDArray[np.uint8], calls: int) -> _Taken:
    """A decode step in each call."""
    names = [f"request-{number:06d}" for number in range(PASS_REQUESTS)]
    positions = np.arange(PASS_REQUESTS) * STEPS_PER_REQUEST // PASS_REQUESTS
    for name in names:
        recorder.begin_request(name, prompt_tokens=0)
    taken = _Taken([], [])
    for step in range(calls):
        rows = ids[(step % 8) * PASS_REQUESTS :][:PASS_REQUESTS]
        for place in np.flatnonzero(positions == STEPS_PER_REQUEST).tolist():
            recorder.end_request(names[place])
            names[place] = f"request-{step:06d}-{place}"
            recorder.begin_request(names[place], prompt_tokens=0)
            positions[place] = 0
        taken.add(partial(recorder.record, names, positions, rows, "decode"))
        positions += 1
    for name in names:
        recorder.end_request(name)
    return taken


def _with_scores(recorder: Recorder, ids: NDArray[np.uint8], calls: int) -> _Taken:
    """A decode step with entropy and margin in each call."""
    names = [f"scored-{number:06d}" for number in range(PASS_REQUESTS)]
    scores = np.random.default_rng(5).random((PASS_REQUESTS, LAYERS), np.float32)
    rows = ids[:PASS_REQUESTS]
    taken = _Taken([], [])
    for step in range(calls):
        positions = np.full(PASS_REQUESTS, step)
        more: dict[str, Any] = {"entropy": scores, "margin": scores, "pass_id": step}
        taken.add(partial(recorder.record, names, positions, rows, "decode", **more))
    for name in names:
        recorder.end_request(name)
    return taken


def _mixed(recorder: Recorder, ids: NDArray[np.uint8], calls: int) -> _Taken:
    """A pass of decode rows and a piece of one prompt in each call."""
    names = [f"mixed-{number:06d}" for number in range(PASS_REQUESTS)]
    counts = np.ones(PASS_REQUESTS, np.int64)
    counts[-1] = CHUNK
    count = PASS_REQUESTS - 1 + CHUNK
    scores = np.random.default_rng(6).random((count, LAYERS), np.float32)
    phase = np.repeat(np.array([1, 0], np.uint8), [PASS_REQUESTS - 1, CHUNK])
    rows = ids[:count]
    taken = _Taken([], [])
    for step in range(calls):
        positions = np.append(np.full(PASS_REQUESTS - 1, step), CHUNK * step + np.arange(CHUNK))
        more: dict[str, Any] = {
            "entropy": scores,
            "margin": scores,
            "pass_id": step,
            "rows_per_request": counts,
        }
        taken.add(partial(recorder.record, names, positions, rows, phase, **more))
    for name in names:
        recorder.end_request(name)
    return taken


def _prompts(recorder: Recorder, ids: NDArray[np.uint8], calls: int) -> _Taken:
    positions = np.arange(len(ids))
    taken = _Taken([], [])
    for call in range(calls):
        name = f"prompt-{call:06d}"
        recorder.begin_request(name, prompt_tokens=len(ids))
        taken.add(partial(recorder.record, name, positions, ids, "prefill"))
    return taken


def _figures(what: str, taken: _Taken, target: float | None) -> list[Figure]:
    return [
        Figure(
            what=f"{what}, p{percent:g}{of}",
            unit="µs per call",
            values=[float(np.percentile(seconds, percent)) * 1e6],
            better="lower",
            target=target if percent > 99 and not of else None,  # noqa: PLR2004 (of the tail)
        )
        for seconds, of in ((taken.wall, ""), (taken.cpu, " of its CPU time"))
        for percent in (50, 99, 99.9)
    ]


def measure(scale: Scale) -> Result:
    """Measure the topic."""
    ids = draw_ids(1024, zipf_popularity(LAYERS, EXPERTS, 0.7), TOP_K, seed=4)
    calls = scale.pick(6000, 40)
    figures: list[Figure] = []
    memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    for what, shipping, place in (
        ("agent running", True, memory),
        ("agent down", False, memory),
        ("agent down, ring on a disk", False, None),
    ):
        with (
            tempfile.TemporaryDirectory(dir=place) as ring,
            tempfile.TemporaryDirectory() as log,
        ):
            agent = _start_agent(Path(ring), Path(log)) if shipping else None
            with _recorder(Path(ring)) as recorder:
                _decode(recorder, ids, 20)
                decode = _decode(recorder, ids, calls)
                prompts = _prompts(recorder, ids, calls // 8)
                scored = _with_scores(recorder, ids, calls // 2)
                mixed = _mixed(recorder, ids, calls // 2)
                counters = recorder.counters()
            if agent is not None:
                agent.communicate()
            if counters.rejected_rows or counters.internal_errors or counters.disabled:
                message = f"the recorder did not record everything: {counters}"
                raise AssertionError(message)
        figures += _figures(f"decode step of {PASS_REQUESTS} requests, {what}", decode, 100)
        figures += _figures(f"prompt of 1,024 tokens, {what}", prompts, None)
        figures += _figures(f"decode step with scores, {what}", scored, None)
        figures += _figures(f"mixed pass, {what}", mixed, None)
    figures.append(_agent_throughput(ids, scale))
    return Result(topic="recorder", title="Recording", text=TEXT, order=7, figures=figures)


def _start_agent(ring: Path, log: Path) -> subprocess.Popen[str]:
    agent = subprocess.Popen(  # noqa: S603 (our own code)
        [sys.executable, "-c", _AGENT, str(ring), str(log)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert agent.stdout is not None  # noqa: S101 (it is a pipe)
    agent.stdout.readline()
    return agent


def _agent_throughput(ids: NDArray[np.uint8], scale: Scale) -> Figure:
    calls = scale.pick(100, 2)
    values = []
    for _ in range(scale.pick(5, 2)):
        with (
            tempfile.TemporaryDirectory() as folder,
            _recorder(Path(folder) / "ring") as recorder,
            Agent(Path(folder) / "ring", Path(folder) / "log") as agent,
        ):
            for call in range(calls):
                name = f"prompt-{call:06d}"
                recorder.begin_request(name, prompt_tokens=len(ids))
                recorder.record(name, np.arange(len(ids)), ids, "prefill")
            began = time.process_time()
            agent.drain()
            elapsed = time.process_time() - began
            if recorder.counters().rejected_rows:
                message = "the ring was too small for the measurement"
                raise AssertionError(message)
        values.append(calls * ids.size / 1e6 / elapsed)
    return Figure(
        what="the agent's throughput, prompts of 1,024 tokens",
        unit="M assignments/s, one core",
        values=values,
        target=150,
    )


if __name__ == "__main__":
    main("recorder", measure)
