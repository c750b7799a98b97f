"""Batch logs for comparisons, from plain rows; and what a dictionary makes of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
from support.batches import make_header

from moescope.core.batch import Requests, Routes, RoutingBatch, Tokens
from moescope.core.batchlog import BatchLogWriter, WriterSettings
from moescope.core.vocabulary import Phase, RankOrder, RowFlag
from moescope.core.wire import encode_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

LAYERS = (1, 3)


@dataclass(frozen=True)
class Row:
    """One token; `ids` [L][k] with the top-1 in front."""

    request: str
    position: int
    ids: tuple[tuple[int, ...], ...]
    key: int = 0
    time: int = 0
    phase: int = Phase.PREFILL
    flags: int = 0
    margin: tuple[float, ...] = (0.3, 0.3)


@dataclass(frozen=True)
class Batch:
    """Rows of one node's batch, and what is special about it."""

    rows: tuple[Row, ...]
    node: str = "n"
    with_keys: bool = True
    with_margin: bool = True
    is_ranked: bool = True
    scene: str = "chat"
    experts: int = 8
    header: tuple[tuple[str, Any], ...] = ()


def write_log(root: Path, batches: Iterable[Batch]) -> Path:
    """Write batches, each to its node's partition; the root.

    The producers' incarnations differ from folder to folder, as those of two runs do.
    """
    incarnation = int.from_bytes(blake2b(bytes(root), digest_size=8).digest(), "little")
    by_node: dict[str, list[Batch]] = {}
    for batch in batches:
        by_node.setdefault(batch.node, []).append(batch)
    for node, own in by_node.items():
        with BatchLogWriter(root, node, settings=WriterSettings(durability="none")) as writer:
            for sequence, batch in enumerate(own):
                writer.append(encode_batch(_routing_batch(batch, sequence, incarnation)))
            writer.seal()
    return root


def _routing_batch(batch: Batch, sequence: int, incarnation: int) -> RoutingBatch:
    rows = batch.rows
    names = sorted({row.request for row in rows})
    top_k = len(rows[0].ids[0])
    fields: dict[str, Any] = {
        "node": batch.node,
        "incarnation": incarnation,
        "sequence": sequence,
        "experts": batch.experts,
        "top_k": top_k,
        "layers": np.array(LAYERS, np.uint16),
        "rank_order": RankOrder.SELECTION_SCORE if batch.is_ranked else RankOrder.UNKNOWN,
    }
    return RoutingBatch(
        header=make_header(**fields | dict(batch.header)),
        requests=Requests(
            ids=tuple(names),
            tasks=tuple(names),
            scenes=tuple(batch.scene for _ in names),
            phase_starts=np.zeros((len(names), len(Phase)), np.int32),
            cached_tokens=np.zeros(len(names), np.int32),
        ),
        tokens=Tokens(
            request=np.array([names.index(row.request) for row in rows], np.int32),
            position=np.array([row.position for row in rows], np.int32),
            phase=np.array([row.phase for row in rows], np.uint8),
            flags=np.array([row.flags for row in rows], np.uint8),
            event_time_us=np.array([row.time for row in rows], np.int64),
            content_key=np.array([row.key for row in rows], np.uint64) if batch.with_keys else None,
        ),
        routes=Routes.from_ids(
            np.array([row.ids for row in rows]),
            batch.experts,
            ranked=batch.is_ranked,
            margin=np.array([row.margin for row in rows]) if batch.with_margin else None,
        ),
    )


def plain_rows(batches: Sequence[Batch], by: str) -> list[Row]:
    """The rows that a comparison may use, in the order in which sightings count.

    Rows without a known top-1 or margin carry an empty tuple of margins or no order.
    """
    found = []
    for node in sorted({batch.node for batch in batches}):
        for batch in batches:
            if batch.node != node or (by == "content" and not batch.with_keys):
                continue
            for row in batch.rows:
                if row.flags & (RowFlag.CONTEXT | RowFlag.PADDING | RowFlag.RECOMPUTED):
                    continue
                if row.phase in {Phase.WARMUP, Phase.DRAFT}:
                    continue
                if any(len(set(ids)) < len(ids) or max(ids) >= batch.experts for ids in row.ids):
                    continue
                found.append(
                    replace(
                        row,
                        margin=row.margin if batch.with_margin else (),
                        ids=row.ids if batch.is_ranked else tuple((-1, *ids) for ids in row.ids),
                        key=row.key if batch.with_keys else 0,
                    )
                )
    return sorted(found, key=lambda row: row.time)  # stable: reading order among equals
