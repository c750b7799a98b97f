"""What a router family offers a probe, and what a probe learns from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from moescope.core.vocabulary import RankOrder, ScoreKind


class Routing(NamedTuple):
    """What the L routers of a model decided for the N rows of one pass, on the model's device.

    Attributes:
        expert_ids: Integer [N, L, k], in the family's rank order.
        weights: Floating [N, L, k], as the experts' outputs are multiplied with them; None where
            nobody asked for them.
        entropy: float32 [N, L] in nats; None where the family has no scores, or nobody asked.
        margin: float32 [N, L], the selection score's gap at the k-th place; None where there is
            no score, no expert behind the k-th place, or nobody asked.
        dropped: bool [N, L, k], not computed for want of capacity; None in families without it.
    """

    expert_ids: torch.Tensor
    weights: torch.Tensor | None
    entropy: torch.Tensor | None
    margin: torch.Tensor | None
    dropped: torch.Tensor | None


class RouterFamily(Protocol):
    """How to read the routers of one model.

    Attributes:
        name: The model's `config.model_type`, or an adapter's name.
        score_kind: What entropy and margin are made of.
        rank_order: What the order of `Routing.expert_ids` means.
        reads_output_alone: Whether what a forward returned is all that `capture` looks at: then it
            may as well be asked when the pass has ended.
    """

    @property
    def name(self) -> str: ...  # noqa: D102 - said above
    @property
    def reads_output_alone(self) -> bool: ...  # noqa: D102 - likewise
    @property
    def score_kind(self) -> ScoreKind: ...  # noqa: D102 - likewise
    @property
    def rank_order(self) -> RankOrder: ...  # noqa: D102 - likewise

    def capture(
        self,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        output: object,
    ) -> tuple[torch.Tensor, ...]:
        """Pick detached tensors of one forward: no arithmetic, no copy, no synchronisation.

        Raises:
            TypeError: The forward did not return what this family's routers return.
        """
        ...

    def parts_read(
        self, captured: tuple[torch.Tensor, ...], *, scores: bool, weights: bool
    ) -> frozenset[int]:
        """Which of the tensors that `capture` picked `interpret` reads.

        Args:
            captured: Of one router.
            scores: As for `interpret`.
            weights: Likewise.

        Raises:
            TypeError: The tensors have no form of this family.
        """
        ...

    def weights_read(self, modules: Sequence[torch.nn.Module]) -> tuple[int, ...]:
        """Which state the model's tensors have that `interpret` reads besides what was captured.

        Empty where it reads none; numbers that differ after a change.
        """
        ...

    def interpret(
        self,
        modules: Sequence[torch.nn.Module],
        captured: Sequence[tuple[torch.Tensor, ...]],
        *,
        scores: bool = True,
        weights: bool = True,
    ) -> Routing:
        """Read all layers of one pass at once.

        Args:
            modules: The hooked modules, in the order of `captured`.
            captured: What `capture` picked, by layer.
            scores: Whether entropy and margin are wanted: what only they need is not computed.
            weights: Whether weights are wanted, likewise.
        """
        ...


class LayerRouter(NamedTuple):
    """A router and the decoder layer that it belongs to.

    Attributes:
        layer: Index of the decoder layer.
        module: Whose forward is hooked.
        experts: E.
        top_k: k.
        family: How to read it; one object for all routers of a model.
    """

    layer: int
    module: torch.nn.Module
    experts: int
    top_k: int
    family: RouterFamily


@dataclass(frozen=True, slots=True)
class RouterShape:
    """What a recorder has to be told about a model.

    Attributes:
        layers: Decoder-layer indices of the MoE layers, ascending.
        experts: E.
        top_k: k.
        score_kind: What entropy and margin are made of.
        rank_order: What the order of recorded ids means.
    """

    layers: tuple[int, ...]
    experts: int
    top_k: int
    score_kind: ScoreKind
    rank_order: RankOrder
