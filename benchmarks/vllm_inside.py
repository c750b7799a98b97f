"""What the plugin does in a pass of a real vLLM, by clocks inside the engine.

    python -m benchmarks.vllm_inside [--servers 2] [--rounds 12] [--fidelity full] [--held 16]

A server with the plugin and its agent gets blocks of streaming requests; `inside_plugin` times the
plugin's own functions there, where the model drives their code out of the processor's caches. Each
clock costs about a microsecond of what it shows. What the plugin's work costs the model behind it
is not in; `vllm_overhead` compares servers with and without.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.inside_plugin import BEGINNING, END, FILE_VARIABLE, PASS, ROUTERS
from benchmarks.machine import ROOT, load
from benchmarks.vllm_load import Shape, block_prompts, engine_python, run_block, what_is_missing

from support.vllm_agent import AgentProcess  # isort: skip (vllm_load says where it lies)
from support.vllm_server import ServerOptions, VllmNursery, wait_until_ready  # isort: skip

WARM_ROUNDS = 2
OWN = (BEGINNING, ROUTERS, END)


def measure(number: int, rounds: int, environment: dict[str, str]) -> dict[str, list[int]]:
    """Nanoseconds of each pass of one server, by where they were spent."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 (a folder of its own)
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory(dir=memory) as ring:
        folder = Path(name)
        file = folder / "taken.json"
        options = ServerOptions(
            ring=Path(ring), environment={FILE_VARIABLE: str(file), **environment},
            paths=(_plugin(folder), ROOT / "benchmarks"),
        )  # fmt: skip
        with VllmNursery(folder, engine_python()) as nursery:
            server = nursery.launch("timed", options)
            wait_until_ready(server)
            with AgentProcess(Path(ring), folder / "log", folder / "agent.log") as agent:
                warm = 0
                for turn in range(WARM_ROUNDS + rounds):
                    if turn == WARM_ROUNDS and file.exists():
                        warm = len(json.loads(file.read_text(encoding="ascii"))[PASS])
                    run_block(server, block_prompts(f"{number}-{turn}", Shape()))
                server.stop()
                agent.stop()
        taken: dict[str, list[int]] = json.loads(file.read_text(encoding="ascii"))
    return {where: passes[warm:] for where, passes in taken.items()}


def _plugin(folder: Path) -> Path:
    """What makes the plugin known to vLLM."""
    information = folder / "plugin" / "moescope_benchmark_inside-0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: moescope-benchmark-inside\nVersion: 0\n", encoding="ascii"
    )
    (information / "entry_points.txt").write_text(
        "[vllm.general_plugins]\ninside = inside_plugin:register\n", encoding="ascii"
    )
    return information.parent


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--fidelity", default="full")
    parser.add_argument("--held", default="16", help="MOESCOPE_HELD_PASSES")
    options = parser.parse_args()
    if missing := what_is_missing():
        parser.exit(3, f"nothing was measured: {missing}\n")
    environment = {"MOESCOPE_FIDELITY": options.fidelity, "MOESCOPE_HELD_PASSES": options.held}
    print(
        "| server | passes | where | median, µs | mean, µs | 90 %, µs |\n|---|---|---|---|---|---|"
    )
    for number in range(options.servers):
        taken = measure(number, options.rounds, environment)
        own = np.sum([taken[where] for where in OWN], axis=0)
        for where, passes in [*taken.items(), ("plugin, together", own)]:
            us = np.array(passes) / 1e3
            print(
                f"| {number} | {len(us)} | {where} | {np.median(us):.0f} | {us.mean():.0f} | "
                f"{np.quantile(us, 0.9):.0f} |",
                flush=True,
            )
    print(f"load averages {load()}")


if __name__ == "__main__":
    main()
