"""Settings of a router, wherever a family keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

EXPERTS: Final = (
    "n_routed_experts", "num_experts", "moe_num_experts", "num_local_experts", "out_features",
)  # fmt: skip
TOP_K: Final = (
    "top_k", "moe_top_k", "num_experts_per_tok", "top_k_experts", "moe_topk", "moe_k",
    "num_experts_per_token",
)  # fmt: skip
GROUPS: Final = ("num_group", "n_group")
KEPT_GROUPS: Final = ("topk_group",)
NORMALISES: Final = ("norm_topk_prob",)
SCALE: Final = ("routed_scaling_factor", "route_scale", "router_scaling_factor")
BIASES: Final = (
    "e_score_correction_bias", "expert_bias", "moe_statics.e_score_correction_bias",
    "balancing_biases", "score_bias",
)  # fmt: skip
"""Names under which a setting goes, the more specific ones first."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where a router's settings may be: on itself, on the block that owns it, in its config."""

    router: torch.nn.Module
    owner: torch.nn.Module | None
    config: object

    def find(self, names: tuple[str, ...], default: Any = None) -> Any:  # noqa: ANN401 - a setting
        """The first setting of these names that is there and not None."""
        for place in (self.router, self.owner, self.config):
            # In a configuration of transformers 4, top_k is how text is sampled.
            for name in (n for n in names if place is not self.config or n != "top_k"):
                value = _attribute(place, name)
                if value is not None:
                    return value
        return default

    def holder(self, names: tuple[str, ...]) -> tuple[torch.nn.Module, str] | None:
        """The module and the attribute that hold a tensor: it may be replaced, so no tensor."""
        for place in (self.router, self.owner):
            for name in names:
                if place is not None and hasattr(_attribute(place, name), "ndim"):
                    path, _, last = name.rpartition(".")
                    return (place.get_submodule(path) if path else place), last
        return None


def _attribute(place: object, path: str) -> Any:  # noqa: ANN401 - a setting - settings have many types
    for name in path.split("."):
        place = getattr(place, name, None)
    return place
