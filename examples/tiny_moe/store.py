"""Writes the trained model to examples/tiny_moe/weights, as small as it can be of use.

    python -m examples.tiny_moe.store

The weights are rounded to bfloat16: half the size, and every one of them is also an exact float32.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from examples.tiny_moe.model import END, load_model
from examples.tiny_moe.train import DEFAULT_FOLDER

WEIGHTS: Final = Path(__file__).with_name("weights")


def main() -> None:
    """Write model and tokenizer."""
    import torch
    from transformers import PreTrainedTokenizerFast

    model = load_model(DEFAULT_FOLDER / "model").to(torch.bfloat16)
    model.save_pretrained(WEIGHTS)
    PreTrainedTokenizerFast(
        tokenizer_file=str(DEFAULT_FOLDER / "tokenizer.json"), pad_token=END
    ).save_pretrained(WEIGHTS)
    # The class that every version of transformers knows.
    settings = WEIGHTS / "tokenizer_config.json"
    told = json.loads(settings.read_text(encoding="utf-8"))
    told["tokenizer_class"] = "PreTrainedTokenizerFast"
    settings.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    for file in sorted(WEIGHTS.iterdir()):
        file.chmod(0o644)
        print(f"{file.stat().st_size:>10,} {file.name}")


if __name__ == "__main__":
    main()
