"""Load on real vLLM servers: what a block of requests took, and what it cost."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from benchmarks.machine import ROOT

sys.path.insert(0, str(ROOT / "tests"))

from support.vllm_client import Prompt, complete_all
from support.vllm_server import TINY_MOE

if TYPE_CHECKING:
    from support.vllm_client import Reply
    from support.vllm_server import VllmServer

PYTHON_VARIABLE = "MOESCOPE_VLLM_PYTHON"
DEFAULT_PYTHON = ROOT / ".engines" / "vllm" / "bin" / "python"
VOCABULARY = 2048


class Shape(NamedTuple):
    """The requests of one block: all are sent at once."""

    streams: int = 8
    prompt_tokens: int = 64
    tokens: int = 160


class Block(NamedTuple):
    """What one block measured.

    Attributes:
        tokens_per_s: Generated tokens over the time from the first request to the last token.
        median_ms, p99_ms: Of the times between tokens of a stream.
        worker_cpu_us: CPU time of the process that computes, per generated token.
        engine_cpu_us: CPU time of all processes of the server, per generated token.
        token_ids: What was generated, stream by stream.
    """

    tokens_per_s: float
    median_ms: float
    p99_ms: float
    worker_cpu_us: float
    engine_cpu_us: float
    token_ids: list[list[int]]


def engine_python() -> Path:
    """The interpreter of vLLM's environment: `MOESCOPE_VLLM_PYTHON`, or the engines' tests'."""
    return Path(os.environ.get(PYTHON_VARIABLE) or DEFAULT_PYTHON)


def what_is_missing() -> str:
    """What this machine lacks for a vLLM server; empty where nothing is missing."""
    if not engine_python().exists():
        return f"no environment with vLLM ({PYTHON_VARIABLE} names its python)"
    if not TINY_MOE.exists():
        return "no trained small MoE in examples/tiny_moe/weights"
    return ""


def block_prompts(name: str, shape: Shape) -> list[Prompt]:
    """The requests of a block: prompts that no other block has."""
    chosen = random.Random(name)  # noqa: S311 (not for security)
    return [
        Prompt(
            request_id=f"{name}-{stream}",
            token_ids=[chosen.randrange(1, VOCABULARY) for _ in range(shape.prompt_tokens)],
            tokens=shape.tokens,
        )
        for stream in range(shape.streams)
    ]


def run_block(server: VllmServer, prompts: list[Prompt]) -> Block:
    """Send a block's requests and wait for all.

    Raises:
        AssertionError: A request failed.
    """
    before = _cpu_ns(server)
    replies = complete_all(server, prompts)
    after = _cpu_ns(server)
    return block_of(prompts, replies, {title: after[title] - before[title] for title in after})


def block_of(prompts: list[Prompt], replies: list[Reply], cpu_ns: dict[str, int]) -> Block:
    """The figures of a block.

    Args:
        prompts: What was asked.
        replies: What came.
        cpu_ns: CPU time of the server's processes by title.

    Raises:
        AssertionError: A request failed.
    """
    for prompt, reply in zip(prompts, replies, strict=True):
        if reply.error or len(reply.token_ids) != prompt.tokens:
            message = f"{prompt.request_id}: {len(reply.token_ids)} tokens, {reply.error}"
            raise AssertionError(message)
    tokens = sum(len(reply.token_ids) for reply in replies)
    began = min(reply.sent_ns for reply in replies)
    ended = max(reply.arrived_ns[-1] for reply in replies)
    gaps = np.concatenate([np.diff(reply.arrived_ns) for reply in replies]) / 1e6
    median, p99 = np.quantile(gaps, [0.5, 0.99])
    return Block(
        tokens_per_s=tokens / ((ended - began) / 1e9),
        median_ms=float(median),
        p99_ms=float(p99),
        worker_cpu_us=cpu_ns.get("Worker", 0) / 1e3 / tokens,
        engine_cpu_us=sum(cpu_ns.values()) / 1e3 / tokens,
        token_ids=[reply.token_ids for reply in replies],
    )


def _cpu_ns(server: VllmServer) -> dict[str, int]:
    """CPU time by title, of the threads that live."""
    spent: dict[str, int] = {}
    for process in server.processes():
        for thread in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
            nanoseconds = int(thread.read_text(encoding="ascii").split()[0])
            spent[process.title] = spent.get(process.title, 0) + nanoseconds
    return spent
