"""One commit of the owner: an emission, and everything that follows from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.core.clock import END_OF_TIME, NO_TIME
from moescope.core.emission import LIVE_DOMAIN, CommitFacts
from moescope.core.router_sums import POSITIONS
from moescope.core.vocabulary import ScopeKind, WindowKind
from moescope.storage.account_rows import (
    add_dead_letter_counts,
    insert_batches,
    insert_dead_letters,
    insert_references,
    replace_producers,
)
from moescope.storage.columns import insert
from moescope.storage.delta_rows import (
    delete_deltas,
    insert_deltas,
    keep_steps_until,
    keep_tasks_until,
    read_sums,
    step_keep_until,
)
from moescope.storage.exceedance_rows import (
    add_exceedances,
    merge_exceedances,
    slots_closed_by,
)
from moescope.storage.histogram_rows import add_histograms, merge_histograms
from moescope.storage.late_windows import reopen_windows
from moescope.storage.placements import insert_placements
from moescope.storage.progress import (
    check_continues,
    with_known_logs,
    write_delta_offsets,
    write_domains,
    write_progress,
)
from moescope.storage.shared import ClosedWindow, DomainClock, advance_clock, group_windows
from moescope.storage.shared.grouping import GROUP_BYTES
from moescope.storage.shared.spans import LATENESS_US, RETENTION_US
from moescope.storage.token_keys import kept_windows
from moescope.storage.window_rows import window_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import duckdb

    from moescope.core.emission import (
        Emission,
        FinishedWindows,
        Finisher,
        Histograms,
        LaneKey,
        TrailingReference,
        WindowGroup,
    )
    from moescope.core.exceedance import Exceedances
    from moescope.core.vocabulary import CloseReason
    from moescope.storage.late_windows import Reopened
    from moescope.storage.levels import Kept
    from moescope.storage.memory import Memory
    from moescope.storage.shared import PaneSums, WindowShapes, WindowSpan

PURGE_EVERY_US = 60_000_000
"""Panes are deleted in batches of a minute of event time."""


class Commit:
    """Writes one emission inside a transaction, and moves the memory along.

    After an error the memory is no longer what the file says and has to be loaded again.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        memory: Memory,
        finisher: Finisher,
        shapes: WindowShapes,
        minimum_coverage: float,
    ) -> None:
        self._connection = connection
        self._memory = memory
        self._finisher = finisher
        self._shapes = shapes
        self._minimum_coverage = minimum_coverage
        self._commit_id = memory.commit_id + 1
        self._histograms: Histograms = {}
        self._exceedances: Exceedances = {}
        self._kept: dict[LaneKey, list[Kept]] = {}
        self._kept_bytes = 0
        self._references: list[TrailingReference] = []
        self._late_rows: dict[str, int] = {}

    def write(self, emission: Emission) -> CommitFacts:
        """Write the emission and what follows from it."""
        memory, connection, commit_id = self._memory, self._connection, self._commit_id
        check_continues(emission, memory.progress, memory.read_to)
        memory.lanes.note(connection, _lanes(emission), commit_id)
        progress = with_known_logs(emission.progress, memory.progress)
        memory.progress |= progress
        domains = sorted(
            {each.domain for each in emission.progress}
            | {delta.lane.domain for delta in emission.deltas}
        )
        for domain in domains:
            memory.clocks.setdefault(domain, DomainClock())
        add_histograms(self._histograms, emission.histograms)
        self._note_placements(emission)
        reopened = self._take_deltas(emission)
        for domain in domains:
            self._advance(domain, reopened, emission.unread)
        duplicates = self._keep(emission.windows, token=True)
        self._insert_windows()
        for increments in emission.exceedances:
            add_exceedances(self._exceedances, increments)
        merge_exceedances(connection, self._exceedances, commit_id)
        merge_histograms(connection, self._histograms, commit_id)
        insert_references(connection, [*emission.references, *self._references], commit_id)
        insert_batches(connection, emission.batches, commit_id)
        insert_dead_letters(connection, emission.dead_letters, commit_id)
        add_dead_letter_counts(connection, emission.dead_letter_counts, commit_id)
        replace_producers(connection, emission.nodes, commit_id)
        write_progress(connection, progress.values(), commit_id)
        write_delta_offsets(connection, emission, memory.read_to, commit_id)
        memory.read_to |= emission.read_to
        self._write_domains({*domains, *duplicates}, duplicates)
        memory.commit_id = commit_id
        return CommitFacts(
            commit_id=commit_id,
            reached_us={domain: _reached(domain, clock) for domain, clock in memory.clocks.items()},
            exceedances=self._exceedances,
            lanes=memory.lanes.known,
        )

    def _note_placements(self, emission: Emission) -> None:
        placements = self._memory.placements
        said = [(notice.lane, placements.note(notice)) for notice in emission.placements]
        insert_placements(
            self._connection,
            [(lane, each) for lane, each in said if each is not None],
            self._commit_id,
        )

    def _take_deltas(self, emission: Emission) -> Reopened:
        memory = self._memory
        late = memory.plan.late(emission.deltas, memory.clocks)
        sums = read_sums(self._connection, memory.lanes, late) if late else []
        reopened = reopen_windows(self._connection, late, sums, self._commit_id)
        for group in self._groups(reopened.taken_back):
            add_histograms(self._histograms, self._finisher(group)[1], -1)
        tasks = [span for span in reopened.spans if not span.size]
        keep_tasks_until(self._connection, tasks, [None] * len(tasks))
        memory.plan.reopen(reopened.spans)
        accepted = memory.plan.accept(emission.deltas, memory.clocks, reopened.refused)
        self._late_rows = dict(accepted.late_rows)
        insert_deltas(
            self._connection,
            [(delta, memory.plan.keep_until(delta)) for delta in accepted.deltas],
            self._commit_id,
        )
        for delta in accepted.deltas:
            memory.trailing.add(delta)
            memory.panes.add(delta)
        return reopened

    def _advance(self, domain: str, reopened: Reopened, unread: Collection[str]) -> None:
        memory = self._memory
        before = memory.clocks[domain]
        partitions = [each for each in memory.progress.values() if each.domain == domain]
        clock = advance_clock(before, domain, partitions, unread)
        self._references += memory.trailing.advance(domain, clock.watermark_us)
        due = memory.plan.due(domain, clock)
        for closed in self._closed(due.spans, reopened):
            self._finish(closed)
        memory.panes.forget_closed(domain, due.clock, [span for span, _ in due.spans])
        keep_tasks_until(
            self._connection,
            [task.span for task in due.tasks],
            [task.keep_until_us for task in due.tasks],
        )
        if due.clock.step_reached > before.step_reached:
            keep_steps_until(
                self._connection,
                domain,
                self._shapes,
                due.clock.step_reached,
                step_keep_until(due.clock.reached_us, RETENTION_US),
            )
        memory.clocks[domain] = due.clock
        self._forget(domain, due.clock)

    def _closed(
        self, spans: Sequence[tuple[WindowSpan, CloseReason]], reopened: Reopened
    ) -> Iterator[list[ClosedWindow]]:
        """Closed windows with their sums, as many at once as fit into memory."""
        for chunk in _chunks(spans):
            sums = self._sums([span for span, _ in chunk])
            for (span, _), each in zip(chunk, sums, strict=True):
                each.unknown_gap |= self._is_somebody_missing(span)
            yield [
                ClosedWindow(span, each, reason, reopened.next_version(span))
                for (span, reason), each in zip(chunk, sums, strict=True)
                if each.seen
            ]

    def _is_somebody_missing(self, span: WindowSpan) -> bool:
        """Whether a live partition, or a node of one, was set aside when this window closed."""
        series = span.series
        if series.lane.domain != LIVE_DOMAIN or series.kind is not WindowKind.TIME:
            return False
        if series.scope_kind is ScopeKind.NODE:
            return False
        return any(
            span.high - RETENTION_US <= watermark_us < span.high
            for each in self._memory.progress.values()
            if each.domain == LIVE_DOMAIN and not each.sealed
            for watermark_us in (each.watermark_us, *each.set_aside_us)
        )

    def _sums(self, spans: Sequence[WindowSpan]) -> list[PaneSums]:
        held = [self._memory.panes.sums(span) for span in spans]
        missing = [span for span, sums in zip(spans, held, strict=True) if sums is None]
        read = iter(read_sums(self._connection, self._memory.lanes, missing) if missing else ())
        return [next(read) if sums is None else sums for sums in held]

    def _finish(self, closed: list[ClosedWindow]) -> None:
        for group in self._groups(closed):
            finished, increments = self._finisher(group)
            add_histograms(self._histograms, increments)
            if finished.judgement is not None:
                add_exceedances(self._exceedances, finished.judgement.exceedances)
            self._keep([finished], token=False)

    def _groups(self, windows: list[ClosedWindow]) -> Iterator[WindowGroup]:
        return group_windows(windows, self._reference, self._memory.placements.of_window)

    def _keep(self, finished: Sequence[FinishedWindows], *, token: bool) -> dict[str, int]:
        left_out: dict[str, int] = {}
        if token:
            kept, left_out = kept_windows(self._connection, finished)
        else:
            kept = [each.group.weight > 0 for each in finished]
        for each, mask in zip(finished, kept, strict=True):
            if mask.any():
                self._kept.setdefault(each.group.lane, []).append((each, mask))
                self._kept_bytes += each.group.counts.nbytes
        if self._kept_bytes >= GROUP_BYTES:
            self._insert_windows()
        return left_out

    def _insert_windows(self) -> None:
        for parts in self._kept.values():
            rows = window_rows(parts, self._minimum_coverage, self._commit_id)
            insert(self._connection, "windows", rows)
        self._kept, self._kept_bytes = {}, 0

    def _reference(self, lane: LaneKey, phase: str, time_us: int) -> TrailingReference | None:
        reference, new = self._memory.trailing.at(lane, phase, time_us)
        self._references += new
        return reference

    def _forget(self, domain: str, clock: DomainClock) -> None:
        memory = self._memory
        memory.trailing.forget(domain, clock.reached_us)
        memory.placements.forget(domain, clock.reached_us)
        if clock.sealed and domain != LIVE_DOMAIN:
            delete_deltas(self._connection, domain, None)
            memory.plan.forget(domain, END_OF_TIME)
        elif clock.reached_us >= memory.purged_at.get(domain, NO_TIME) + PURGE_EVERY_US:
            delete_deltas(self._connection, domain, clock.reached_us)
            memory.plan.forget(domain, clock.reached_us)
            memory.purged_at[domain] = clock.reached_us

    def _write_domains(self, domains: set[str], duplicates: dict[str, int]) -> None:
        memory = self._memory
        for domain in domains:
            late, twice = memory.counters.get(domain, (0, 0))
            memory.counters[domain] = (
                late + self._late_rows.get(domain, 0),
                twice + duplicates.get(domain, 0),
            )
        clocks = {
            domain: memory.clocks.setdefault(domain, DomainClock()) for domain in sorted(domains)
        }
        write_domains(self._connection, clocks, memory.counters, self._commit_id)


def _reached(domain: str, clock: DomainClock) -> int:
    """How far a domain is; one that nothing follows in is past every slot that it has."""
    if clock.sealed and domain != LIVE_DOMAIN and clock.reached_us != NO_TIME:
        return slots_closed_by(clock.reached_us) + LATENESS_US
    return clock.reached_us


def _lanes(emission: Emission) -> Iterator[LaneKey]:
    for finished in emission.windows:
        yield finished.group.lane
    for key in emission.histograms:
        yield key.lane
    for delta in emission.deltas:
        yield delta.lane
    for reference in emission.references:
        yield reference.lane


def _bytes_of_sums(span: WindowSpan) -> int:
    """Most that the sums of a window take: some have counts per sampled position, too."""
    series = span.series
    compared = series.kind is WindowKind.TIME and series.scope_kind is ScopeKind.ALL
    cells = len(series.lane.layers) * series.lane.experts
    return 8 * cells * (1 + len(POSITIONS) if compared else 1)


def _chunks(
    spans: Sequence[tuple[WindowSpan, CloseReason]],
) -> Iterator[list[tuple[WindowSpan, CloseReason]]]:
    chunk: list[tuple[WindowSpan, CloseReason]] = []
    size = 0
    for span, reason in spans:
        chunk.append((span, reason))
        size += _bytes_of_sums(span)
        if size >= GROUP_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
