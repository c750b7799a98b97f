"""A routing batch as dictionaries, lists, numbers and strings: to compare, and to store as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moescope.core.batch import (
        BatchHeader,
        Quantised,
        Routes,
        RoutingBatch,
        TimeBlocks,
        TokenBlocks,
        Tokens,
    )

_TEXTS = ("node", "model", "revision", "engine", "engine_version")
_NUMBERS = (
    "incarnation",
    "sequence",
    "watermark_us",
    "encoded_at_us",
    "expert_map_version",
    "experts",
    "top_k",
    "origin",
    "id_space",
    "score_kind",
    "rank_order",
    "fidelity",
    "token_id_kind",
)
_TOKEN_COLUMNS = (
    "request",
    "position",
    "phase",
    "flags",
    "event_time_us",
    "pass_id",
    "step",
    "token_id",
    "content_key",
    "block",
)
_TOKEN_BLOCK_COLUMNS = (
    "request",
    "phase",
    "flags",
    "start_position",
    "tokens",
    "first_time_us",
    "last_time_us",
    "step",
    "counts",
    "dropped",
)
_TIME_BLOCK_COLUMNS = ("second_us", "phase", "scene", "tokens", "requests", "counts", "dropped")


def plain_batch(batch: RoutingBatch) -> dict[str, Any]:
    """Everything that a batch says; expert ids in ascending order of popularity ranks."""
    requests = batch.requests
    return _plain_header(batch.header) | {
        "requests": {
            "ids": list(requests.ids),
            "tasks": list(requests.tasks),
            "scenes": list(requests.scenes),
            "phase_starts": requests.phase_starts.tolist(),
            "cached_tokens": requests.cached_tokens.tolist(),
        },
        "tokens": _columns(batch.tokens, _TOKEN_COLUMNS),
        "routes": None if batch.routes is None else _plain_routes(batch.routes),
        "token_blocks": _columns(batch.token_blocks, _TOKEN_BLOCK_COLUMNS),
        "time_blocks": _plain_time_blocks(batch.time_blocks),
    }


def _plain_header(header: BatchHeader) -> dict[str, Any]:
    ranks, drops = header.ranks, header.drops
    plain: dict[str, Any] = {name: getattr(header, name) for name in _TEXTS}
    plain |= {name: int(getattr(header, name)) for name in _NUMBERS}
    if drops.unseen_rows:
        plain["unseen_rows"] = drops.unseen_rows
    if header.placement is not None:
        plain["placement"] = {
            "version": header.placement.version,
            "ranks": header.placement.ranks,
            "rank_of": header.placement.rank_of.tolist(),
        }
    return plain | {
        "sampling_ratio": header.sampling_ratio,
        "layers": header.layers.tolist(),
        "labels": dict(header.labels),
        "ranks": [
            ranks.data_parallel,
            ranks.tensor_parallel,
            ranks.pipeline_parallel,
            ranks.expert_parallel,
        ],
        "drops": [drops.ring_rows, drops.log_batches, drops.log_rows, drops.rejected_rows],
    }


def _columns(
    part: Tokens | TokenBlocks | TimeBlocks | None, names: tuple[str, ...]
) -> dict[str, Any] | None:
    if part is None:
        return None
    return {
        name: None if getattr(part, name) is None else getattr(part, name).tolist()
        for name in names
    }


def _plain_time_blocks(blocks: TimeBlocks | None) -> dict[str, Any] | None:
    plain = _columns(blocks, _TIME_BLOCK_COLUMNS)
    if plain is None or blocks is None:
        return None
    return plain | {"scenes": list(blocks.scenes)}


def _plain_routes(routes: Routes) -> dict[str, Any]:
    return {
        "expert_ids": routes.expert_ids.tolist(),
        "top1": None if routes.top1 is None else routes.top1.T.tolist(),
        "weights": _plain_codes(routes.weights),
        "entropy": _plain_codes(routes.entropy),
        "margin": _plain_codes(routes.margin),
        "dropped": None if routes.dropped is None else _rows(routes.dropped).astype(int).tolist(),
    }


def _plain_codes(quantised: Quantised | None) -> dict[str, Any] | None:
    if quantised is None:
        return None
    return {"bits": quantised.bits, "codes": _rows(quantised.codes).tolist()}


def _rows(planes: NDArray[Any]) -> NDArray[Any]:
    """Bring [L, T] into [T, L], and [k, L, T] into [T, L, k]."""
    return np.transpose(planes)
