"""The commit loop: source → engine → store, reading ahead while a commit is written."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from moescope.core.clock import SystemClock
from moescope.core.errors import MoescopeError
from moescope.processors.engine import Engine
from moescope.processors.resuming import CommitRefusedError, LoadedOnce
from moescope.processors.sources.protocol import SourceGap, SourceRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from moescope.core.clock import Clock
    from moescope.core.emission import Emission, EmissionStore, Finisher
    from moescope.processors.config import WindowConfig
    from moescope.processors.engine import UnfinishedEmission
    from moescope.processors.letter_notes import LetterNotes
    from moescope.processors.pipeline_metrics import PipelineMetrics
    from moescope.processors.resuming import Resuming
    from moescope.processors.sources.protocol import Source

READ_RECORDS = 16
READ_BYTES = 4 << 20
WAITING_COMMITS = 1
LARGEST_COMMIT = 16
"""How many times `commit_records` a commit may grow while the one before is being written."""
IDLE_SECONDS = 0.05
RETRY_PAUSE_SECONDS = 0.5
WRITER_PAUSE_SECONDS = 0.005
NOTES_SECONDS = 1.0
"""Between two looks at what of dead letters is still to be told, without commits."""


@dataclass(slots=True)
class PipelineTotals:
    """What a pipeline has done since it started."""

    records: int = 0
    record_bytes: int = 0
    commits: int = 0
    token_windows: int = 0
    dead_letters: int = 0
    retries: int = 0
    refused: int = 0


class _Reading:
    """Where a partition is being read."""

    def __init__(self) -> None:
        self.items: deque[SourceRecord | SourceGap] = deque()
        self.read_to: int | None = None
        self.exhausted = False
        self.records = 0
        self.record_bytes = 0


class Pipeline:
    """Reads every partition of a source into a store.

    The partition whose watermark is lowest is read first, so that a backlog is read in event
    time and no partition looks silent only because it was read late.

    Args:
        source: records. store: where emissions go. finisher: computes metric values.
        config: declared windows.
        commit_interval: seconds between commits while records arrive.
        commit_records: most records in one commit.
        retry_seconds: how long a commit that failed for a passing reason is tried again.
        rest: seconds between two commits at least, where each is dear.
        clock: wall clock, for commit intervals only: results never depend on it.
        on_commit: Called on the committing thread after each commit.
        resuming: knows where partitions that come and go were left; None: the store, which nobody
            else writes to.
        metrics: told of each commit.
        letter_notes: told of the dead letters of each commit.
    """

    def __init__(
        self,
        source: Source,
        store: EmissionStore,
        finisher: Finisher,
        config: WindowConfig,
        *,
        commit_interval: float = 1.0,
        commit_records: int = 256,
        retry_seconds: float = 60.0,
        rest: float = 0.0,
        clock: Clock | None = None,
        on_commit: Callable[[PipelineTotals], None] | None = None,
        resuming: Resuming | None = None,
        metrics: PipelineMetrics | None = None,
        letter_notes: LetterNotes | None = None,
    ) -> None:
        self._source = source
        self._store = store
        self._finisher = finisher
        self._commit_interval = commit_interval
        self._commit_records = commit_records
        self._retry_seconds = retry_seconds
        self._rest = rest
        self._clock = clock or SystemClock()
        self._on_commit = on_commit
        self._resuming = LoadedOnce(store.load_progress()) if resuming is None else resuming
        self._metrics = metrics
        self._letter_notes = letter_notes
        self._engine = Engine(config, {})
        self._reading: dict[str, _Reading] = {}
        self._waiting: queue.Queue[UnfinishedEmission | None] = queue.Queue(WAITING_COMMITS)
        self._failure: BaseException | None = None
        self._refusal: CommitRefusedError | None = None
        self._handed_over = float("-inf")
        self.totals = PipelineTotals()

    def run(self, *, until_idle: bool = False, stop: threading.Event | None = None) -> None:
        """Process records until told to stop.

        Args:
            until_idle: End when every partition is read to its present end.
            stop: Ends the loop when it is set; what was read is committed first.

        Raises:
            MoescopeError: What the store or a partition's state raised.
        """
        stop = stop or threading.Event()
        writer = threading.Thread(target=self._write, name="moescope-commit", daemon=True)
        writer.start()
        try:
            self._read(stop, until_idle=until_idle)
        finally:
            self._hand_over(None)
            writer.join()
        if self._failure is not None:
            raise self._failure

    def _read(self, stop: threading.Event, *, until_idle: bool) -> None:
        uncommitted = 0
        last_commit = self._clock.monotonic()
        while not stop.is_set() and self._failure is None:
            if self._refusal is not None:
                self._start_over()
                uncommitted = 0
            done = self._step()
            uncommitted += done
            if self._is_due(uncommitted, self._clock.monotonic() - last_commit):
                self._commit()
                uncommitted = 0
                last_commit = self._clock.monotonic()
            if done == 0:
                if self._is_rested():
                    self._commit()
                    uncommitted = 0
                if until_idle and self._source.settled() and self._is_all_written():
                    break
                stop.wait(IDLE_SECONDS)
        self._commit()

    def _is_all_written(self) -> bool:
        """Whether nothing that was read may yet have to be read again."""
        self._commit()
        self._wait_for_writer()
        return self._refusal is None

    def _wait_for_writer(self) -> None:
        while self._waiting.unfinished_tasks and self._failure is None:
            time.sleep(WRITER_PAUSE_SECONDS)

    def _is_rested(self) -> bool:
        return self._clock.monotonic() - self._handed_over >= self._rest

    def _is_due(self, uncommitted: int, elapsed: float) -> bool:
        """Whether to commit now: in time, and while the store is busy in larger pieces."""
        if uncommitted >= LARGEST_COMMIT * self._commit_records:
            return True
        due = uncommitted >= self._commit_records or elapsed >= self._commit_interval
        return due and self._waiting.empty() and self._is_rested()

    def _step(self) -> int:
        """Process one record of the partition that is furthest behind; 0 when there is none."""
        self._forget(self._source.revoked())
        for name, domain in self._source.partitions().items():
            if name not in self._reading:
                self._reading[name] = _Reading()
                partition = self._engine.open(name, domain, self._resuming.resume(name))
                partition.log_id = self._source.log_id(name, partition.log_id)
        for name, reading in self._reading.items():
            reading.exhausted = False
            if not reading.items:
                self._fill(name, reading)
        ready = [name for name, reading in self._reading.items() if reading.items]
        done = 0
        # As many records as can be taken before any buffer runs dry.
        while ready and done < READ_RECORDS:
            name = min(ready, key=lambda name: self._engine.partitions[name].watermark_us)
            self._process(name, self._reading[name].items.popleft())
            done += 1
            if not self._reading[name].items:
                break
        return done

    def _fill(self, name: str, reading: _Reading) -> None:
        partition = self._engine.partitions[name]
        if partition.sealed and reading.exhausted:
            return
        offset = partition.next_offset if reading.read_to is None else reading.read_to
        poll = self._source.poll(name, offset, READ_RECORDS, READ_BYTES)
        reading.read_to = poll.next_offset
        items: list[SourceRecord | SourceGap] = [*poll.gaps, *poll.records]
        items.sort(key=lambda item: item.first if isinstance(item, SourceGap) else item.offset)
        reading.items.extend(items)
        reading.exhausted = poll.exhausted
        if poll.sealed and not partition.sealed:
            partition.seal()
            self._engine.touch(name)

    def _process(self, name: str, item: SourceRecord | SourceGap) -> None:
        partition = self._engine.partitions[name]
        self._engine.touch(name)
        if isinstance(item, SourceGap):
            partition.pass_gap(item)
            return
        partition.process(item)
        self.totals.records += 1
        self.totals.record_bytes += len(item.payload)
        reading = self._reading[name]
        reading.records += 1
        reading.record_bytes += len(item.payload)

    def _forget(self, names: Collection[str]) -> None:
        for name in names:
            self._reading.pop(name, None)
            self._engine.forget(name)

    def _start_over(self) -> None:
        """Drop all that rests on a commit that was refused, and resume from what is stored."""
        # The writer passes over what waits; when it is done, nothing of it is left.
        self._wait_for_writer()
        self._forget(list(self._reading))
        self._resuming.start_over()
        self._refusal = None

    def _commit(self) -> None:
        claim = self._source.claim()
        self._forget(self._source.revoked())
        for name, partition in self._engine.partitions.items():
            # Nobody may have told when it was opened.
            partition.log_id = partition.log_id or self._source.log_id(name, "")
        unfinished = self._engine.take()
        if unfinished is None:
            return
        held = [name for name, reading in self._reading.items() if reading.items]
        emission = replace(unfinished.emission, claim=claim, unread=self._source.unread(held))
        if self._metrics is not None:
            self._metrics.note_read(
                {
                    name: (reading.records, reading.record_bytes)
                    for name, reading in self._reading.items()
                }
            )
            for reading in self._reading.values():
                reading.records = reading.record_bytes = 0
        self._hand_over(replace(unfinished, emission=emission))
        self._handed_over = self._clock.monotonic()

    def _hand_over(self, unfinished: UnfinishedEmission | None) -> None:
        while True:
            try:
                self._waiting.put(unfinished, timeout=0.2)
            except queue.Full:
                if self._failure is not None:
                    return
            else:
                return

    def _apply(self, emission: Emission) -> None:
        """Apply an emission, again and again while the store says that it may yet work."""
        gives_up = self._clock.monotonic() + self._retry_seconds
        while True:
            try:
                self._store.apply(emission)
            except MoescopeError as error:
                if not error.retriable or self._clock.monotonic() >= gives_up:
                    raise
                self.totals.retries += 1
                self._clock.sleep(RETRY_PAUSE_SECONDS)
            else:
                return

    def _write(self) -> None:
        while True:
            unfinished = self._next_to_write()
            try:
                if unfinished is None:
                    if self._letter_notes is not None:
                        self._letter_notes.end()
                    return
                # After a refusal everything that waits rests on what was refused.
                if self._refusal is None:
                    self._write_one(unfinished)
            except CommitRefusedError as refusal:
                self.totals.refused += 1
                if self._metrics is not None:
                    self._metrics.note_refusal()
                self._refusal = refusal
            except BaseException as error:  # noqa: BLE001 (raised again by the reading thread)
                self._failure = error
                return
            finally:
                self._waiting.task_done()

    def _next_to_write(self) -> UnfinishedEmission | None:
        while True:
            try:
                return self._waiting.get(timeout=NOTES_SECONDS)
            except queue.Empty:
                if self._letter_notes is not None:
                    self._letter_notes.look()

    def _write_one(self, unfinished: UnfinishedEmission) -> None:
        emission = unfinished.finish(self._finisher)
        self._apply(emission)
        for progress in emission.progress:
            self._source.committed(progress.partition, progress.replay_from)
        self.totals.commits += 1
        self.totals.token_windows += sum(len(group) for group in unfinished.groups)
        self.totals.dead_letters += sum(each.records for each in emission.dead_letter_counts)
        if self._metrics is not None:
            self._metrics.note_commit(emission, self._clock.now_us())
        if self._letter_notes is not None:
            self._letter_notes.note(emission.dead_letter_counts)
        if self._on_commit is not None:
            self._on_commit(self.totals)


__all__ = ["Pipeline", "PipelineTotals"]
