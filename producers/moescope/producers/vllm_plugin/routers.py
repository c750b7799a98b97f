"""The MoE layers of a loaded model, and why they may not be recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moescope.core.vocabulary import RankOrder, ScoreKind


@dataclass(frozen=True, slots=True)
class MoeLayer:
    """One MoE layer.

    Attributes:
        layer: Decoder-layer index.
        module: vLLM's `MoERunner`.
        router: Its router.
        experts: Number of logical experts.
        top_k: Experts per token.
    """

    layer: int
    module: Any
    router: Any
    experts: int
    top_k: int


@dataclass(frozen=True, slots=True)
class ModelRouting:
    """The routing of a model.

    Attributes:
        layers: Ascending; empty for a dense model.
        experts: E, the same for all layers.
        top_k: k, likewise.
        score_kind: The scoring family.
        rank_order: What ids in descending order of weight are in order of.
        refusal: Why nothing can be recorded, or empty.
    """

    layers: tuple[MoeLayer, ...]
    experts: int = 0
    top_k: int = 0
    score_kind: ScoreKind = ScoreKind.UNKNOWN
    rank_order: RankOrder = RankOrder.WEIGHT
    refusal: str = ""


def model_routing(model: Any) -> ModelRouting:
    """Find a model's MoE layers.

    A layer is known by what it has: a router that computes routing, and the number of a layer.
    """
    layers = tuple(
        sorted(
            (_layer(module) for module in model.modules() if _is_moe_layer(module)),
            key=lambda found: found.layer,
        )
    )
    if not layers:
        return ModelRouting(())
    first = layers[0]
    kind, order = _scoring(layers)
    return ModelRouting(
        layers, first.experts, first.top_k, kind, order, next(filter(None, _refusals(layers)), "")
    )


def _is_moe_layer(module: Any) -> bool:
    router = getattr(module, "router", None)
    return hasattr(router, "select_experts") and hasattr(module, "layer_name")


def _layer(module: Any) -> MoeLayer:
    config = module.moe_config
    # vLLM's number of experts includes the copies that load balancing adds.
    experts = int(getattr(config, "num_logical_experts", config.num_experts))
    return MoeLayer(
        int(module.layer_id), module, module.router, experts, int(config.experts_per_token)
    )


def _refusals(layers: tuple[MoeLayer, ...]) -> tuple[str, ...]:
    shapes = {(one.experts, one.top_k) for one in layers}
    return (
        "layers with different numbers of experts" if len(shapes) > 1 else "",
        "a layer number twice" if len({one.layer for one in layers}) < len(layers) else "",
        *(_refusal_of(one) for one in layers),
    )


def _refusal_of(layer: MoeLayer) -> str:
    config = layer.module.moe_config
    if not hasattr(layer.router, "_compute_routing"):
        return f"unknown router {type(layer.router).__name__}"
    if "ZeroExpert" in type(layer.router).__name__:
        return "zero experts, which vLLM turns into expert 0"
    method = getattr(layer.module, "_quant_method", None)
    if getattr(method, "is_monolithic", False):
        return "monolithic kernel, which routes by itself"
    if getattr(config, "is_sequence_parallel", False):
        return "sequence parallelism"
    if getattr(config, "pcp_size", 1) > 1:
        return "prefill context parallelism"
    return ""


def _scoring(layers: tuple[MoeLayer, ...]) -> tuple[ScoreKind, RankOrder]:
    """The scoring family, and whether weights order experts as their selection did."""
    router = layers[0].router
    if getattr(router, "custom_routing_function", None) is not None:
        return ScoreKind.UNKNOWN, RankOrder.WEIGHT
    has_bias = getattr(router, "e_score_correction_bias", None) is not None
    if getattr(router, "use_grouped_topk", False) or "Grouped" in type(router).__name__:
        kind = ScoreKind.GROUPED
    else:
        kind = _SCORE_KINDS.get(str(getattr(router, "scoring_func", "")), ScoreKind.UNKNOWN)
    knows_order = kind is not ScoreKind.UNKNOWN and not has_bias
    return kind, RankOrder.SELECTION_SCORE if knows_order else RankOrder.WEIGHT


_SCORE_KINDS = {"softmax": ScoreKind.SOFTMAX, "sigmoid": ScoreKind.SIGMOID}
