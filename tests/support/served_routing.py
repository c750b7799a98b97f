"""What a served model's weights say of a sequence, by another implementation: transformers'."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import transformers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

CLEAR_MARGIN = 1e-4
"""Closer choices may fall differently where sums are taken in another order."""


class WantedRouting(NamedTuple):
    """Routing of one sequence of T tokens in L layers.

    Attributes:
        order: Experts by descending probability, [T, L, E].
        shares: Their probabilities, [T, L, E].
    """

    order: NDArray[np.int64]
    shares: NDArray[np.float64]

    def chosen(self, position: int, layer: int, top_k: int) -> set[int] | None:
        """The experts of a row; None where rounding decides."""
        shares = self.shares[position, layer]
        if shares[top_k - 1] - shares[top_k] <= CLEAR_MARGIN:
            return None
        return {*self.order[position, layer, :top_k].tolist()}


class ServedWeights:
    """A model in float32, asked for the routing of sequences.

    Args:
        folder: Of an OLMoE.
    """

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        self._model = transformers.OlmoeForCausalLM.from_pretrained(folder, dtype="float32").eval()

    def routing(self, tokens: Sequence[int]) -> WantedRouting:
        """Router probabilities, from hidden states and router weights alone."""
        layers = self._model.model.layers
        inputs: list[Any] = []
        hooks = [
            layer.mlp.register_forward_pre_hook(lambda _module, args: inputs.append(args[0]))
            for layer in layers
        ]
        with torch.no_grad():
            self._model(torch.tensor([list(tokens)]), use_cache=False)
        for hook in hooks:
            hook.remove()
        by_layer = []
        for hidden, layer in zip(inputs, layers, strict=True):
            weight = layer.mlp.gate.weight.detach().double().numpy()
            logits = hidden[0].double().numpy() @ weight.T
            shares = np.exp(logits - logits.max(axis=1, keepdims=True))
            by_layer.append(shares / shares.sum(axis=1, keepdims=True))
        stacked = np.stack(by_layer, axis=1)
        order = np.argsort(-stacked, axis=-1)
        return WantedRouting(order, np.take_along_axis(stacked, order, -1))
