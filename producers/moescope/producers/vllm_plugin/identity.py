"""Who an engine is: what its configuration says for the header of each batch."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any, Final

from moescope.core.batch import Ranks
from moescope.core.vocabulary import RankOrder

if TYPE_CHECKING:
    from moescope.producers.vllm_plugin.routers import ModelRouting
    from moescope.producers.vllm_plugin.settings import PluginSettings

UNKNOWN_REVISION: Final = "unknown"
MODE_LABEL: Final = "exec_mode"


def recorder_arguments(
    settings: PluginSettings,
    config: Any,
    routing: ModelRouting,
    ranks: Ranks,
    version: str,
) -> dict[str, Any]:
    """Keyword arguments of the recorder of one engine."""
    return {
        "model": settings.model or _served_name(config.model_config),
        "revision": settings.revision or config.model_config.revision or UNKNOWN_REVISION,
        "layers": [one.layer for one in routing.layers],
        "experts": routing.experts,
        "top_k": routing.top_k,
        "directory": settings.directory,
        "node": _node(settings, ranks),
        "engine": "vllm",
        "engine_version": version,
        "score_kind": routing.score_kind,
        "rank_order": routing.rank_order if not routing.refusal else RankOrder.UNKNOWN,
        "fidelity": settings.fidelity,
        "sampling_ratio": settings.sampling_ratio,
        "token_id_kind": settings.token_ids,
        "ranks": ranks,
        "labels": {MODE_LABEL: execution_mode(config.compilation_config)},
        "cpu_budget": settings.cpu_budget,
        "ring_bytes": settings.ring_bytes,
    }


def execution_mode(compilation: Any) -> str:
    """How the engine runs its passes: `eager`, `compiled` or `cudagraph`."""
    if replays_graphs(compilation):
        return "cudagraph"
    return "compiled" if int(compilation.mode or 0) else "eager"


def replays_graphs(compilation: Any) -> bool:
    """Whether CUDA graphs may replay what Python does not see."""
    mode = getattr(compilation, "cudagraph_mode", None)
    return mode is not None and getattr(mode, "name", "NONE") != "NONE"


def engine_ranks(config: Any, groups: Any) -> Ranks:
    """This worker's place; −1 where there is but one.

    Args:
        config: vLLM's `ParallelConfig`.
        groups: vLLM's module of parallel groups.
    """
    has_experts_apart = getattr(config, "enable_expert_parallel", False)
    return Ranks(
        data_parallel=(int(config.data_parallel_rank) if config.data_parallel_size > 1 else -1),
        tensor_parallel=(
            int(groups.get_tp_group().rank_in_group) if config.tensor_parallel_size > 1 else -1
        ),
        pipeline_parallel=(
            int(groups.get_pp_group().rank_in_group) if config.pipeline_parallel_size > 1 else -1
        ),
        expert_parallel=int(groups.get_ep_group().rank_in_group) if has_experts_apart else -1,
    )


def _served_name(config: Any) -> str:
    names = config.served_model_name
    if isinstance(names, str):
        return names
    return str(names[0]) if names else str(config.model)


def _node(settings: PluginSettings, ranks: Ranks) -> str | None:
    """The node's name, with the ranks that make several producers of one engine."""
    suffix = "".join(
        f"-{name}{rank}"
        for name, rank in (("dp", ranks.data_parallel), ("pp", ranks.pipeline_parallel))
        if rank >= 0
    )
    if not suffix:
        return settings.node
    return (settings.node or platform.node() or "vllm") + suffix
