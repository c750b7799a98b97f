"""The header section: what holds for every token, and how many rows each part has."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.batch import BatchHeader, DropCounters, Ranks
from moescope.core.vocabulary import (
    Fidelity,
    IdSpace,
    Origin,
    RankOrder,
    ScoreKind,
    TokenIdKind,
)
from moescope.core.wire.errors import BatchDecodeError
from moescope.core.wire.limits import check_limit
from moescope.core.wire.names import decode_string, encode_string

if TYPE_CHECKING:
    from enum import IntEnum

    from moescope.core.batch import RoutingBatch
    from moescope.core.wire.limits import Limits
    from moescope.core.wire.reader import ByteReader

_TIMES = struct.Struct("<qq")
_SOURCE = struct.Struct("<Qd4i")
_DROPS = struct.Struct("<4Q")
_ENUMS = struct.Struct("<6B")
_SHAPE = struct.Struct("<HHHHIIII")
_ENUM_FIELDS: dict[str, type[IntEnum]] = {
    "origin": Origin,
    "id_space": IdSpace,
    "score_kind": ScoreKind,
    "rank_order": RankOrder,
    "fidelity": Fidelity,
    "token_id_kind": TokenIdKind,
}


@dataclass(frozen=True, slots=True)
class Identity:
    """What names one batch, and no other."""

    node: str
    incarnation: int
    sequence: int


@dataclass(frozen=True, slots=True)
class RowCounts:
    """How many rows each part of a batch has; 0 where the part is absent."""

    requests: int
    tokens: int
    token_blocks: int
    time_blocks: int


def encode_header(batch: RoutingBatch) -> bytes:
    """Write the header section; the identity is in the envelope."""
    header = batch.header
    ranks, drops = header.ranks, header.drops
    names = [header.model, header.revision, header.engine, header.engine_version]
    names += [text for label in header.labels.items() for text in label]
    return b"".join(
        [
            _TIMES.pack(header.watermark_us, header.encoded_at_us),
            _SOURCE.pack(
                header.expert_map_version,
                header.sampling_ratio,
                ranks.data_parallel,
                ranks.tensor_parallel,
                ranks.pipeline_parallel,
                ranks.expert_parallel,
            ),
            _DROPS.pack(drops.ring_rows, drops.log_batches, drops.log_rows, drops.rejected_rows),
            _ENUMS.pack(*(getattr(header, name) for name in _ENUM_FIELDS)),
            _SHAPE.pack(
                header.experts,
                header.top_k,
                len(header.layers),
                len(header.labels),
                len(batch.requests),
                0 if batch.tokens is None else len(batch.tokens),
                0 if batch.token_blocks is None else len(batch.token_blocks),
                0 if batch.time_blocks is None else len(batch.time_blocks),
            ),
            header.layers.astype("<u2").tobytes(),
            *(encode_string(name) for name in names),
        ]
    )


def decode_header(
    reader: ByteReader, identity: Identity, limits: Limits
) -> tuple[BatchHeader, RowCounts]:
    """Read the header section and check the batch's shape against the limits.

    Raises:
        BatchDecodeError: It is malformed or over the limits.
    """
    watermark_us, encoded_at_us = reader.unpack(_TIMES)
    expert_map_version, sampling_ratio, *ranks = reader.unpack(_SOURCE)
    drops = reader.unpack(_DROPS)
    enums = _decode_enums(reader.unpack(_ENUMS))
    experts, top_k, layers, labels, *rows = reader.unpack(_SHAPE)
    counts = RowCounts(*rows)
    _check_shape(experts, top_k, layers, counts, limits)
    indices = np.frombuffer(reader.take(2 * layers), "<u2").astype(np.uint16)
    model, revision, engine, engine_version = (decode_string(reader) for _ in range(4))
    pairs = [(decode_string(reader), decode_string(reader)) for _ in range(labels)]
    if len(dict(pairs)) != labels:
        raise BatchDecodeError("The header names a label twice")
    reader.finish()
    header = BatchHeader(
        node=identity.node,
        incarnation=identity.incarnation,
        sequence=identity.sequence,
        model=model,
        revision=revision,
        experts=experts,
        top_k=top_k,
        layers=indices,
        watermark_us=watermark_us,
        encoded_at_us=encoded_at_us,
        engine=engine,
        engine_version=engine_version,
        expert_map_version=expert_map_version,
        sampling_ratio=sampling_ratio,
        ranks=Ranks(
            data_parallel=ranks[0],
            tensor_parallel=ranks[1],
            pipeline_parallel=ranks[2],
            expert_parallel=ranks[3],
        ),
        labels=dict(pairs),
        drops=DropCounters(
            ring_rows=drops[0], log_batches=drops[1], log_rows=drops[2], rejected_rows=drops[3]
        ),
        **enums,
    )
    return header, counts


def _decode_enums(values: tuple[int, ...]) -> dict[str, Any]:
    enums: dict[str, Any] = {}
    for (name, kind), value in zip(_ENUM_FIELDS.items(), values, strict=True):
        try:
            enums[name] = kind(value)
        except ValueError:
            raise BatchDecodeError(f"The header's {name} has the unknown value {value}") from None
    return enums


def _check_shape(experts: int, top_k: int, layers: int, counts: RowCounts, limits: Limits) -> None:
    check_limit("experts", experts, limits.experts)
    check_limit("experts per token", top_k, limits.top_k)
    check_limit("layers", layers, limits.layers)
    check_limit("requests", counts.requests, limits.requests)
    check_limit("tokens", counts.tokens, limits.tokens)
    check_limit("token blocks", counts.token_blocks, limits.blocks)
    check_limit("time blocks", counts.time_blocks, limits.blocks)
