"""What may change while a recorder runs: fidelity, why it is what it is, and where experts are."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from moescope.core.batch import Placement
from moescope.core.vocabulary import Fidelity

if TYPE_CHECKING:
    from moescope.producers.profile import Profile

FIDELITY_REASON: Final = "fidelity_reason"
"""Label: why the fidelity is not what the recorder was made with."""
UNSEEN_REASON: Final = "unseen_reason"
"""Label: why the unseen rows that a batch tells of are unseen. It is the agent's, not in terms."""
OWN_LABELS: Final = 3
"""These two, and that of the end of steps."""

_LENGTH: Final = struct.Struct("<I")
_PLACEMENT: Final = struct.Struct("<QI")


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What holds from one row of a ring on, until other terms follow.

    Attributes:
        labels: The recorder's own ones, beside those of its profile.
        placement: As `pack_placement` made it, or empty.
    """

    fidelity: Fidelity
    sampling_ratio: float
    expert_map_version: int
    labels: dict[str, str] = field(default_factory=dict)
    placement: bytes = b""

    @classmethod
    def of(cls, profile: Profile) -> Terms:
        """The terms that a recorder starts with."""
        return cls(
            fidelity=profile.fidelity,
            sampling_ratio=profile.sampling_ratio,
            expert_map_version=profile.expert_map_version,
        )

    def with_label(self, name: str, value: str) -> Terms:
        """The same with one label set, or removed where the value is empty."""
        labels = {key: kept for key, kept in self.labels.items() if key != name}
        return replace(self, labels=labels | ({name: value} if value else {}))

    def applied_to(self, profile: Profile) -> Profile:
        """The profile while these terms hold."""
        return replace(
            profile,
            fidelity=self.fidelity,
            sampling_ratio=self.sampling_ratio,
            expert_map_version=self.expert_map_version,
            labels=profile.labels | self.labels,
        )

    def to_bytes(self) -> bytes:
        """As the ring stores them."""
        stored = asdict(self)
        del stored["placement"]
        text = json.dumps(stored, separators=(",", ":"), ensure_ascii=False).encode()
        return _LENGTH.pack(len(text)) + text + self.placement

    @classmethod
    def from_bytes(cls, raw: bytes) -> Terms:
        """As the ring stored them.

        Raises:
            ValueError: They are of another release, or no terms.
        """
        try:
            (length,) = _LENGTH.unpack_from(raw)
            end = _LENGTH.size + length
            stored: dict[str, Any] = json.loads(raw[_LENGTH.size : end])
            stored["fidelity"] = Fidelity(stored["fidelity"])
            return cls(**stored, placement=raw[end:])
        except (KeyError, TypeError, struct.error) as error:
            raise ValueError(f"terms that cannot be read: {error}") from error


def pack_placement(placement: Placement) -> bytes:
    """A placement in few bytes: tables repeat themselves, and the ring repeats the table."""
    import zstandard  # noqa: PLC0415 - most recorders never need it

    table = placement.rank_of.astype("<u2").tobytes()
    head = _PLACEMENT.pack(placement.version, placement.ranks)
    return head + zstandard.ZstdCompressor().compress(table)


def unpack_placement(packed: bytes, layers: int, experts: int) -> Placement:
    """The placement that `pack_placement` packed, of a model with that many layers and experts.

    Raises:
        ValueError: It is of another shape, or damaged.
    """
    import zstandard  # noqa: PLC0415 - most recorders never need it

    size = layers * experts * 2
    try:
        version, ranks = _PLACEMENT.unpack_from(packed)
        table = zstandard.ZstdDecompressor().decompress(packed[_PLACEMENT.size :], size)
    except (struct.error, zstandard.ZstdError) as error:
        raise ValueError(f"a placement that cannot be read: {error}") from error
    rank_of = np.frombuffer(table, "<u2").astype(np.uint16).reshape(layers, experts)
    return Placement(version=version, rank_of=rank_of, ranks=ranks)
