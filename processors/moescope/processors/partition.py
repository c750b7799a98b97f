"""One partition: its producers, its lanes, its place in the log."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from moescope.core.accounts import BatchAccount, DeadLetter, NodeStatus, PartitionProgress
from moescope.core.batch import STEPS_ENDED, STEPS_LABEL
from moescope.core.clock import END_OF_TIME, NO_TIME
from moescope.core.dead_letter_reasons import DeadLetterReason
from moescope.core.emission import LaneKey, PlacementNotice
from moescope.core.printable import printable
from moescope.core.vocabulary import IdSpace, Phase
from moescope.core.wire import BatchDecodeError, decode_batch
from moescope.processors.kernels.records import PANE_US
from moescope.processors.lane import Lane
from moescope.processors.letters import LetterBox
from moescope.processors.nodes import NodeTable, Sighting, is_skewed
from moescope.processors.plausibility import implausible
from moescope.processors.row_sampling import RowSampling
from moescope.processors.rows import RowAccount
from moescope.processors.state_codec import pack_state, unpack_state
from moescope.processors.traffic_mix import mix_of, spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moescope.core.accounts import DeadLetterCount
    from moescope.core.batch import BatchHeader, RoutingBatch
    from moescope.core.emission import SharedDelta, TrailingReference, WindowGroup
    from moescope.processors.config import WindowConfig
    from moescope.processors.nodes import Node
    from moescope.processors.sources.protocol import SourceGap, SourceRecord

UNSEEN_REASON_LABEL = "unseen_reason"
LONGEST_REASON = 120
LONGEST_LOST_PANES = 900
"""Of a loss that took longer in event time only the last panes are marked: each costs memory."""


@dataclass(slots=True)
class PartitionOutput:
    """What a partition hands out between two commits, before windows are finished."""

    groups: list[WindowGroup] = field(default_factory=list)
    deltas: list[SharedDelta] = field(default_factory=list)
    references: list[TrailingReference] = field(default_factory=list)
    placements: list[PlacementNotice] = field(default_factory=list)
    batches: list[BatchAccount] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    dead_letter_counts: list[DeadLetterCount] = field(default_factory=list)


class Partition:
    """Processes one partition's records in offset order.

    Args:
        name, domain: the partition and its watermark domain.
        config: declared windows.
        progress: where the last commit stood, or None.

    Attributes:
        replaying: Memory is still being rebuilt: nothing may be committed.
        log_id: What tells the log that is processed from another of the same name; may be empty.
    """

    def __init__(
        self, name: str, domain: str, config: WindowConfig, progress: PartitionProgress | None
    ) -> None:
        self.name = name
        self.domain = domain
        self._config = config
        self._nodes = NodeTable()
        self._sampling = RowSampling(config.row_budget)
        self._lanes: dict[LaneKey, Lane] = {}
        self._output = PartitionOutput()
        self._letters = LetterBox(name, config.dead_letters_kept)
        self._skipped: list[int] = []
        self._stale_rows: dict[int, list[int]] = {}
        self._recent: deque[tuple[int, int]] = deque()
        self._saved: dict[LaneKey, dict[str, Any]] = {}
        self.sealed = False
        self.log_id = ""
        self.next_offset = 0
        self._emitted_to = 0
        self._was_processed = progress is not None
        if progress is not None:
            self._restore(progress)
        self.replaying = self.next_offset < self._emitted_to

    @property
    def watermark_us(self) -> int:
        """The partition's watermark."""
        return self._nodes.watermark_us

    # ---- records -------------------------------------------------------------------------

    def process(self, record: SourceRecord) -> None:
        """Process one record; below `emitted_to` only memory is rebuilt."""
        self._was_processed = True
        live = record.offset >= self._emitted_to
        self.catch_up(record.offset)
        self.next_offset = record.offset + 1
        if not live and record.offset in self._skipped:
            return
        try:
            batch = decode_batch(record.payload)
        except BatchDecodeError as error:
            if live:
                self._dead_letter(record, error.reason.value, error.what)
            return
        reason = implausible(batch)
        if reason:
            if live:
                self._dead_letter(
                    record, DeadLetterReason.OUT_OF_RANGE.value, f"Out of range: {reason}."
                )
            return
        self._process_batch(record, batch, live=live)

    def _process_batch(self, record: SourceRecord, batch: RoutingBatch, *, live: bool) -> None:
        header = batch.header
        node = self._nodes.node(header.node)
        missing = 0
        if live:
            sighting, missing = node.sight(header.incarnation, header.sequence)
            if sighting is not Sighting.NEW:
                self._skip(record, batch, sighting)
                return
        skewed = is_skewed(header, record.append_time_us)
        if live:
            self._account_lost(node, batch, missing)
            self._note_placement(batch)
        account = self._roll_up(batch, record.offset, live=live)
        if live:
            self._note_steps(node, batch)
            node.mix = mix_of(batch) or node.mix
            self._nodes.note_time(
                node, header.watermark_us, skewed=skewed, arrival_us=record.arrival_us
            )
            self._account(record, batch, account, missing, skewed=skewed)
            for lane in self._lanes.values():
                lane.close_passes(header.node, header.watermark_us)
            self._advance()

    def _roll_up(self, batch: RoutingBatch, offset: int, *, live: bool) -> RowAccount:
        if batch.is_heartbeat:
            return RowAccount()
        if batch.header.id_space is IdSpace.PHYSICAL:
            # A physical id names a replica: counted as an expert it would be a lie.
            return RowAccount(rows=_rows(batch), reasons=("physical_ids",))
        stale = [] if live else self._stale_rows.get(offset, [])
        account = self._lane(batch.header).roll_up(batch, offset, live=live, stale=stale)
        if live and account.stale_rows:
            self._stale_rows[offset] = list(account.stale_rows)
        return account

    def pass_gap(self, gap: SourceGap, append_time_us: int = NO_TIME) -> None:
        """Note offsets that can never be read: visible, and the stream goes on.

        What was gone before anything was processed, as to who comes late to an old log, is no
        loss. Where a replay begins says nothing about that: it may begin at the first record.
        """
        if gap.is_beginning and not self._was_processed:
            self.next_offset = gap.end
            return
        live = gap.end > self._emitted_to
        self.catch_up(self._emitted_to if live else gap.first)
        self.next_offset = gap.end
        if live:
            # What was processed before it went is missing from nothing.
            first = max(gap.first, self._emitted_to)
            records = gap.end - first
            self._letters.put_gap(
                DeadLetter(
                    partition=self.name,
                    offset=first,
                    append_time_us=append_time_us,
                    reason=DeadLetterReason.LOG_GAP.value,
                    detail=f"{records} records: {gap.reason}",
                    payload=gap.payload,
                ),
                records,
            )

    def note_loss(self, detail: str) -> None:
        """Note that the memory of the last commit is lost: windows that were open are short."""
        self._letters.put_loss(
            DeadLetter(
                partition=self.name,
                offset=self.next_offset,
                append_time_us=NO_TIME,
                reason=DeadLetterReason.STATE_LOST.value,
                detail=detail,
                payload=b"",
            )
        )

    def seal(self) -> None:
        """The partition was read to its sealed end: everything closes."""
        self.catch_up(max(self.next_offset, self._emitted_to))
        for lane in self._lanes.values():
            lane.seal(live=True)
        # The watermark stays where it was: reasons for closing must not depend on whether the
        # last records and the seal were committed together.
        self.sealed = True

    def catch_up(self, offset: int) -> None:
        """Leave replay when `offset` is the first record that was not committed yet."""
        if not self.replaying or offset < self._emitted_to:
            return
        self.replaying = False
        for key, saved in self._saved.items():
            self._lane_of(key).finish_replay(saved, self.watermark_us)
        for key, lane in self._lanes.items():
            if key not in self._saved:
                lane.finish_replay(None, self.watermark_us)
        self._saved = {}

    def _advance(self) -> None:
        if self.watermark_us != NO_TIME:
            for lane in self._lanes.values():
                lane.advance(self.watermark_us, live=True)

    # ---- lanes ---------------------------------------------------------------------------

    def _lane(self, header: BatchHeader) -> Lane:
        return self._lane_of(self._key(header))

    def _key(self, header: BatchHeader) -> LaneKey:
        return LaneKey(
            domain=self.domain,
            model=header.model,
            revision=header.revision,
            origin=header.origin.name.lower(),
            fidelity=header.fidelity.name.lower(),
            sampling_ratio=header.sampling_ratio,
            experts=header.experts,
            top_k=header.top_k,
            layers=tuple(header.layers.tolist()),
        )

    def _lane_of(self, key: LaneKey) -> Lane:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(
                key, self.name, self._config, self._sampling, self.watermark_us
            )
        return lane

    # ---- accounting ----------------------------------------------------------------------

    def _skip(self, record: SourceRecord, batch: RoutingBatch, sighting: Sighting) -> None:
        self._skipped.append(record.offset)
        if sighting is Sighting.TOO_OLD:
            self._dead_letter(
                record,
                DeadLetterReason.SEQUENCE_TOO_OLD.value,
                f"Sequence {batch.header.sequence} is too far behind to tell whether it is new.",
            )
        else:
            self._account(
                record, batch, RowAccount(rows=_rows(batch)), 0, skewed=False, verdict="duplicate"
            )

    def _dead_letter(self, record: SourceRecord, reason: str, detail: str) -> None:
        digest = sha256(record.payload).hexdigest()
        has_clock = record.append_time_us != NO_TIME
        self._letters.put(
            DeadLetter(
                partition=self.name,
                offset=record.offset,
                append_time_us=record.append_time_us,
                reason=reason,
                detail=f"{detail} (sha256 {digest})",
                payload=record.payload,
            ),
            record.append_time_us if has_clock else self.watermark_us,
        )

    def _account(
        self,
        record: SourceRecord,
        batch: RoutingBatch,
        account: RowAccount,
        missing: int,
        *,
        skewed: bool,
        verdict: str = "",
    ) -> None:
        header = batch.header
        reasons = account.reasons
        if skewed:
            reasons += ("clock_skew",)
        if missing > header.drops.log_batches:
            reasons += ("sequence_gap",)
        if header.drops.lost_rows > header.drops.unseen_rows:
            reasons += ("dropped_rows",)
        if header.drops.unseen_rows:
            reasons += (_unseen_reason(header),)
        if header.drops.rejected_rows:
            reasons += ("rejected_rows",)
        if batch.is_heartbeat and not reasons and not verdict:
            return
        self._output.batches.append(
            BatchAccount(
                partition=self.name,
                offset=record.offset,
                append_time_us=record.append_time_us,
                node=header.node,
                incarnation=header.incarnation,
                sequence=header.sequence,
                model=header.model,
                revision=header.revision,
                record_bytes=len(record.payload),
                rows=account.rows,
                accepted_rows=account.accepted,
                context_rows=account.context,
                padding_rows=account.padding,
                recomputed_rows=account.recomputed,
                stale_rows=account.stale,
                late_rows=account.late,
                uncounted_phase_rows=account.uncounted_phase,
                suspicious_pairs=account.suspicious_pairs,
                lost_rows=header.drops.lost_rows,
                rejected_rows=header.drops.rejected_rows,
                unseen_rows=header.drops.unseen_rows,
                verdict=verdict or ("suspicious" if reasons else "accepted"),
                reasons=tuple(dict.fromkeys(reasons)),
            )
        )

    def _account_lost(self, node: Node, batch: RoutingBatch, missing: int) -> None:
        lost = batch.header.drops.lost_rows
        unknown = missing > batch.header.drops.log_batches
        node.lost_rows += lost
        node.gaps += unknown
        missed = lost + batch.header.drops.rejected_rows
        if not missed and not unknown:
            return
        begin, end = node.watermark_us, _first_time(batch)
        if end == NO_TIME:
            end = batch.header.watermark_us
        if end in {NO_TIME, END_OF_TIME}:
            return
        last_pane = end // PANE_US
        first_pane = last_pane if begin == NO_TIME else min(begin // PANE_US, last_pane)
        panes = range(max(first_pane, last_pane - LONGEST_LOST_PANES + 1), last_pane + 1)
        self._lane(batch.header).add_lost(
            spread(missed, mix_of(batch) or node.mix), node.name, panes, unknown_gap=unknown
        )

    def _note_placement(self, batch: RoutingBatch) -> None:
        header = batch.header
        if header.placement is None:
            return
        begin = _first_time(batch)
        if begin == NO_TIME and header.watermark_us != END_OF_TIME:
            begin = header.watermark_us
        self._output.placements.append(
            PlacementNotice(
                lane=self._key(header),
                node=header.node,
                effective_from_us=begin,
                placement=header.placement,
            )
        )

    def _note_times(self, offset: int, batch: RoutingBatch) -> None:
        latest = _last_time(batch)
        if latest == NO_TIME:
            return
        self._recent.append((offset, latest))

    def _note_steps(self, node: Node, batch: RoutingBatch) -> None:
        source = batch.tokens if batch.tokens is not None else batch.token_blocks
        if source is not None and source.step is not None and len(source):
            stepping = (source.phase == Phase.TRAIN) | (source.phase == Phase.EVAL)
            if stepping.any():
                node.highest_step = max(node.highest_step, int(source.step[stepping].max()))
                trained = source.step[source.phase == Phase.TRAIN]
                node.trained_to = max(node.trained_to, int(trained.max(initial=-1)))
                node.steps_ended = False
        if batch.header.labels.get(STEPS_LABEL) == STEPS_ENDED:
            node.steps_ended = True

    # ---- commit --------------------------------------------------------------------------

    def take(self) -> tuple[PartitionProgress, PartitionOutput, list[NodeStatus]]:
        """Everything since the last commit, and the progress to commit with it."""
        output, self._output = self._output, PartitionOutput()
        output.dead_letters, output.dead_letter_counts = self._letters.take()
        for lane in self._lanes.values():
            groups, deltas, references = lane.output.drain()
            output.groups += groups
            output.deltas += deltas
            output.references += references
        self._emitted_to = max(self._emitted_to, self.next_offset)
        replay_from = self._replay_from()
        self._skipped = [offset for offset in self._skipped if offset >= replay_from]
        self._stale_rows = {
            offset: rows for offset, rows in self._stale_rows.items() if offset >= replay_from
        }
        progress = PartitionProgress(
            partition=self.name,
            domain=self.domain,
            emitted_to=self._emitted_to,
            replay_from=replay_from,
            state=self._state(replay_from),
            watermark_us=self.watermark_us,
            step_low=self._nodes.step_low(),
            sealed=self.sealed,
            set_aside_us=self._nodes.set_aside_us(),
            log_id=self.log_id,
        )
        statuses = [
            NodeStatus(
                partition=self.name,
                node=node.name,
                incarnation=number,
                last_sequence=known.high,
                watermark_us=node.watermark_us,
                state=node.state.value,
                lost_rows=node.lost_rows,
                gaps=node.gaps,
            )
            for node in self._nodes.nodes.values()
            for number, known in node.incarnations.items()
        ]
        return progress, output, statuses

    def _replay_from(self) -> int:
        needed = [self._emitted_to]
        for lane in self._lanes.values():
            lowest = lane.lowest_open_offset()
            if lowest is not None:
                needed.append(lowest)
        if self._config.gap_limit and self.watermark_us != NO_TIME and not self.sealed:
            # Requests' previous panes, which decide who is new in a time window.
            remembered = self.watermark_us - self._config.gap_limit * PANE_US
            while self._recent and self._recent[0][1] < remembered:
                self._recent.popleft()
            if self._recent:
                needed.append(self._recent[0][0])
        return min(needed)

    def _state(self, replay_from: int) -> bytes:
        values: dict[str, Any] = {
            "nodes": self._nodes.state(),
            "sampling": self._sampling.state(),
            "skipped": self._skipped,
            "letters": self._letters.state(),
            "stale_rows": list(self._stale_rows.items()),
            "lanes": [],
        }
        arrays: dict[str, NDArray[Any]] = {}
        for index, (key, lane) in enumerate(self._lanes.items()):
            lane_values, lane_arrays = lane.state(replay_from)
            values["lanes"].append({"key": _key_values(key), "values": lane_values})
            arrays |= {f"{index}/{name}": array for name, array in lane_arrays.items()}
        return pack_state(values, arrays)

    def _restore(self, progress: PartitionProgress) -> None:
        self._emitted_to = progress.emitted_to
        self.sealed = progress.sealed
        self.log_id = progress.log_id
        if not progress.state:
            # Nothing to rebuild memory with; what was reached is still reached.
            self.next_offset = progress.emitted_to
            self._nodes.watermark_us = progress.watermark_us
            return
        self.next_offset = progress.replay_from
        values, arrays = unpack_state(progress.state)
        self._nodes.restore(values["nodes"])
        self._sampling.restore(values["sampling"])
        self._skipped = list(values["skipped"])
        self._letters.restore(values.get("letters", ()))
        self._stale_rows = dict(values["stale_rows"])
        for index, saved in enumerate(values["lanes"]):
            key = _key_from(saved["key"])
            prefix = f"{index}/"
            lane_arrays = {
                name.removeprefix(prefix): array
                for name, array in arrays.items()
                if name.startswith(prefix)
            }
            self._lane_of(key).restore(saved["values"], lane_arrays)
            self._saved[key] = saved["values"]
        if self.next_offset >= self._emitted_to:
            for key, lane_values in self._saved.items():
                self._lane_of(key).finish_replay(lane_values, self.watermark_us)
            self._saved = {}


def _first_time(batch: RoutingBatch) -> int:
    if batch.tokens is not None and batch.tokens.event_time_us is not None and len(batch.tokens):
        return int(batch.tokens.event_time_us.min())
    if batch.time_blocks is not None and len(batch.time_blocks):
        return int(batch.time_blocks.second_us.min())
    return NO_TIME


def _unseen_reason(header: BatchHeader) -> str:
    """Why nobody saw some rows, in the producer's words."""
    told = printable(header.labels.get(UNSEEN_REASON_LABEL, ""))[:LONGEST_REASON]
    return f"unseen_rows: {told}" if told else "unseen_rows"


def _rows(batch: RoutingBatch) -> int:
    if batch.token_blocks is not None:
        return int(batch.token_blocks.tokens.sum())
    return 0 if batch.tokens is None else len(batch.tokens)


def _last_time(batch: RoutingBatch) -> int:
    if batch.tokens is not None and batch.tokens.event_time_us is not None and len(batch.tokens):
        return int(batch.tokens.event_time_us.max())
    blocks = batch.token_blocks
    if blocks is not None and blocks.last_time_us is not None and len(blocks):
        return int(blocks.last_time_us.max())
    return NO_TIME


def _key_values(key: LaneKey) -> list[Any]:
    return [
        key.domain,
        key.model,
        key.revision,
        key.origin,
        key.fidelity,
        key.sampling_ratio,
        key.experts,
        key.top_k,
        list(key.layers),
    ]


def _key_from(values: list[Any]) -> LaneKey:
    domain, model, revision, origin, fidelity, ratio, experts, top_k, layers = values
    return LaneKey(domain, model, revision, origin, fidelity, ratio, experts, top_k, tuple(layers))
