"""A router declared: where it is, what it returns, how it scores."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from moescope.core.vocabulary import RankOrder
from moescope.producers.torch_probe.families.forms import TRIPLE, Linear
from moescope.producers.torch_probe.families.scoring import Scoring
from moescope.producers.torch_probe.families.weighting import NORMALISED

if TYPE_CHECKING:
    from moescope.producers.torch_probe.families.forms import Forms
    from moescope.producers.torch_probe.families.weighting import Weighting


@dataclass(frozen=True, slots=True)
class RouterAdapter:
    """Routers of one kind: each of them is read by the same declaration.

    A model of one's own needs as much as this:

        register_family(RouterAdapter("mine", sites=("MyRouter",), forms=TRIPLE,
                                      scoring=Scoring("sigmoid")))

    Attributes:
        name: Of the kind.
        sites: Where the hooked modules are: a class name (`"MixtralTopKRouter"`), or the class of
            the block that owns it and its attribute there (`"MixtralSparseMoeBlock.gate"`).
        only_where: An attribute of the owner and its class's name; in another block the site is
            not one.
        forms: What a forward may return, see `Forms`.
        scoring: From logits to the selection score, entropy and margin.
        weighting: For forms without weights.
        linear: For forms without logits.
        is_sorted: Whether ids are returned in descending order of the selection score.
        rank_order: Of ids as they are delivered: `SELECTION_SCORE` sorts them where needed;
            `UNKNOWN` and `WEIGHT` leave them as they came.
        captures: Whether the tensors are those that the forward returns, or its arguments (of an
            experts module, where a block never calls its router's forward).
        keeps_input: Numbers of returned tensors after which the first argument is captured, too.
        flattens: Whether returned tensors are [B, S, …] and not [N, …].
        requires: Settings that have to have one of these values.
        experts: Names of the setting with E; () is for those that are common.
        top_k: Names of the setting with k; () is for those that are common. A number is k itself.
        extra_experts: Experts beyond that setting, which a router may choose, too.
        gates_tell_drops: Whether a gate of 0 is an assignment that had no room.
    """

    name: str
    sites: tuple[str, ...]
    only_where: tuple[str, str] | None = None
    forms: Forms = field(default_factory=lambda: dict(TRIPLE))
    scoring: Scoring = field(default_factory=Scoring)
    weighting: Weighting = NORMALISED
    linear: Linear = field(default_factory=Linear)
    is_sorted: bool = True
    rank_order: RankOrder = RankOrder.SELECTION_SCORE
    captures: Literal["output", "arguments"] = "output"
    keeps_input: frozenset[int] = frozenset()
    flattens: bool = False
    requires: tuple[tuple[str, tuple[object, ...]], ...] = ()
    experts: tuple[str, ...] = ()
    top_k: tuple[str, ...] | int = ()
    extra_experts: int = 0
    gates_tell_drops: bool = False
