"""Find a model's routers by their structure, and read what a router's forward returns.

Supported are OLMoE and Mixtral of transformers 5: their router takes the softmax of its logits over
all experts, then the k largest, and returns (logits [N, E], weights [N, k], expert ids [N, k]),
ids in descending order of probability.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from moescope.core.errors import InputError

if TYPE_CHECKING:
    import torch

FAMILIES: Final = ("mixtral", "olmoe")
"""`config.model_type` of models whose router is known to be softmax before top-k."""

_LAYER: Final = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_OUTPUTS: Final = 3


@dataclass(frozen=True, slots=True)
class RouterShape:
    """What a recorder has to be told about a model.

    Attributes:
        layers: Decoder-layer indices of the MoE layers, ascending.
        experts: E.
        top_k: k.
    """

    layers: tuple[int, ...]
    experts: int
    top_k: int


class LayerRouter(NamedTuple):
    """A router and the decoder layer that it belongs to."""

    layer: int
    module: torch.nn.Module
    experts: int
    top_k: int


class RouterOutput(NamedTuple):
    """What a router decided for N rows: logits [N, E], weights [N, k], ids [N, k]."""

    logits: torch.Tensor
    weights: torch.Tensor
    expert_ids: torch.Tensor


def find_routers(model: torch.nn.Module) -> list[LayerRouter]:
    """The routers of a model, by ascending layer.

    Raises:
        InputError: The model is of no supported family, or has no router of the known form.
    """
    family = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    if family not in FAMILIES:
        raise InputError(
            f"The probe does not know the router of a model of the family {family!r}.",
            why=f"It knows those of {' and '.join(FAMILIES)} (softmax before top-k).",
            next_step="Record the expert ids yourself with Recorder.record().",
        )
    found = []
    for name, module in model.named_modules():
        layer = _LAYER.search(name)
        if layer and name.rpartition(".")[2] in {"gate", "router"} and _is_router(module):
            experts, top_k = int(module.num_experts), int(module.top_k)
            found.append(LayerRouter(int(layer[1]), module, experts, top_k))
    found.sort(key=lambda router: router.layer)
    shapes = {(router.experts, router.top_k) for router in found}
    if len(shapes) != 1 or len({router.layer for router in found}) != len(found):
        raise InputError(
            f"The routers of this {family} model are not where the probe looks for them.",
            why=f"Found {len(found)} modules `gate` with `weight`, `top_k` and `num_experts`, of "
            f"{len(shapes)} shapes; expected one per MoE layer, all alike.",
            next_step="Use transformers 5, or record with Recorder.record().",
        )
    return found


def router_shape(model: torch.nn.Module) -> RouterShape:
    """Layers, experts and top-k of a model, as `Recorder` wants to know them.

    Raises:
        InputError: The model is of no supported family, or has no router of the known form.
    """
    routers = find_routers(model)
    layers = tuple(router.layer for router in routers)
    return RouterShape(layers, routers[0].experts, routers[0].top_k)


def read_output(output: object) -> RouterOutput:
    """Name the parts of a router's output.

    Raises:
        TypeError: It is no triple.
    """
    if not isinstance(output, tuple) or len(output) != _OUTPUTS:
        raise TypeError(f"the router returned {type(output).__name__}, not (logits, weights, ids)")
    return RouterOutput(*(part.detach() for part in output))


def _is_router(module: Any) -> bool:  # noqa: ANN401 - that is what is asked
    weight: Any = getattr(module, "weight", None)
    return (
        hasattr(module, "top_k")
        and hasattr(module, "num_experts")
        and getattr(weight, "ndim", 0) == 2  # noqa: PLR2004 - [E, hidden]
        and weight.shape[0] == module.num_experts
    )
