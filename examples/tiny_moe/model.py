"""The model's architecture and its tokenizer: OLMoE, 8 million parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MODEL_NAME: Final = "tiny-moe"
REVISION: Final = "r1"
VOCABULARY: Final = 2_048
LAYERS: Final = 6
EXPERTS: Final = 32
TOP_K: Final = 4
LENGTH: Final = 512
"""Tokens of a training sequence, and of the longest recorded request."""
EXPERTS_KERNEL: Final = "grouped_mm"
"""The fastest of the implementations that transformers has for a CPU."""
END: Final = "<|end|>"
"""Between documents; token id 0."""


def train_tokenizer(texts: Iterable[str]) -> Any:
    """A byte-level BPE of `VOCABULARY` tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def new_model(seed: int) -> Any:
    """The untrained model; the same seed gives the same weights."""
    import torch
    from transformers import OlmoeConfig, OlmoeForCausalLM

    torch.manual_seed(seed)
    config = OlmoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=96,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=2 * LENGTH,
        num_experts=EXPERTS,
        num_experts_per_tok=TOP_K,
        router_aux_loss_coef=0.01,
        output_router_logits=False,
        pad_token_id=0,
        eos_token_id=None,
        tie_word_embeddings=False,
    )
    model = OlmoeForCausalLM(config)
    model.set_experts_implementation(EXPERTS_KERNEL)
    return model


def load_model(folder: Path) -> Any:
    """The trained model, ready for inference."""
    from transformers import OlmoeForCausalLM

    model = OlmoeForCausalLM.from_pretrained(folder)
    model.set_experts_implementation(EXPERTS_KERNEL)
    return model.eval()
