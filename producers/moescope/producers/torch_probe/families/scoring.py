"""How a router's logits become the score that its top-k looks at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from moescope.core.errors import InputError
from moescope.core.vocabulary import ScoreKind

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

Score = Literal["softmax", "sigmoid", "sqrtsoftplus"]
_FAR: Final = 1e30


@dataclass(frozen=True, slots=True)
class Groups:
    """Group-limited routing: only experts of the best groups are eligible.

    Attributes:
        by: A group's score: its best expert's selection score, or the sum of its two best.
        when: A setting and the value at which groups are in use; always, if it is None.
        zero_where: Attributes of a router that gives ineligible experts the selection score 0 and
            not −∞: it chooses one of them if a bias has made an eligible one's negative.
    """

    by: Literal["best", "two_best"]
    when: tuple[str, str] | None = None
    zero_where: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scoring:
    """A scoring family.

    Attributes:
        score: What a logit becomes: entropy is that of s/Σs, weights are taken from it.
        score_setting: Name of a setting that tells `score` instead.
        selects: What top-k looks at: the score or the logit itself.
        has_bias: Whether a correction bias is added for the selection only.
        groups: Limits the selection to some groups of experts.
        kind: Told to readers; None: what follows from the rest.
    """

    score: Score = "softmax"
    score_setting: str = ""
    selects: Literal["score", "logit"] = "score"
    has_bias: bool = False
    groups: Groups | None = None
    kind: ScoreKind | None = None


class GroupLimit(NamedTuple):
    """Groups of one model: `kept` of `groups` groups of equal size are eligible.

    `ineligible` is the selection score of experts in the others.
    """

    by: Literal["best", "two_best"]
    groups: int
    kept: int
    ineligible: float


class Scored(NamedTuple):
    """Scores of N rows at L layers, each float32 [N, L, E].

    Attributes:
        scores: Of all experts, without bias.
        selection: What top-k looked at.
        is_eligible: bool; None where all are.
        logits: What the scores are the softmax of; None where they are something else.
    """

    scores: torch.Tensor
    selection: torch.Tensor
    is_eligible: torch.Tensor | None
    logits: torch.Tensor | None = None


def kind_of(scoring: Scoring, score: Score, limit: GroupLimit | None) -> ScoreKind:
    """What entropy and margin are made of."""
    if scoring.kind is not None:
        return scoring.kind
    if limit is not None:
        return ScoreKind.GROUPED
    if score != "softmax":
        return ScoreKind.SIGMOID
    return ScoreKind.SOFTMAX if scoring.selects == "score" else ScoreKind.TOPK_SOFTMAX


def score_named(name: object) -> Score:
    """The score that a setting names.

    Raises:
        InputError: None is known by that name.
    """
    for known in _SCORES:
        if known == name:
            return known
    raise InputError(
        f"The probe does not know the router's scoring function {name!r}.",
        why=f"It knows {', '.join(_SCORES)}.",
        next_step="Record the expert ids yourself with Recorder.record().",
    )


def score_logits(
    logits: torch.Tensor,
    score: Score,
    *,
    selects: Literal["score", "logit"] = "score",
    bias: torch.Tensor | None = None,
    limit: GroupLimit | None = None,
) -> Scored:
    """Score logits [N, L, E] as a family does.

    Args:
        logits: float32 [N, L, E].
        score: What a logit becomes.
        selects: What top-k looks at.
        bias: Correction bias [L, E], added for the selection only.
        limit: Groups.
    """
    scores = _SCORES[score](logits)
    selection = scores if selects == "score" else logits
    if bias is not None:
        selection = selection + bias
    if limit is None:
        return Scored(scores, selection, None, logits if score == "softmax" else None)
    is_eligible = _eligible(selection, limit)
    return Scored(scores, selection.masked_fill(~is_eligible, limit.ineligible), is_eligible)


def entropy_of(scored: Scored) -> torch.Tensor:
    """Entropy in nats, float32 [N, L], of s/Σs over eligible experts, without bias."""
    import torch  # noqa: PLC0415 - imports without torch

    scores, logits = scored.scores, scored.logits
    if logits is not None:
        # With d = logit − best logit, and Σ e^d = 1/(largest share): −Σ s·log s = −Σ s·d − log of
        # that share. One pass over all experts without a logarithm, in half the memory.
        distance = (logits - logits.amax(-1, keepdim=True)).clamp_min_(-_FAR)  # 0 · ∞ is no number
        return (distance.mul_(scores).sum(-1) + scores.amax(-1).log()).neg_().clamp_min_(0.0)
    if scored.is_eligible is not None:
        scores = scores.masked_fill(~scored.is_eligible, 0.0)
    shares = scores / scores.sum(-1, keepdim=True)
    # Cheaper than `special.entr`, which is not vectorised; 0 · log(tiny) is 0, too.
    return -(shares * shares.clamp_min(torch.finfo(shares.dtype).tiny).log()).sum(-1)


def margin_of(selection: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Gap [N, L] between the worst chosen expert of each row and the best that was not chosen.

    Never below 0: where the router compared in a precision of its own, rounding may put one that it
    did not choose in front here.

    Args:
        selection: What top-k looked at, [N, L, E].
        ids: The chosen experts, [N, L, k], all of them in range.
    """
    worst = selection.gather(-1, ids).amin(-1)
    rest = selection.scatter(-1, ids, -float("inf")).amax(-1)
    return (worst - rest).clamp_min(0.0)


def _eligible(selection: torch.Tensor, limit: GroupLimit) -> torch.Tensor:
    import torch  # noqa: PLC0415 - imports without torch

    grouped = selection.unflatten(-1, (limit.groups, -1))
    best = grouped.topk(1 if limit.by == "best" else 2, dim=-1).values.sum(-1)
    kept = best.topk(limit.kept, dim=-1).indices
    is_kept = torch.zeros_like(best, dtype=torch.bool).scatter_(-1, kept, True)  # noqa: FBT003 - torch takes it by place
    return is_kept.unsqueeze(-1).expand_as(grouped).flatten(-2)


def _softmax(logits: torch.Tensor) -> torch.Tensor:
    return logits.softmax(-1)


def _sigmoid(logits: torch.Tensor) -> torch.Tensor:
    return logits.sigmoid()


def _sqrtsoftplus(logits: torch.Tensor) -> torch.Tensor:
    import torch  # noqa: PLC0415 - imports without torch

    return torch.nn.functional.softplus(logits).sqrt()


_SCORES: Final[dict[Score, Callable[[torch.Tensor], torch.Tensor]]] = {
    "softmax": _softmax,
    "sigmoid": _sigmoid,
    "sqrtsoftplus": _sqrtsoftplus,
}
