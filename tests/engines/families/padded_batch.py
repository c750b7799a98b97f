"""A left-padded batch of two requests, and one forward of a family's model over it."""

from __future__ import annotations

from typing import Any, Final

import torch
from engines.families.tiny_families import FAMILIES

IDS: Final = torch.tensor([[1, 1, 5, 6, 7, 11, 30], [3, 4, 5, 8, 9, 41, 2]])
MASK: Final = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]])
REQUESTS: Final = ("padded", "full")
ENCODER_DECODER: Final = ("nllb_moe", "switch_transformers")


def tower_of(name: str, model: Any) -> Any:
    """The part of a model that a probe is attached to."""
    return model.get_encoder() if name in ENCODER_DECODER else model


def run(name: str, tower: Any) -> Any:
    """One forward over the batch."""
    arguments = {} if name in ENCODER_DECODER else {"use_cache": False}
    tokens = {"input_ids": IDS}
    if FAMILIES[name].takes_embeddings:
        tokens = {"inputs_embeds": tower.get_input_embeddings()(IDS)}
    with torch.no_grad():
        output = tower(**tokens, attention_mask=MASK, **arguments)
    return output[0]
