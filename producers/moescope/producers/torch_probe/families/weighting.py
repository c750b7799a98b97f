"""Weights of selected experts, for routers that do not return them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol

if TYPE_CHECKING:
    import torch

    from moescope.producers.torch_probe.families.settings import Places


class Weighting(Protocol):
    """A rule for weights."""

    def __call__(
        self, logits: torch.Tensor, scores: torch.Tensor, ids: torch.Tensor, places: Places
    ) -> torch.Tensor:
        """Weights [N, L, k] of ids [N, L, k], from logits and scores [N, L, E]."""
        ...


@dataclass(frozen=True, slots=True)
class ScoreWeights:
    """The scores of the selected experts.

    Attributes:
        normalised: Whether they are divided by their sum; a string names a setting that tells.
        norm: Names a setting with the order of the norm that they are divided by, instead.
        floor: Names a setting with the least sum.
        plus: Added to the sum.
        scaled: Names a setting that they are multiplied with.
    """

    normalised: bool | Literal["norm_topk_prob"] = False
    norm: str = ""
    floor: str = ""
    plus: float = 0.0
    scaled: tuple[str, ...] = ()

    def __call__(
        self, logits: torch.Tensor, scores: torch.Tensor, ids: torch.Tensor, places: Places
    ) -> torch.Tensor:
        """Weights of ids."""
        del logits
        weights = scores.gather(-1, ids)
        normalised = self.normalised
        if isinstance(normalised, str):
            normalised = bool(places.find((normalised,), default=False))
        order = places.find((self.norm,)) if self.norm else None
        if order is not None:
            weights = weights / weights.norm(p=order, dim=-1, keepdim=True)
        if normalised:
            total = weights.sum(-1, keepdim=True) + self.plus
            if self.floor:
                total = total.clamp(min=places.find((self.floor,), default=0.0))
            weights = weights / total
        scale = places.find(self.scaled) if self.scaled else None
        return weights if scale is None else weights * scale


@dataclass(frozen=True, slots=True)
class SoftmaxOfSelected:
    """The softmax over the logits of the selected experts alone."""

    def __call__(
        self, logits: torch.Tensor, scores: torch.Tensor, ids: torch.Tensor, places: Places
    ) -> torch.Tensor:
        """Weights of ids."""
        del scores, places
        return logits.gather(-1, ids).softmax(-1)


@dataclass(frozen=True, slots=True)
class SparseMixer:
    """PhiMoE in evaluation: each expert against those close behind it (arXiv 2409.12136).

    The first is the softmax over experts within 2·jitter of the best, relative to the larger of
    the best and the logit's size; the second is the same without the first.
    """

    def __call__(
        self, logits: torch.Tensor, scores: torch.Tensor, ids: torch.Tensor, places: Places
    ) -> torch.Tensor:
        """Weights of ids.

        Raises:
            ValueError: The router is in training: it samples, and does not tell what.
        """
        import torch  # noqa: PLC0415 - imports without torch

        del scores
        if places.router.training:
            raise ValueError("a router that samples in training does not tell what it drew")
        jitter = places.find(("router_jitter_noise",))
        without_first = logits.scatter(-1, ids[..., :1], -float("inf"))
        weights = []
        for rank, left in enumerate((logits, without_first)):
            best = left.amax(-1, keepdim=True)
            is_far = (best - logits) / torch.maximum(logits.abs(), best) > 2 * jitter
            shares = left.masked_fill(is_far, -float("inf")).softmax(-1)
            weights.append(shares.gather(-1, ids[..., rank : rank + 1]))
        return torch.cat(weights, -1)


NORMALISED: Final = ScoreWeights(normalised=True)
"""Softmax before top-k, renormalised over the selected (Mixtral)."""
