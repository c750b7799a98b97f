"""Make the recordings: `python -m examples.tiny_moe.record` (all), or with names (only those)."""

from __future__ import annotations

import argparse
import fcntl
import json
import platform
import shutil
import time
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import tokenizers
import torch
import transformers

from examples.tiny_moe import (
    decode_scenarios,
    few_shot_scenarios,
    prefill_scenarios,
    prefix_scenarios,
    pulse_scenarios,
    training_scenarios,
)
from examples.tiny_moe.model import EXPERTS, LAYERS, MODEL_NAME, REVISION, TOP_K, load_model
from examples.tiny_moe.pools import load_pools
from examples.tiny_moe.scenario import Made, Workshop
from examples.tiny_moe.timetable import BLOCK_US, START_US, TICK_US
from examples.tiny_moe.train import DEFAULT_FOLDER, SEED
from examples.tiny_moe.writing import Written, write_recording

RECORDINGS: Final = Path(__file__).parent / "recordings"
MANIFEST: Final = "manifest.json"
SCENARIOS: Final[dict[str, Any]] = dict(
    scenario
    for module in (
        prefill_scenarios,
        prefix_scenarios,
        decode_scenarios,
        few_shot_scenarios,
        pulse_scenarios,
        training_scenarios,
    )
    for scenario in module.SCENARIOS
)


def main() -> None:
    """Record, and bring the manifest up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=" ".join(SCENARIOS))
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER, help="of the trained model")
    parser.add_argument("--into", type=Path, default=RECORDINGS)
    options = parser.parse_args()
    torch.set_num_threads(1)  # several of these may run side by side, with names of their own
    torch.use_deterministic_algorithms(mode=True)
    workshop = Workshop(
        load_model(options.folder / "model"),
        load_pools(options.folder / "pools.npz"),
        options.folder,
    )
    options.into.mkdir(parents=True, exist_ok=True)
    for name in options.names or SCENARIOS:
        started = time.monotonic()
        made = SCENARIOS[name](workshop)
        shutil.rmtree(options.into / name, ignore_errors=True)
        written = write_recording(options.into, name, made.timed, labels={"recording": name})
        _note(options.into, options.folder, name, made, written)
        print(
            f"{name}: {written.requests} requests, {written.tokens:,} tokens, "
            f"{written.bytes / 1e6:.2f} MB, {written.bytes / written.tokens:.2f} bytes per token, "
            f"{time.monotonic() - started:.0f} s",
            flush=True,
        )


def _note(into: Path, folder: Path, name: str, made: Made, written: Written) -> None:
    """Enter a recording into the manifest."""
    path = into / MANIFEST
    with (folder / "manifest.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _enter(path, folder, name, _entry(into, name, made, written))


def _enter(path: Path, folder: Path, name: str, entry: dict[str, Any]) -> None:
    known = json.loads(path.read_text())["recordings"] if path.exists() else {}
    known[name] = entry
    report = json.loads((folder / "report.json").read_text())
    manifest = {
        "version": 1,
        "model": MODEL_NAME,
        "revision": REVISION,
        "layers": LAYERS,
        "experts": EXPERTS,
        "top_k": TOP_K,
        "seed": SEED,
        "start_us": START_US,
        "tick_us": TICK_US,
        "block_us": BLOCK_US,
        "made_with": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
        },
        "training": {
            key: report[key] for key in ("parameters", "steps", "loss_curve", "held_out_loss")
        },
        "recordings": {key: known[key] for key in SCENARIOS if key in known},
    }
    path.write_text(json.dumps(manifest, indent=1) + "\n")


def _entry(into: Path, name: str, made: Made, written: Written) -> dict[str, Any]:
    return {
        "description": made.description,
        "node": name,
        "phases": list(made.phases),
        "shows": made.shows,
        "right_answer": made.right_answer,
        "healthy_twin": made.twin or None,
        "schedule": made.schedule,
        "blocks": made.blocks,
        "requests": written.requests,
        "tokens": written.tokens,
        "bytes": written.bytes,
        "first_event_us": written.first_us,
        "last_event_us": written.last_us,
        "prefixes": made.prefixes,
        **made.facts,
        "sha256": {
            file.name: sha256(file.read_bytes()).hexdigest()
            for file in sorted((into / name).iterdir())
        },
    }


if __name__ == "__main__":
    main()
