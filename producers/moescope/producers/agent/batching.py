"""Frames of the ring → one routing batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from moescope.core.batch import BatchHeader, Routes, RoutingBatch, Tokens
from moescope.core.vocabulary import Fidelity, RankOrder
from moescope.producers.agent.counts import count_blocks

if TYPE_CHECKING:
    from moescope.producers.agent.grouping import GroupedRows
    from moescope.producers.profile import Profile

_TOKEN_COLUMNS: Final = (
    "position", "phase", "flags", "event_time_us", "pass_id", "step", "token_id", "content_key",
    "block",
)  # fmt: skip


def build_batch(profile: Profile, header: BatchHeader, grouped: GroupedRows) -> RoutingBatch:
    """The batch of grouped rows; without any row it is a heartbeat.

    Raises:
        BatchError: The rows contradict what a batch is.
    """
    if profile.fidelity is Fidelity.COUNTS:
        requests = grouped.requests()
        tokens, seconds = count_blocks(grouped, requests, len(profile.layers), profile.experts)
        if tokens is None:
            return RoutingBatch(header=header)
        return RoutingBatch(
            header=header, requests=requests, token_blocks=tokens, time_blocks=seconds
        )
    if not len(grouped.request):
        return RoutingBatch(header=header)
    columns: dict[str, Any] = grouped.columns
    return RoutingBatch(
        header=header,
        requests=grouped.requests(),
        tokens=Tokens(
            request=grouped.request,
            **{name: columns[name] for name in _TOKEN_COLUMNS if name in columns},
        ),
        routes=Routes.from_ids(
            columns["expert_ids"],
            profile.experts,
            ranked=profile.rank_order is not RankOrder.UNKNOWN,
            dropped=columns.get("dropped"),
            weights=columns.get("weights"),
            weight_bits=profile.weight_bits,
            entropy=columns.get("entropy"),
            margin=columns.get("margin"),
        ),
    )
