"""What a recorder says about itself: model, node, engine, and the fidelity it starts with."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from moescope.core.batch import BatchHeader, DropCounters, Placement, Ranks
from moescope.core.errors import InputError
from moescope.core.vocabulary import (
    Fidelity,
    IdSpace,
    Origin,
    RankOrder,
    ScoreKind,
    TokenIdKind,
)
from moescope.producers.ring.rows import RowShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What every batch header of one incarnation repeats; see `moescope.core.batch.BatchHeader`.

    A ring holds the one that its recorder started with; `Terms` say what has changed since.

    Attributes:
        weight_bits: 4, 8 or 16 bits per routing weight on the wire, where weights are recorded.
    """

    node: str
    model: str
    revision: str
    layers: tuple[int, ...]
    experts: int
    top_k: int
    engine: str = ""
    engine_version: str = ""
    origin: Origin = Origin.MODEL
    id_space: IdSpace = IdSpace.LOGICAL
    expert_map_version: int = 0
    score_kind: ScoreKind = ScoreKind.UNKNOWN
    rank_order: RankOrder = RankOrder.UNKNOWN
    fidelity: Fidelity = Fidelity.FULL
    sampling_ratio: float = 1.0
    token_id_kind: TokenIdKind = TokenIdKind.OFF
    weight_bits: int = 8
    ranks: Ranks = field(default_factory=Ranks)
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def shape(self) -> RowShape:
        """Shape of this producer's rows."""
        return RowShape(len(self.layers), self.top_k, self.experts)

    def header(
        self,
        incarnation: int,
        sequence: int,
        *,
        watermark_us: int,
        encoded_at_us: int,
        drops: DropCounters,
        placement: Placement | None = None,
    ) -> BatchHeader:
        """The header of one batch."""
        return BatchHeader(
            node=self.node,
            incarnation=incarnation,
            sequence=sequence,
            model=self.model,
            revision=self.revision,
            experts=self.experts,
            top_k=self.top_k,
            layers=np.array(self.layers, np.uint16),
            watermark_us=watermark_us,
            encoded_at_us=encoded_at_us,
            engine=self.engine,
            engine_version=self.engine_version,
            origin=self.origin,
            id_space=self.id_space,
            expert_map_version=self.expert_map_version,
            score_kind=self.score_kind,
            rank_order=self.rank_order,
            fidelity=self.fidelity,
            sampling_ratio=self.sampling_ratio,
            token_id_kind=self.token_id_kind,
            ranks=self.ranks,
            labels=self.labels,
            drops=drops,
            placement=placement,
        )

    def to_bytes(self) -> bytes:
        """As the ring stores it."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> Profile:
        """As the ring stored it.

        Raises:
            InputError: A recorder of another release wrote something that this one cannot read.
        """
        try:
            stored: dict[str, Any] = json.loads(raw)
            for name, kind in _ENUMS.items():
                stored[name] = kind(stored[name])
            stored["layers"] = tuple(stored["layers"])
            stored["ranks"] = Ranks(**stored["ranks"])
            return cls(**stored)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                "The ring's description of its producer cannot be read.",
                why=str(error),
                next_step="Run an agent of the same release as the recorder.",
            ) from error


_ENUMS = {
    "origin": Origin,
    "id_space": IdSpace,
    "score_kind": ScoreKind,
    "rank_order": RankOrder,
    "fidelity": Fidelity,
    "token_id_kind": TokenIdKind,
}
