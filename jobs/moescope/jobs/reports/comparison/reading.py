"""The rows of one side, read from its batch logs once, a batch at a time."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from moescope.core.batchlog import HEADER_BYTES, BatchLogReader
from moescope.core.batchlog.partition import list_segments
from moescope.core.batchlog.scan import SegmentScanner
from moescope.core.clock import NO_TIME
from moescope.core.errors import InputError
from moescope.core.quantise import margins_of
from moescope.core.vocabulary import HEALTH_PHASES, UNCOUNTED_FLAGS, IdSpace, RankOrder
from moescope.core.wire import BatchDecodeError, decode_batch
from moescope.jobs.reports.comparison.losses import LogLosses
from moescope.jobs.reports.comparison.sides import Selection, values_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from moescope.core.batch import BatchHeader, RoutingBatch
    from moescope.core.batchlog import ReadResult
    from moescope.jobs.reports.comparison.sides import Side

JoinBy = Literal["content", "request"]
Rows = np.ndarray[tuple[int], np.dtype[np.void]]
"""One record per token: `row_type`."""

NO_EXPERT: Final = 65_535
"""In `top1`: not known. No model has an expert of this number."""
_RECORDS_AT_ONCE: Final = 64
_MOST_VALUES: Final = 1_000
_HEALTHY: Final = np.array(sorted(HEALTH_PHASES), np.uint8)


class RouteShape(NamedTuple):
    """What two rows must have in common to be compared; of the layers, some.

    Attributes:
        experts: E.
        top_k: k.
        layers: Decoder-layer indices.
        id_space: Logical or physical ids.
        map_version: Of physical ids; 0 for logical ones, which have none.
    """

    experts: int
    top_k: int
    layers: tuple[int, ...]
    id_space: IdSpace
    map_version: int

    def words(self) -> str:
        """In one line."""
        ids = self.id_space.name.lower()
        if self.id_space is IdSpace.PHYSICAL:
            ids += f" (map version {self.map_version})"
        layers = ", ".join(map(str, self.layers))
        return f"{self.experts} experts, top-{self.top_k}, layers {layers}, {ids} ids"


@dataclass(slots=True)
class SideFacts:
    """What was read of a side.

    Attributes:
        shape: Of its routes; None before the first row.
        models, revisions, nodes, engines, origins, rank_orders: What its headers say.
        rows: Counted tokens that could be paired.
        faulty_rows: Left out: an expert twice in a layer, or one that does not exist.
        keyless_rows: Left out: no content key.
        uncounted_rows: Left out: context, padding, recomputed, warm-up and draft rows.
        count_batches: Batches of counts fidelity, which have no rows.
        log: What of it cannot be read.
        has_margins: Whether any row has them.
        batches: Hashes of (node, incarnation, sequence) of the batches that rows were taken from.
    """

    shape: RouteShape | None = None
    models: set[str] = field(default_factory=set)
    revisions: set[str] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    engines: set[str] = field(default_factory=set)
    origins: set[str] = field(default_factory=set)
    rank_orders: set[RankOrder] = field(default_factory=set)
    rows: int = 0
    faulty_rows: int = 0
    keyless_rows: int = 0
    uncounted_rows: int = 0
    count_batches: int = 0
    log: LogLosses = field(default_factory=LogLosses)
    has_margins: bool = False
    batches: array[int] = field(default_factory=lambda: array("Q"))


def row_type(shape: RouteShape) -> np.dtype[np.void]:
    """What is kept of a token.

    `key` and `position` are what rows are joined on; `content` is the content key or 0; `request`
    a hash of the request's id; `order` the place in reading order; `ids` [L, k]; `top1` [L] an
    expert or `NO_EXPERT`; `margin` [L], NaN where not known.
    """
    layers = len(shape.layers)
    return np.dtype(
        [
            ("key", np.uint64), ("position", np.int32), ("content", np.uint64),
            ("time", np.int64), ("order", np.int64), ("request", np.uint64),
            ("ids", np.uint16, (layers, shape.top_k)), ("top1", np.uint16, (layers,)),
            ("margin", np.float32, (layers,)),
        ]
    )  # fmt: skip


class Reading(NamedTuple):
    """What is read of each row.

    Attributes:
        by: What rows will be joined on.
        layers: Those to compare, all of which the side has. What the others hold has no say, be it
            faulty or not.
    """

    by: JoinBy
    layers: tuple[int, ...]


def side_rows(side: Side, reading: Reading, facts: SideFacts, name: str) -> Iterator[Rows]:
    """Blocks of a side's countable rows, in reading order.

    Args:
        side: Where from.
        reading: What of its rows.
        facts: Filled on the way.
        name: What messages call the side.

    Raises:
        InputError: The side holds routes of several models or shapes.
        BatchLogError: A log cannot be read.
    """
    for batch in _batches(side, facts):
        _note_header(batch.header, facts)
        if batch.tokens is None or batch.routes is None:
            facts.count_batches += not batch.is_heartbeat
            continue
        _check_shape(batch.header, facts, name)
        rows = _rows_of(batch, side, reading, facts)
        if len(rows):
            facts.batches.append(_identity_hash(batch.header))
            yield rows


def shape_of(side: Side) -> RouteShape | None:
    """Of a side's first batch with routes; None if it has none.

    Raises:
        BatchLogError: A log cannot be read.
    """
    for batch in _batches(side, SideFacts()):
        if batch.tokens is not None and batch.routes is not None:
            return _shape_of_batches(batch.header)
    return None


def existing_values(side: Side) -> dict[str, set[str]]:
    """What a side's log has under each key of its conditions, whatever they ask for.

    Raises:
        BatchLogError: A log cannot be read.
    """
    found: dict[str, set[str]] = {key: set() for key in side.selection.conditions()}
    for batch in _batches(replace(side, selection=Selection()), SideFacts()):
        for key, values in found.items():
            if len(values) < _MOST_VALUES:
                values.update(values_of(batch, key))
    return found


def _batches(side: Side, facts: SideFacts) -> Iterator[RoutingBatch]:
    for partition in side.partitions:
        with BatchLogReader(side.root, partition) as reader:
            # From the very first record on: the reader counts those that are gone.
            offset, end = 0, reader.end_offset()
            while offset < end:
                found = reader.read(offset, max_records=_RECORDS_AT_ONCE)
                if found.next_offset == offset:
                    break
                facts.log.records += found.next_offset - offset
                offset = found.next_offset
                _note_losses(found, facts.log)
                for record in found.records:
                    size = HEADER_BYTES + len(record.payload)
                    facts.log.log_bytes += size
                    try:
                        batch = decode_batch(record.payload)
                    except BatchDecodeError:
                        facts.log.unreadable_records += 1
                        facts.log.unreadable_bytes += size
                        continue
                    if side.selection.admits(batch.header):
                        yield batch
            _note_tail(reader, facts.log)


def _note_losses(found: ReadResult, losses: LogLosses) -> None:
    if found.gap is not None:
        losses.unreadable_records += found.gap.count
        losses.removed_records += found.gap.count
    for damage in found.corrupt:
        losses.unreadable_records += damage.offset_to - damage.offset_from
        losses.unreadable_bytes += damage.raw_bytes
        losses.log_bytes += damage.raw_bytes


def _note_tail(reader: BatchLogReader, losses: LogLosses) -> None:
    """Count what no read returns: it may be a record that a writer has not finished."""
    segments = list_segments(reader.path)
    if not segments or reader.is_sealed():  # of a sealed log all records are known
        return
    scanner = SegmentScanner(segments[-1], reader.meta.name)
    try:
        scanner.run_to_end([])
        tail = len(scanner.tail_bytes())
    finally:
        scanner.close()
    losses.tail_bytes += tail
    losses.unreadable_bytes += tail
    losses.log_bytes += tail


def _identity_hash(header: BatchHeader) -> int:
    identity = f"{header.incarnation}/{header.sequence}/{header.node}".encode()
    return int.from_bytes(blake2b(identity, digest_size=8).digest(), "little")


def _note_header(header: BatchHeader, facts: SideFacts) -> None:
    facts.models.add(header.model)
    facts.revisions.add(header.revision)
    facts.nodes.add(header.node)
    facts.engines.add(" ".join(filter(None, (header.engine, header.engine_version))))
    facts.origins.add(header.origin.name.lower())


def _shape_of_batches(header: BatchHeader) -> RouteShape:
    return RouteShape(
        header.experts,
        header.top_k,
        tuple(header.layers.tolist()),
        header.id_space,
        header.expert_map_version if header.id_space is IdSpace.PHYSICAL else 0,
    )


def _check_shape(header: BatchHeader, facts: SideFacts, name: str) -> None:
    shape = _shape_of_batches(header)
    facts.rank_orders.add(header.rank_order)
    if len(facts.models) > 1:
        raise InputError(
            f"Side {name} holds routes of {len(facts.models)} models: "
            f"{', '.join(sorted(facts.models))}.",
            why="Experts of different models have nothing in common.",
            next_step=f"Choose one with --{name.lower()} model=….",
        )
    if facts.shape is not None and shape != facts.shape:
        raise InputError(
            f"Side {name} holds routes of different shapes.",
            why=f"{facts.shape.words()}; and {shape.words()}.",
            next_step=f"Choose one with --{name.lower()} node=… or revision=… (of several pipeline"
            " stages, one).",
        )
    facts.shape = shape


def _rows_of(batch: RoutingBatch, side: Side, reading: Reading, facts: SideFacts) -> Rows:
    tokens, routes, shape = batch.tokens, batch.routes, facts.shape
    assert tokens is not None  # noqa: S101 (the caller looked)
    assert routes is not None  # noqa: S101 - the caller looked
    assert shape is not None  # noqa: S101 - the caller looked
    kept = shape._replace(layers=reading.layers)
    places = _places(shape.layers, reading.layers)
    counted = (tokens.flags & np.uint8(UNCOUNTED_FLAGS)) == 0
    counted &= np.isin(tokens.phase, _HEALTHY)
    facts.uncounted_rows += int(np.count_nonzero(~counted))
    wanted = counted & _selected(batch, side)
    if reading.by == "content" and tokens.content_key is None:
        facts.keyless_rows += int(np.count_nonzero(wanted))
        return np.empty(0, row_type(kept))
    ids = routes.expert_ids[:, places]
    faulty = wanted & _is_faulty(ids, shape.experts)
    facts.faulty_rows += int(np.count_nonzero(faulty))
    at = np.flatnonzero(wanted & ~faulty)
    rows = np.zeros(len(at), row_type(kept))
    rows["request"] = _request_hashes(batch.requests.ids)[tokens.request[at]]
    rows["content"] = 0 if tokens.content_key is None else tokens.content_key[at]
    rows["key"] = rows["content" if reading.by == "content" else "request"]
    rows["position"] = tokens.position[at]
    rows["time"] = NO_TIME if tokens.event_time_us is None else tokens.event_time_us[at]
    rows["order"] = np.arange(facts.rows, facts.rows + len(at))
    rows["ids"] = ids[at]
    rows["top1"] = NO_EXPERT
    if routes.top1 is not None:
        first = routes.top1[places].T[at].astype(np.intp)
        rows["top1"] = np.take_along_axis(ids[at], first[..., None], axis=2)[..., 0]
    rows["margin"] = np.nan
    if routes.margin is not None:
        rows["margin"] = margins_of(routes.margin)[places].T[at]
        facts.has_margins |= len(at) > 0
    facts.rows += len(at)
    return rows


def _places(recorded: tuple[int, ...], wanted: tuple[int, ...]) -> slice | list[int]:
    """Where the wanted layers are; a slice, which copies nothing, where they are all."""
    return slice(None) if wanted == recorded else [recorded.index(layer) for layer in wanted]


def _selected(batch: RoutingBatch, side: Side) -> NDArray[np.bool_]:
    tokens, selection = batch.tokens, side.selection
    assert tokens is not None  # noqa: S101 (the caller looked)
    wanted = np.ones(len(tokens), np.bool_)
    if selection.phase is not None:
        wanted &= tokens.phase == selection.phase
    if selection.scene is not None:
        scenes = np.array([scene == selection.scene for scene in batch.requests.scenes], np.bool_)
        wanted &= scenes[tokens.request]
    return wanted


def _is_faulty(ids: NDArray[np.uint16], experts: int) -> NDArray[np.bool_]:
    """Rows [T] that no router can have chosen, from ids [T, L, k]."""
    ascending = np.sort(ids, axis=2)
    repeated: NDArray[Any] = (ascending[..., 1:] == ascending[..., :-1]).any(axis=(1, 2))
    return repeated | (ascending[..., -1] >= experts).any(axis=1)


def _request_hashes(ids: tuple[str, ...]) -> NDArray[np.uint64]:
    digests = [blake2b(name.encode(), digest_size=8).digest() for name in ids]
    return np.frombuffer(b"".join(digests), np.uint64)
