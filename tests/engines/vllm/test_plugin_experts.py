"""Placements of experts as vLLM's own code makes and changes them, on the CPU, without ranks."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
pytest.importorskip("vllm", reason="`make engines` has vLLM")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM imports what torch has deprecated
    from vllm.config import ParallelConfig
    from vllm.distributed.eplb.eplb_state import (
        EplbModelState,
        EplbState,
        _commit_eplb_maps,
        _commit_eplb_maps_for_layer,
    )
    from vllm.model_executor.layers.fused_moe.expert_map_manager import determine_expert_map

from moescope.core.batch import SEVERAL_RANKS
from moescope.producers.vllm_plugin.experts import (
    BalancedExperts,
    SettledExperts,
    experts_of,
    settled_ranks,
)
from moescope.producers.vllm_plugin.routers import ModelRouting, MoeLayer

if TYPE_CHECKING:
    from numpy.typing import NDArray

LAYERS, EXPERTS, COPIES, RANKS = 3, 6, 2, 4
SLOTS = EXPERTS + COPIES
SUBJECT = "vLLM plugin"


class Balanced:
    """A runner's load balancer, in vLLM's structures, and the layers that it serves.

    Args:
        others: Models before the served one, as a draft model is.
    """

    def __init__(self, others: int = 0) -> None:
        parallel = ParallelConfig()
        parallel.enable_expert_parallel = parallel.enable_eplb = True
        self.eplb_state = EplbState(parallel, torch.device("cpu"))
        self.vllm_config = SimpleNamespace(parallel_config=parallel)
        for other in range(others):
            self.eplb_state.model_states[f"draft-{other}"] = model_state()
        self.served = model_state()
        self.eplb_state.model_states["served"] = self.served
        modules = self.served.model.moe_layers
        self.routing = ModelRouting(
            tuple(MoeLayer(5 + at, module, None, EXPERTS, 2) for at, module in enumerate(modules)),
            EXPERTS,
            2,
        )

    def arrange(self, slots: NDArray[np.int64]) -> None:
        """What `rearrange` does at its end."""
        with torch.inference_mode():  # in which vLLM steps
            _commit_eplb_maps(self.served, torch.from_numpy(slots))


def model_state() -> EplbModelState:
    """As `EplbState.add_model` makes it, without the groups of ranks."""
    first = EplbState.build_initial_global_physical_to_logical_map(EXPERTS, COPIES)
    slots = torch.tensor(first).unsqueeze(0).expand(LAYERS, -1).contiguous()
    given = dict.fromkeys(EplbModelState.__dataclass_fields__)
    given |= {
        "physical_to_logical_map_buffer": slots,
        "physical_to_logical_map": slots[:, :SLOTS],
        "logical_to_physical_map": torch.full((LAYERS, EXPERTS, 1024), -1),
        "logical_replica_count": torch.zeros((LAYERS, EXPERTS), dtype=torch.long),
        "expert_load_pass": torch.zeros((LAYERS, SLOTS), dtype=torch.int32),
        "model": SimpleNamespace(
            moe_layers=[object() for _ in range(LAYERS)],
            num_logical_experts=EXPERTS,
            num_local_physical_experts=SLOTS // RANKS,
        ),
    }
    return EplbModelState(**given)


def of_slots(slots: NDArray[np.int64]) -> list[list[int]]:
    """The rank of each expert, walking over the slots."""
    found = []
    for layer in slots:
        holders = [{int(at) // 2 for at in np.flatnonzero(layer == one)} for one in range(EXPERTS)]
        found.append([min(of) if len(of) == 1 else SEVERAL_RANKS for of in holders])
    return found


def shuffled(seed: int) -> NDArray[np.int64]:
    """A map with other copies in each layer."""
    random = np.random.default_rng(seed)
    return np.stack(
        [
            random.permutation([*range(EXPERTS), *random.choice(EXPERTS, COPIES)])
            for _ in range(LAYERS)
        ]
    )


def test_a_rearranged_map_is_the_next_version(verified: Any) -> None:
    """The tensor stays, and is written to: each write is seen, and nothing else is."""
    runner = Balanced()
    experts = BalancedExperts(runner, runner.routing)
    first = experts.placed()
    assert first is not None
    assert (first.version, first.ranks) == (1, RANKS)
    assert first.rank_of.tolist() == of_slots(np.array([[*range(EXPERTS), 0, 1]] * LAYERS))
    assert experts.placed() is first
    slots = shuffled(1)
    runner.arrange(slots)
    second = experts.placed()
    assert second is not None
    assert second.version > first.version
    assert second.rank_of.tolist() == of_slots(slots)
    assert experts.placed() is second
    verified(subject=SUBJECT, what="versions of EPLB's map, in vLLM's structures (never run)")


def test_layers_that_move_one_by_one_are_versions_of_their_own() -> None:
    """Asynchronous load balancing writes a layer at a time: passes in between are told apart."""
    runner = Balanced()
    experts = BalancedExperts(runner, runner.routing)
    slots = np.array([[*range(EXPERTS), 0, 1]] * LAYERS)
    new = shuffled(2)
    versions = [experts.placed()]
    for layer in (2, 0):
        with torch.inference_mode():
            _commit_eplb_maps_for_layer(runner.served, torch.from_numpy(new[layer]), layer)
        slots[layer] = new[layer]
        versions.append(experts.placed())
        assert versions[-1] is not None
        assert versions[-1].rank_of.tolist() == of_slots(slots)
    assert [one.version for one in versions if one] == [1, 2, 3]


def test_ranks_with_the_same_writes_have_the_same_versions() -> None:
    """One that did not look in between skips a number; it gives no other map that number."""
    diligent, idle = Balanced(), Balanced()
    looks = [BalancedExperts(runner, runner.routing) for runner in (diligent, idle)]
    for seed in range(3):
        for runner in (diligent, idle):
            runner.arrange(shuffled(seed))
        looks[0].placed()
    assert looks[0].placed() is not None
    versions = [look.placed() for look in looks]
    assert len({one.version for one in versions if one}) == 1


def test_a_map_that_grows_or_is_loaded_anew_is_a_later_version() -> None:
    """Elastic scaling replaces the tensor, a reload everything: versions still rise."""
    runner = Balanced()
    experts = BalancedExperts(runner, runner.routing)
    for seed in range(3):
        runner.arrange(shuffled(seed))
    before = experts.placed()
    slots = shuffled(9)
    runner.served.physical_to_logical_map = torch.from_numpy(slots)
    after = experts.placed()
    assert before is not None
    assert after is not None
    assert after.version > before.version
    assert after.rank_of.tolist() == of_slots(slots)


def test_a_draft_models_map_is_not_the_models() -> None:
    """Each model of the runner has a state; the one that has the recorded layers counts."""
    runner = Balanced(others=1)
    experts = experts_of(runner, runner.routing, None)
    slots = shuffled(4)
    runner.arrange(slots)
    placed = experts.placed()
    assert placed is not None
    assert placed.rank_of.tolist() == of_slots(slots)
    runner.eplb_state = None
    assert experts.placed() is None


@pytest.mark.parametrize("strategy", ["linear", "round_robin"])
@pytest.mark.parametrize(("experts", "ranks"), [(8, 4), (7, 3), (5, 1), (9, 8)])
def test_settled_experts_are_where_vllm_puts_them(
    experts: int, ranks: int, strategy: Any, verified: Any
) -> None:
    """Against the map that each rank makes for itself."""
    module = SimpleNamespace(expert_placement_strategy=strategy)
    parallel = ParallelConfig()
    runner = SimpleNamespace(vllm_config=SimpleNamespace(parallel_config=parallel))
    routing = ModelRouting((MoeLayer(0, module, None, experts, 2),), experts, 2)
    groups = SimpleNamespace(get_ep_group=lambda: SimpleNamespace(world_size=ranks))
    assert experts_of(runner, routing, groups).placed() is None
    parallel.enable_expert_parallel = True
    placed = experts_of(runner, routing, groups).placed()
    assert placed is not None
    assert placed.rank_of.tolist() == settled_ranks(experts, ranks, strategy).tolist()
    for rank in range(ranks):
        _, local, _ = determine_expert_map(ranks, rank, experts, strategy)
        own = np.ones(experts, bool) if local is None else local.numpy() >= 0
        assert (placed.rank_of == rank).tolist() == own.tolist()
    assert SettledExperts(None).placed() is None
    verified(subject=SUBJECT, what="placement of experts without EPLB, as vLLM computes it")
