"""Train the model: `python -m examples.tiny_moe.train`, some minutes on two cores."""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tokenizers
import torch
import transformers

from examples.tiny_moe.corpus import SCENES, documents
from examples.tiny_moe.model import LENGTH, new_model, train_tokenizer
from examples.tiny_moe.pools import encode_pools, save_pools

if TYPE_CHECKING:
    from examples.tiny_moe.pools import Pools

DEFAULT_FOLDER: Final = Path(".engines/tiny-moe")
SEED: Final = 20_261_130
STEPS: Final = 450
SEQUENCES: Final = 8
PEAK_RATE: Final = 2e-3
WARM_UP: Final = 40
THREADS: Final = 2

_SAID_EVERY: Final = 20


def rate_at(step: int, steps: int) -> float:
    """Learning rate: linear warm-up, then a cosine down to a tenth."""
    if step < WARM_UP:
        return PEAK_RATE * (step + 1) / WARM_UP
    share = (step - WARM_UP) / max(1, steps - WARM_UP)
    return PEAK_RATE * (0.1 + 0.9 * 0.5 * (1 + float(np.cos(np.pi * share))))


def optimizer_of(model: Any) -> torch.optim.Optimizer:
    """AdamW; norms are not decayed."""
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    vectors = [weight for weight in model.parameters() if weight.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.95))


def mixed_batch(pools: Pools, draw: np.random.Generator, scenes: list[str]) -> torch.Tensor:
    """One random slice of `LENGTH` tokens per scene named, from what is trained on."""
    rows = []
    for scene in scenes:
        stream = pools[scene, "train"]
        start = int(draw.integers(0, len(stream) - LENGTH))
        rows.append(stream[start : start + LENGTH])
    return torch.from_numpy(np.stack(rows))


def train_step(
    model: Any,
    optimizer: torch.optim.Optimizer,
    batch: torch.Tensor,
    rate: float,
) -> float:
    """One optimizer step; the language-model loss in nats per token, without balancing."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    outputs = model(input_ids=batch, labels=batch, output_router_logits=True, use_cache=False)
    outputs.loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    balancing = model.router_aux_loss_coef * outputs.aux_loss
    return float((outputs.loss - balancing).detach())


def evaluate(model: Any, pools: Pools, sequences: int = 16) -> dict[str, float]:
    """Loss per scene on documents that were not trained on, in nats per token."""
    losses = {}
    model.eval()
    with torch.inference_mode():
        for scene in SCENES:
            stream = pools[scene, "held_out"][: sequences * LENGTH]
            batch = torch.from_numpy(stream.reshape(sequences, LENGTH))
            losses[scene] = round(float(model(input_ids=batch, labels=batch).loss), 4)
    model.train()
    return losses


def main() -> None:
    """Tokenize, train, save the model, the token streams and a report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(mode=True)
    found = documents()
    tokenizer = train_tokenizer(d.text for d in found if d.part == "train")
    tokenizer.save(str(options.folder / "tokenizer.json"))
    pools = encode_pools(tokenizer, found)
    save_pools(options.folder / "pools.npz", pools)
    print({" ".join(key): len(ids) for key, ids in pools.items()}, flush=True)
    model = new_model(SEED)
    parameters = sum(weight.numel() for weight in model.parameters())
    print(f"{parameters:,} parameters", flush=True)
    optimizer = optimizer_of(model)
    draw = np.random.default_rng(SEED)
    curve = []
    started = time.monotonic()
    model.train()
    for step in range(options.steps):
        scenes = [SCENES[(step + row) % len(SCENES)] for row in range(SEQUENCES)]
        batch = mixed_batch(pools, draw, scenes)
        loss = train_step(model, optimizer, batch, rate_at(step, options.steps))
        if step % _SAID_EVERY == 0 or step == options.steps - 1:
            curve.append([step, round(loss, 4)])
            print(f"step {step} loss {loss:.3f} {time.monotonic() - started:.0f} s", flush=True)
    model.save_pretrained(options.folder / "model")
    report = {
        "seed": SEED,
        "steps": options.steps,
        "sequences_per_step": SEQUENCES,
        "length": LENGTH,
        "parameters": parameters,
        "loss_curve": curve,
        "held_out_loss": evaluate(model, pools),
        "tokens": {" ".join(key): len(ids) for key, ids in pools.items()},
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
    }
    (options.folder / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    print(report["held_out_loss"], flush=True)


if __name__ == "__main__":
    main()
