"""What the plugin costs a real vLLM: two servers without it and one with it, in paired blocks.

    python -m benchmarks.vllm_overhead [--episodes 5] [--rounds 16] [--compiled] [--json FILE]

Each episode starts three servers anew; in each round all three get the same requests, one server
after the other in random order, while the other two are idle. Beside the one with the plugin runs
an agent.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.machine import describe, load
from benchmarks.paired import Better, Interval, Verdict, judge, median_interval
from benchmarks.vllm_load import (
    Block,
    Shape,
    block_prompts,
    engine_python,
    run_block,
    what_is_missing,
)

from support.vllm_agent import AgentProcess  # isort: skip (vllm_load says where it lies)
from support.vllm_server import ServerOptions, VllmNursery, wait_until_ready  # isort: skip

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WITHOUT, AGAIN, WITH = "without", "without, again", "with"
WARM_ROUNDS = 2
Round = dict[str, Block]


class Quantity(NamedTuple):
    """One thing that is compared, as a ratio to the server without."""

    name: str
    of: Callable[[Block], float]
    better: Better
    target: float | None


QUANTITIES = (
    Quantity("tokens/s", lambda block: block.tokens_per_s, "higher", 0.98),
    Quantity("p99 inter-token latency", lambda block: block.p99_ms, "lower", 1.03),
    Quantity("median inter-token latency", lambda block: block.median_ms, "lower", None),
    Quantity("CPU time of the worker", lambda block: block.worker_cpu_us, "lower", None),
    Quantity("CPU time of all processes", lambda block: block.engine_cpu_us, "lower", None),
)


@dataclass(frozen=True)
class Compared:
    """A quantity's ratios.

    Attributes:
        name: Of the quantity.
        better: Which way is good.
        with_plugin: Server with the plugin to the first without.
        same: The second without to the first.
        target: For the former; None: reported only.
        verdict: Empty without a target.
        by_episode: Median of `with_plugin` in each episode.
        same_by_episode: Likewise of `same`.
    """

    name: str
    better: Better
    with_plugin: Interval
    same: Interval
    target: float | None
    verdict: Verdict | None
    by_episode: list[float]
    same_by_episode: list[float]


@dataclass(frozen=True)
class Overhead:
    """All that was measured."""

    mode: str
    shape: Shape
    rounds: list[list[Round]]
    compared: list[Compared]
    different_outputs: int


def measure(episodes: int, rounds: int, *, eager: bool, shape: Shape = Shape()) -> Overhead:  # noqa: B008 (a tuple)
    """Measure everything.

    Args:
        episodes: How often servers are started anew.
        rounds: Rounds of each, besides those that warm up.
        eager: Without `torch.compile`.
        shape: Of a block.
    """
    with (
        tempfile.TemporaryDirectory(dir=_memory_folder()) as ring,
        tempfile.TemporaryDirectory() as folder,
        VllmNursery(Path(folder), engine_python()) as nursery,
    ):
        place = _Place(nursery, Path(folder), Path(ring))
        measured = [
            _episode(place, number, rounds, shape, eager=eager) for number in range(episodes)
        ]
    return Overhead(
        mode="eager" if eager else "compiled",
        shape=shape,
        rounds=measured,
        compared=[compare(measured, quantity) for quantity in QUANTITIES],
        different_outputs=sum(
            one[WITH].token_ids != one[WITHOUT].token_ids for each in measured for one in each
        ),
    )


def compare(episodes: Sequence[Sequence[Round]], quantity: Quantity) -> Compared:
    """Ratios of one quantity, pair by pair."""

    def ratios(side: str) -> list[list[float]]:
        return [
            [quantity.of(one[side]) / quantity.of(one[WITHOUT]) for one in rounds]
            for rounds in episodes
        ]

    own, same = ratios(WITH), ratios(AGAIN)
    with_plugin, control = median_interval(own), median_interval(same)
    verdict = None
    if quantity.target is not None:
        verdict = judge(with_plugin, control, quantity.target, quantity.better)
    return Compared(
        name=quantity.name,
        better=quantity.better,
        with_plugin=with_plugin,
        same=control,
        target=quantity.target,
        verdict=verdict,
        by_episode=[median_interval([one]).value for one in own],
        same_by_episode=[median_interval([one]).value for one in same],
    )


class _Place(NamedTuple):
    """Where servers come from, and where things lie."""

    nursery: VllmNursery
    folder: Path
    rings: Path


def _episode(place: _Place, number: int, rounds: int, shape: Shape, *, eager: bool) -> list[Round]:
    ring, log = place.rings / f"ring-{number}", place.folder / f"log-{number}"
    names = [WITHOUT, AGAIN, WITH]
    order = random.Random(number)  # noqa: S311 (not for security)
    order.shuffle(names)  # which one starts first is part of what is random
    servers = {}
    for name in names:
        options = ServerOptions(eager=eager, ring=ring if name == WITH else None)
        servers[name] = place.nursery.launch(f"{number}-{name.replace(', ', '-')}", options)
    for server in servers.values():
        wait_until_ready(server)
    found: list[Round] = []
    with AgentProcess(ring, log, place.folder / "agent.log") as agent:
        for turn in range(WARM_ROUNDS + rounds):
            prompts = block_prompts(f"{number}-{turn}", shape)
            order.shuffle(names)
            blocks = {name: run_block(servers[name], prompts) for name in names}
            if turn >= WARM_ROUNDS:
                found.append(blocks)
                print(_line(number, turn, blocks), file=sys.stderr)
        for server in servers.values():
            server.stop()
        agent.stop()
    return found


def _line(episode: int, turn: int, blocks: Round) -> str:
    speeds = ", ".join(f"{name} {blocks[name].tokens_per_s:,.0f}/s" for name in sorted(blocks))
    return f"episode {episode}, round {turn - WARM_ROUNDS}: {speeds}; load {load()[0]}"


def _memory_folder() -> str | None:
    """A memory file system for the ring, where there is one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 (a folder of its own in it)


def as_json(overhead: Overhead, machine: dict[str, Any]) -> dict[str, Any]:
    """All figures, without the tokens."""
    rounds = [
        [{side: _figures(block) for side, block in one.items()} for one in each]
        for each in overhead.rounds
    ]
    return {
        "machine": machine | {"load_after": load()},
        "mode": overhead.mode,
        "shape": overhead.shape._asdict(),
        "compared": [asdict(each) for each in overhead.compared],
        "different_outputs": overhead.different_outputs,
        "rounds": rounds,
    }


def _figures(block: Block) -> dict[str, float]:
    return {name: value for name, value in block._asdict().items() if name != "token_ids"}


def text_of(overhead: Overhead) -> str:
    """A table for the terminal."""
    lines = [f"vLLM, {overhead.mode}: ratios to the server without the plugin"]
    for each in overhead.compared:
        target = f"{each.verdict} (target {each.target})" if each.verdict else ""
        lines.append(
            f"  {each.name:28} with {each.with_plugin}   A/A {each.same}   {target}".rstrip()
        )
    lines.append(f"  blocks with other outputs than without: {overhead.different_outputs}")
    return "\n".join(lines)


def main() -> None:
    """What `python -m benchmarks.vllm_overhead` does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--compiled", action="store_true", help="with torch.compile")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    options = parser.parse_args()
    missing = what_is_missing()
    if missing:
        parser.exit(3, f"left out: {missing}\n")
    machine = describe()
    overhead = measure(options.episodes, options.rounds, eager=not options.compiled)
    if options.json:
        text = json.dumps(as_json(overhead, machine), indent=1)
        options.json.write_text(text, encoding="utf-8")
    print(text_of(overhead))


if __name__ == "__main__":
    main()
