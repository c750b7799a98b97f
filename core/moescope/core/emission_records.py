"""An emission as records of a topic, and put together again on the other side.

First comes the state of each partition, so that a processor that takes one over can find it by
its offset alone; then the emission without the states. Each is cut into parts that a broker
accepts.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from moescope.core.accounts import (
    BatchAccount,
    DeadLetter,
    DeadLetterCount,
    NodeStatus,
    PartitionProgress,
)
from moescope.core.batch import Placement
from moescope.core.emission import (
    Emission,
    FinishedWindows,
    HistogramKey,
    Judgement,
    LaneKey,
    PlacementNotice,
    SharedDelta,
    TrailingReference,
    WindowGroup,
)
from moescope.core.exceedance import Exceedance, ExceedanceKey, Exceedances
from moescope.core.metric_types import Family
from moescope.core.plain_codec import Kinds, PlainFormatError, pack, unpack
from moescope.core.router_sums import LagSums, PassSums, PositionCounts, SimilaritySums
from moescope.core.vocabulary import CloseReason, Level, ScopeKind, WindowKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PART_BYTES: Final = 4 << 20
MOST_PARTS: Final = 256
MOST_WAITING: Final = 64
"""Unfinished emissions, from different senders, that are remembered."""
WAITING_BYTES: Final = 1 << 30
STATE: Final = "state"
EMISSION: Final = "emission"
HANDED_OVER: Final = "handed over"
"""A state that the store's owner left for processors: no emission follows from its sender."""
_HEADER: Final = "moescope-part"

EMISSION_KINDS: Final = Kinds(
    (
        BatchAccount, CloseReason, DeadLetter, DeadLetterCount, Emission, Exceedance,
        ExceedanceKey, Family, FinishedWindows, HistogramKey, Judgement, LagSums, LaneKey, Level,
        NodeStatus, PartitionProgress, PassSums, Placement, PlacementNotice, PositionCounts,
        ScopeKind, SharedDelta, SimilaritySums, TrailingReference, WindowGroup, WindowKind,
    ),
    shared=(LaneKey,),
    aliases={"Exceedances": Exceedances},
)  # fmt: skip
"""Every class that appears in an emission."""


@dataclass(frozen=True, slots=True)
class EmissionRecord:
    """One record of the deltas topic."""

    key: bytes
    value: bytes
    headers: Sequence[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class _Part:
    """What a record's header says of it."""

    kind: str
    sender: str
    number: int
    part: int
    parts: int


def emission_records(emission: Emission, sender: str, number: int) -> list[EmissionRecord]:
    """The records of an emission, in the order in which they have to be sent.

    Its claim, `read_to`, `handled_to` and `unread` stay behind: they belong to whoever commits it.

    Args:
        emission: What a processor commits.
        sender: Name of the process, a new one for each start.
        number: Of the emission, rising from one to the next.
    """
    records: list[EmissionRecord] = []
    for progress in emission.progress:
        records += state_records(progress, sender, number)
    light = replace(
        emission,
        progress=tuple(replace(each, state=b"") for each in emission.progress),
        unread=frozenset(),
        read_to={},
        handled_to={},
        claim=None,
    )
    return records + _parts(EMISSION, sender, pack(light, EMISSION_KINDS), sender, number)


def state_records(
    progress: PartitionProgress, sender: str, number: int, kind: str = STATE
) -> list[EmissionRecord]:
    """The records of one partition's state, in the order in which they have to be sent.

    Args:
        progress: Of the partition.
        sender: Name of the process.
        number: Of the emission.
        kind: `STATE` as a part of an emission, `HANDED_OVER` by itself.
    """
    data = pack(progress, EMISSION_KINDS)
    return _parts(kind, f"{STATE}/{progress.partition}", data, sender, number)


def _parts(kind: str, key: str, data: bytes, sender: str, number: int) -> list[EmissionRecord]:
    pieces = [data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)]
    return [
        EmissionRecord(
            key.encode(),
            piece,
            [(_HEADER, json.dumps([kind, sender, number, part, len(pieces)]).encode())],
        )
        for part, piece in enumerate(pieces)
    ]


def state_key(partition: str) -> bytes:
    """Key of the records that hold a partition's state."""
    return f"{STATE}/{partition}".encode()


def read_state(records: Iterable[EmissionRecord]) -> PartitionProgress:
    """The progress, with its state, whose first part is the first of some records.

    Args:
        records: Of the deltas topic, from that part's offset on; what others sent in between is
            passed over, and no more is taken than needed.

    Raises:
        PlainFormatError: There is no such state, or it ends too early.
        PlainVersionError: It was written by a newer moescope.
    """
    pieces: list[bytes] = []
    key, first = b"", None
    for record in records:
        part = _part_of(record)
        if first is None:
            if part is None or part.kind == EMISSION or part.part != 0:
                raise PlainFormatError("A record is not the beginning of a partition's state.")
            key, first = record.key, part
        elif part is None or record.key != key or not _continues(first, part, len(pieces)):
            continue
        pieces.append(record.value)
        if len(pieces) == first.parts:
            return _progress(b"".join(pieces))
    raise PlainFormatError("A partition's state ends too early.")


def _progress(data: bytes) -> PartitionProgress:
    progress = unpack(data, EMISSION_KINDS)
    if not isinstance(progress, PartitionProgress):
        raise PlainFormatError(f"A partition's state is a {type(progress).__name__}.")
    return progress


def _continues(first: _Part, part: _Part, place: int) -> bool:
    return part == replace(first, part=place)


@dataclass(slots=True)
class _Waiting:
    """An emission whose last part has not come yet."""

    number: int
    begins_at: int
    states: dict[bytes, list[bytes]] = field(default_factory=dict)
    pieces: list[bytes] = field(default_factory=list)
    held: int = 0

    def add(self, record: EmissionRecord, part: _Part) -> bool:
        """Take a part; False if it does not continue what is here."""
        pieces = self.pieces if part.kind == EMISSION else self.states.setdefault(record.key, [])
        if part.part != len(pieces):
            return False
        pieces.append(record.value)
        self.held += len(record.value)
        return True


class EmissionAssembler:
    """Puts emissions together from records in the topic's order.

    Senders may be interleaved. What a sender left unfinished is forgotten when it begins another
    one, or when too much waits.

    Attributes:
        forgotten: Emissions whose records were there in part only.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()
        self._lost = ("", 0)
        self.forgotten = 0

    @property
    def begins_at(self) -> int | None:
        """Where the first unfinished emission begins; None: there is none."""
        return min((each.begins_at for each in self._waiting.values()), default=None)

    def add(self, record: EmissionRecord, offset: int = 0) -> Emission | None:
        """Take the next record; an emission when it is the last of one.

        Args:
            record: Of the topic.
            offset: Its place there.

        Raises:
            PlainFormatError: The record is not of an emission, or damaged; it is passed over.
            PlainVersionError: It was written by a newer moescope.
        """
        part = _part_of(record)
        if part is None:
            raise PlainFormatError("A record is not of an emission.")
        if part.kind == HANDED_OVER or (part.sender, part.number) == self._lost:
            return None
        waiting = self._waiting.get(part.sender)
        if waiting is not None and waiting.number != part.number:
            self._forget(part.sender)
            waiting = None
        if waiting is None:
            waiting = self._waiting[part.sender] = _Waiting(part.number, offset)
        if not waiting.add(record, part):
            self._forget(part.sender)
            return None
        if part.kind == EMISSION and part.part + 1 == part.parts:
            return self._finish(part.sender)
        self._waiting.move_to_end(part.sender)
        while len(self._waiting) > MOST_WAITING or self._held() > WAITING_BYTES:
            self._forget(next(iter(self._waiting)))
        return None

    def _finish(self, sender: str) -> Emission | None:
        waiting = self._waiting[sender]
        try:
            emission = _assembled(waiting)
        except PlainFormatError:
            del self._waiting[sender]
            raise
        if emission is None:
            self._forget(sender)
        else:
            del self._waiting[sender]
        return emission

    def _held(self) -> int:
        return sum(each.held for each in self._waiting.values())

    def _forget(self, sender: str) -> None:
        # Its further parts are passed over, so that it is counted once.
        self._lost = (sender, self._waiting.pop(sender).number)
        self.forgotten += 1


def _assembled(waiting: _Waiting) -> Emission | None:
    """The emission; None where the states of some partitions were not there to read."""
    emission = unpack(b"".join(waiting.pieces), EMISSION_KINDS)
    if not isinstance(emission, Emission):
        raise PlainFormatError("The value of a record is no emission.")
    states = {
        progress.partition: progress
        for progress in (_progress(b"".join(each)) for each in waiting.states.values())
    }
    if any(each.partition not in states for each in emission.progress):
        return None
    return replace(emission, progress=tuple(states[each.partition] for each in emission.progress))


def _part_of(record: EmissionRecord) -> _Part | None:
    """What a record's header says; None where it has no usable one."""
    for name, value in record.headers:
        if name == _HEADER:
            try:
                kind, sender, number, part, parts = json.loads(value)
            except (ValueError, TypeError, RecursionError):
                return None
            texts = isinstance(sender, str) and kind in {STATE, EMISSION, HANDED_OVER}
            numbers = all(type(each) is int for each in (number, part, parts))
            if texts and numbers and 0 <= part < parts <= MOST_PARTS:
                return _Part(kind, sender, number, part, parts)
            return None
    return None
