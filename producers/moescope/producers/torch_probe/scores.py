"""What the router thought, from its logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def entropy_and_margin(
    logits: torch.Tensor, top_k: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Entropy of the probabilities before top-k, and their gap at the k-th place.

    Args:
        logits: [N, E].
        top_k: k.

    Returns:
        float32 [N] in nats, and float32 [N]: the k-th largest probability minus the next one;
        None where k is E and there is no next one.
    """
    log_probabilities = logits.float().log_softmax(-1)
    probabilities = log_probabilities.exp()
    entropy = -(probabilities * log_probabilities).sum(-1)
    if top_k >= logits.shape[-1]:
        return entropy, None
    largest = probabilities.topk(top_k + 1, dim=-1).values
    return entropy, largest[:, top_k - 1] - largest[:, top_k]
