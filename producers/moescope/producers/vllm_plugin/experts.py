"""Which expert-parallel rank holds which logical expert, and the version of that.

Read from vLLM 0.32: `model_executor/layers/fused_moe/expert_map_manager.py` for placements that
never change, `distributed/eplb/eplb_state.py` for those that load balancing (EPLB) rearranges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from moescope.core.batch import SEVERAL_RANKS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moescope.producers.vllm_plugin.routers import ModelRouting

FIRST_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class ExpertMap:
    """Where experts are, as long as it holds.

    Attributes:
        version: Rises with each change.
        rank_of: Integers [E], or [L, E]: the rank, or `SEVERAL_RANKS`.
        ranks: Number of expert-parallel ranks.
    """

    version: int
    rank_of: NDArray[Any]
    ranks: int


class Experts(Protocol):
    """Knows where a model's experts are."""

    def placed(self) -> ExpertMap | None:
        """Where they are in the pass that comes next; the same object until that changes.

        None where there are no expert-parallel ranks, or nobody knows.
        """
        ...


class SettledExperts:
    """Experts that stay where they are.

    Args:
        expert_map: Where that is.
    """

    def __init__(self, expert_map: ExpertMap | None) -> None:
        self._map = expert_map

    def placed(self) -> ExpertMap | None:
        """See `Experts`."""
        return self._map


class BalancedExperts:
    """Experts that EPLB moves. Never seen at work: it needs several GPUs.

    vLLM writes a new map into the tensor of the old one, and torch counts the writes: a look costs
    the comparison of two numbers, and only a changed map is copied from the device. Every rank
    writes the same maps, so one version is the same placement on all of them.

    Args:
        runner: vLLM's model runner, of either generation.
        routing: Of its model.
    """

    def __init__(self, runner: Any, routing: ModelRouting) -> None:
        self._runner = runner
        self._modules = [layer.module for layer in routing.layers]
        self._experts = routing.experts
        self._tensor: Any = None
        self._writes = 0
        self._map: ExpertMap | None = None

    def placed(self) -> ExpertMap | None:
        """See `Experts`."""
        model = self._model()
        if model is None:
            return None
        tensor = model.physical_to_logical_map
        writes = int(tensor._version)  # noqa: SLF001 - torch has no public counter
        if tensor is not self._tensor or writes != self._writes:
            self._map = self._read(model, tensor, writes)
            self._tensor, self._writes = tensor, writes
        return self._map

    def _model(self) -> Any:
        """The state of the model that is recorded: a draft model has one of its own."""
        states = getattr(self._runner.eplb_state, "model_states", {})
        for state in states.values():
            if any(layer is self._modules[0] for layer in state.model.moe_layers):
                return state
        return None

    def _read(self, state: Any, tensor: Any, writes: int) -> ExpertMap:
        of_module = {id(layer): index for index, layer in enumerate(state.model.moe_layers)}
        layers = [of_module[id(module)] for module in self._modules]
        slots = tensor.cpu().numpy()[layers]
        ranks = slots.shape[1] // int(state.model.num_local_physical_experts)
        version = FIRST_VERSION + writes
        if self._map is not None:  # a tensor in place of another one counts from 0
            version = max(version, self._map.version + 1)
        return ExpertMap(version, rank_of_logical(slots, self._experts, ranks), ranks)


def rank_of_logical(
    physical_to_logical: NDArray[Any], experts: int, ranks: int
) -> NDArray[np.int64]:
    """The rank that holds each logical expert.

    Args:
        physical_to_logical: Integers [L, P], the logical expert in each slot, negative where there
            is none; P / ranks slots belong to each rank, in order.
        experts: E.
        ranks: Number of ranks.

    Returns:
        int64 [L, E]; `SEVERAL_RANKS` where an expert has copies on several ranks, or none at all.
    """
    layer, slot = np.nonzero(physical_to_logical >= 0)
    rank = slot // (physical_to_logical.shape[1] // ranks)
    holds = np.zeros((len(physical_to_logical), experts, ranks), np.bool_)
    holds[layer, physical_to_logical[layer, slot], rank] = True
    return np.where(holds.sum(axis=-1) == 1, holds.argmax(axis=-1), SEVERAL_RANKS)


def settled_ranks(experts: int, ranks: int, strategy: str) -> NDArray[np.int64]:
    """The rank of each expert without load balancing, int64 [E].

    Args:
        experts: E.
        ranks: Number of ranks.
        strategy: `linear` (as even as possible, the first ranks one more) or `round_robin`.
    """
    if strategy == "round_robin":
        return np.arange(experts) % ranks
    held = [experts // ranks + (rank < experts % ranks) for rank in range(ranks)]
    return np.repeat(np.arange(ranks), held)


def experts_of(runner: Any, routing: ModelRouting, groups: Any) -> Experts:
    """What knows where the experts of a loaded model are.

    Args:
        runner: vLLM's model runner, of either generation.
        routing: Of its model.
        groups: vLLM's module of parallel groups.

    Raises:
        AttributeError: This version keeps its maps otherwise.
        RuntimeError: torch does not count what is written to the map.
    """
    config = runner.vllm_config.parallel_config
    if not getattr(config, "enable_expert_parallel", False):
        return SettledExperts(None)
    if getattr(config, "enable_eplb", False):
        balanced = BalancedExperts(runner, routing)
        balanced.placed()  # what does not work shows here, not in a pass
        return balanced
    ranks = int(groups.get_ep_group().world_size)
    # What was asked for is not what every model and kernel allows.
    strategy = str(routing.layers[0].module.expert_placement_strategy)
    return SettledExperts(
        ExpertMap(FIRST_VERSION, settled_ranks(routing.experts, ranks, strategy), ranks)
    )
