"""What routers return: which part of a forward's tensors is what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch


@dataclass(frozen=True, slots=True)
class Form:
    """Positions of parts among the captured tensors; None for what is not there.

    Attributes:
        logits: [N, E]. Without them (and without `probabilities`) they are computed again from
            the router's input, which costs one matrix product per layer.
        probabilities: [N, E], the softmax of the logits, in the logits' place.
        ids: [N, k]. Without them they are the k largest of the selection score.
        weights: [N, k]. Without them they are computed as the family does.
        gates: [N, E], weights at their experts' places and 0 elsewhere.
        kept: [N, E], 1 at an expert that had room for the row.
        input: What the router saw, [N, hidden].
    """

    logits: int | None = None
    probabilities: int | None = None
    ids: int | None = None
    weights: int | None = None
    gates: int | None = None
    kept: int | None = None
    input: int | None = None


Forms = dict[str, Form]
"""By signature: a letter for each captured tensor, e for floating [N, E], f for other floating
ones and i for integers."""

TRIPLE: Final[Forms] = {
    "efi": Form(logits=0, weights=1, ids=2),
    "eei": Form(logits=0, weights=1, ids=2),
}
"""(logits, weights, ids): most routers of transformers since 5.18. (With k = E both are wide.)"""
BARE: Final[Forms] = {"e": Form(logits=0)}
"""Logits alone: the block does the rest, as in transformers 4."""
IDS_WEIGHTS_INPUT: Final[Forms] = {"iff": Form(ids=0, weights=1, input=2)}
"""(ids, weights), and the router's input for the logits."""
PROBABILITIES_TRIPLE: Final[Forms] = {"efi": Form(probabilities=0, weights=1, ids=2)}
"""(probabilities, weights, ids)."""


@dataclass(frozen=True, slots=True)
class Linear:
    """The linear map that makes logits of a router's input.

    Attributes:
        weight: Dotted name of its weight [E, hidden], on the router or its block.
        bias: Dotted name of its bias.
        in_float32: Whether the family computes it in single precision whatever its weights are.
    """

    weight: str = "weight"
    bias: str = ""
    in_float32: bool = True


def signature(captured: Sequence[torch.Tensor], experts: int) -> str:
    """Letters of the captured tensors."""
    return "".join(
        "i" if not part.is_floating_point() else "e" if part.shape[-1:] == (experts,) else "f"
        for part in captured
    )


def form_of(forms: Mapping[str, Form], captured: Sequence[torch.Tensor], experts: int) -> Form:
    """The form of one router's captured tensors.

    Raises:
        TypeError: No form of the family has these tensors.
    """
    letters = signature(captured, experts)
    form = forms.get(letters)
    if form is None:
        shapes = [tuple(part.shape) for part in captured]
        raise TypeError(f"a router's tensors {shapes} are {letters!r}; known are {sorted(forms)}")
    return form
