"""The owner's loop over the deltas topic: fetch, put together, check, merge, apply."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from moescope.core.emission_records import EMISSION_KINDS, EmissionAssembler
from moescope.core.errors import DependencyUnreachableError, InternalError, MoescopeError
from moescope.core.kafka.broker_watch import BrokerWatch
from moescope.core.plain_codec import PlainFormatError, PlainVersionError, pack
from moescope.storage.deltas.errors import ProcessorsDivergedError
from moescope.storage.deltas.merging import merged
from moescope.storage.deltas.set_aside import SetAside
from moescope.storage.deltas.soundness import objection
from moescope.storage.deltas.topic import DeltasGap, DeltasTopic
from moescope.storage.deltas.unread import UnreadPartitions
from moescope.storage.errors import EmissionRefusedError, FencedError
from moescope.storage.progress import (
    check_continues,
    check_logs,
    is_contained,
    with_known_logs,
)
from moescope.storage.stragglers import PatientStore

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from moescope.core.clock import Clock
    from moescope.core.emission import Emission
    from moescope.core.self_metrics import SelfMetrics
    from moescope.core.settings import Settings
    from moescope.storage.deltas.topic import DeltasRecord
    from moescope.storage.store import Store

LARGEST_EMISSIONS: Final = 32
LARGEST_BYTES: Final = 16 << 20
"""Of records whose emissions are applied in one transaction."""
LOOK_SECONDS: Final = 1.0
AWAY_SECONDS: Final = 1.0
RETRY_PAUSE_SECONDS: Final = 0.5
MOST_IN_A_ROW: Final = 8
"""Emissions that cannot be applied one after the other: more are a fault of the store's own."""
_UNFIT: Final = (
    ArithmeticError,
    AttributeError,
    InternalError,
    LookupError,
    TypeError,
    ValueError,
)
"""What the store raises of values that it cannot work with."""


class _Pending(NamedTuple):
    """An emission that waits to be applied, and where its last record lies."""

    emission: Emission
    offset: int
    append_time_us: int


class DeltasReader:
    """Applies what processors commit to the deltas topic, from the stored place on.

    Args:
        settings: Name the brokers and topics.
        store: Where emissions go; its `delta_offsets` say what is applied.
        metrics: Of this process.
        clock: For pauses, and for who is served.
        log: Told of what people should know.
        retry_seconds: How long a commit that failed for a passing reason is tried again.
        on_applied: Called after each transaction.
        waits_for_stragglers: Whether partitions that were just left behind are waited for, as
            where more will come.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        metrics: SelfMetrics,
        clock: Clock,
        log: Callable[[str], None],
        *,
        retry_seconds: float = 60.0,
        on_applied: Callable[[], None] | None = None,
        waits_for_stragglers: bool = False,
    ) -> None:
        self._store = PatientStore(store, clock) if waits_for_stragglers else store
        self._metrics = metrics
        self._clock = clock
        self._log = log
        self._retry_seconds = retry_seconds
        self._on_applied = on_applied
        self._progress = store.load_progress()
        self._unread = UnreadPartitions(clock)
        self._unread.note_progress(self._progress.values())
        self._watch = BrokerWatch(log)
        self._topic = DeltasTopic(settings, None, self._watch)
        self._topic = DeltasTopic(settings, store.read_to().get(self._topic.name), self._watch)
        self._group = settings["kafka.group"]
        self._handled_to = store.handled_to().get(self._topic.name, 0)
        self._assembler = EmissionAssembler()
        self._forgotten = 0
        self._pending: list[_Pending] = []
        self._aside = SetAside(
            self._topic.name, settings["dead_letters.kept_per_minute"], clock, log
        )
        self._unfit_in_a_row = 0
        self._pending_bytes = 0
        self._looked_at = float("-inf")
        self._told_unserved: frozenset[str] = frozenset()
        self._has_told_repeats = False

    @property
    def trouble(self) -> str:
        """Why nothing comes at present, and what to do about it; empty: all is well."""
        return self._watch.trouble

    def run(self, stop: threading.Event, *, until_idle: bool = False) -> None:
        """Apply emissions until told to stop; a broker that is away is waited for.

        Args:
            stop: Ends it when it is set; what was put together is applied first.
            until_idle: End when everything that is in the topic is applied; then a broker that
                does not answer is an error.

        Raises:
            ProcessorsDivergedError: An emission repeats a part of what is stored.
            LogReplacedError: The routing topic was made anew.
            DeltasRewoundError: The topic was made anew.
            PlainVersionError: A processor is newer than this store, or a record pretends it.
            DependencyUnreachableError: Nobody answers, and it is not waited for.
            InternalError: Many emissions in a row cannot be applied.
            MoescopeError: What the store raised.
        """
        try:
            while not stop.is_set():
                try:
                    if not self._step() and until_idle and self._is_applied():
                        return
                except DependencyUnreachableError:
                    if until_idle:
                        raise
                    stop.wait(AWAY_SECONDS)
        finally:
            self._topic.close()

    def _is_applied(self) -> bool:
        end, _ = self._topic.ends()
        return self._topic.next_offset == end

    def _step(self) -> int:
        """Take what comes next; gives how much that was."""
        # Before the first emission, so that it never closes windows of what nobody read yet.
        if self._clock.monotonic() - self._looked_at >= LOOK_SECONDS:
            self._look()
        items = self._topic.fetch()
        if items:
            # What was there before these emissions were made is known as unread from now on.
            # A broker that is gone meanwhile must not take along what was fetched.
            with suppress(DependencyUnreachableError):
                self._look()
        for item in items:
            if isinstance(item, DeltasGap):
                self._pass_gap(item)
            else:
                self._take(item)
                if len(self._pending) >= LARGEST_EMISSIONS or self._pending_bytes >= LARGEST_BYTES:
                    self._apply(item.offset + 1)
        next_offset = self._topic.next_offset
        if (self._pending or self._aside) and next_offset is not None:
            self._apply(next_offset)
        self._aside.tell()
        return len(items)

    def _look(self) -> None:
        end, ends = self._topic.ends()
        self._looked_at = self._clock.monotonic()
        self._unread.note_ends(ends)
        self._metrics.set("moescope_store_lag_records", end - (self._topic.next_offset or 0))
        unserved = self._unread.unserved()
        self._metrics.set("moescope_store_unserved_partitions", len(unserved))
        if unserved - self._told_unserved:
            self._log(
                f"no processor serves {', '.join(sorted(unserved))}: records wait there, and "
                "windows close without them; start more processors: `moescope run processor`"
            )
        self._told_unserved = unserved

    def _take(self, item: DeltasRecord) -> None:
        self._pending_bytes += len(item.record.value)
        try:
            emission = self._assembler.add(item.record, item.offset)
        except PlainVersionError as error:
            raise self._too_new(item.offset, error) from error
        except PlainFormatError as error:
            self._set_aside(item, f"{error.what} {error.why}".rstrip())
            return
        if self._assembler.forgotten > self._forgotten:
            lost = self._assembler.forgotten - self._forgotten
            self._forgotten = self._assembler.forgotten
            self._metrics.add("moescope_store_gap_emissions_total", lost)
        if emission is None or item.offset < self._handled_to:
            return
        if (wrong := objection(emission)) is not None:
            self._set_aside(item, f"The emission that ends here contradicts itself: {wrong}.")
            return
        self._check(_Pending(emission, item.offset, item.append_time_us))

    def _check(self, pending: _Pending) -> None:
        emission = pending.emission
        # Before anything of another topic is taken for what was applied.
        check_logs(emission, self._progress)
        if is_contained(emission, self._progress):
            self._metrics.add("moescope_store_refused_emissions_total")
            if not self._has_told_repeats:
                self._has_told_repeats = True
                self._log(
                    "processors repeat what is stored already, from "
                    f"{', '.join(each.partition for each in emission.progress)}: left out"
                )
            return
        try:
            check_continues(emission, self._progress)
        except EmissionRefusedError as error:
            raise self._diverged(error) from error
        self._progress |= with_known_logs(emission.progress, self._progress)
        self._pending.append(pending)

    def _diverged(self, error: EmissionRefusedError) -> ProcessorsDivergedError:
        return ProcessorsDivergedError(
            "An emission of the processors repeats a part of what is stored and goes beyond it.",
            why=f"{error.why} The offsets of the group {self._group} are not those that belong "
            "to this store; a part of an emission cannot be left out.",
            next_step="Stop all processors, start the store once with `moescope run store "
            "--reset-processors`, then start the processors: they go on from what is stored.",
        )

    def _too_new(self, offset: int, error: PlainVersionError) -> PlainVersionError:
        return PlainVersionError(
            f"Record {offset} of {self._topic.name} was written by another version of moescope.",
            why=error.why,
            next_step="Upgrade this store if a newer processor wrote it. If none did, step over "
            "it: stop all processors, start the store once with `moescope run store "
            "--reset-processors`, then start the processors: what else was not applied yet they "
            "make again.",
        )

    def _at_fault(self, offset: int, why: str) -> InternalError:
        return InternalError(
            f"{MOST_IN_A_ROW + 1} emissions in a row cannot be applied, the last of them at record "
            f"{offset} of {self._topic.name}.",
            why=f"{why} So many are rather a fault of this store than of the emissions.",
            next_step="Report it, with the message above.",
        )

    def _set_aside(self, item: DeltasRecord, detail: str) -> None:
        if item.offset >= self._handled_to:
            self._aside.put(item.offset, item.append_time_us, detail, item.record.value)

    def _pass_gap(self, gap: DeltasGap) -> None:
        # What was handled may be gone: it was read again for what began in it alone.
        first = max(gap.first, self._handled_to)
        if first < gap.end:
            self._aside.put_gap(first, gap.end)
            self._metrics.add("moescope_store_gap_emissions_total", gap.end - first)
        # What had begun before the gap never ends.
        self._assembler, self._forgotten = EmissionAssembler(), 0

    def _apply(self, read_to: int) -> None:
        emissions = [each.emission for each in self._pending]
        self._unread.note_progress(each for one in emissions for each in one.progress)
        begins_at = self._assembler.begins_at
        place = read_to if begins_at is None else begins_at
        try:
            self._commit_up_to(read_to, emissions, place)
        except (EmissionRefusedError, FencedError):
            raise
        except _UNFIT:
            if not emissions:
                raise
            applied = self._apply_singly()
            self._commit_up_to(read_to, [], place)
        else:
            applied = len(emissions)
            if emissions:
                self._unfit_in_a_row = 0
        self._metrics.add("moescope_store_emissions_total", applied)
        self._pending, self._pending_bytes = [], 0
        if self._on_applied is not None:
            self._on_applied()

    def _apply_singly(self) -> int:
        """Apply what is good of what cannot be applied together; gives how much that is.

        Each with all that was set aside before it, so that a restart in between repeats nothing.
        The place where it reads from stays until all is done.
        """
        applied = 0
        for emission, offset, append_time_us in self._pending:
            try:
                self._commit_up_to(offset + 1, [emission])
            except (EmissionRefusedError, FencedError):
                raise
            except _UNFIT as error:
                self._unfit_in_a_row += 1
                why = f"{type(error).__name__}: {str(error)[:500]}"
                if self._unfit_in_a_row > MOST_IN_A_ROW:
                    raise self._at_fault(offset, why) from error
                self._log(
                    f"the emission that ends at record {offset} of {self._topic.name} cannot be "
                    f"applied and is set aside: {why}"
                )
                self._aside.put(
                    offset,
                    append_time_us,
                    f"The emission that ends here cannot be applied: {why}",
                    pack(emission, EMISSION_KINDS),
                )
            else:
                applied += 1
                self._unfit_in_a_row = 0
        self._progress = self._store.load_progress()
        return applied

    def _commit_up_to(
        self, end: int, emissions: Sequence[Emission], place: int | None = None
    ) -> None:
        """Commit emissions, and what was set aside, of the records before an offset.

        Args:
            end: All that ends before it is handled then.
            emissions: Those that end there and are not applied yet.
            place: Where a restart reads from; None: where it would now.
        """
        handled_to = max(end, self._handled_to)
        name = self._topic.name
        self._commit(
            merged(
                [*emissions, self._aside.before(end)],
                {} if place is None else {name: place},
                self._unread.unread(),
                {name: handled_to},
            )
        )
        self._handled_to = handled_to
        self._aside.forget_before(end)

    def _commit(self, emission: Emission) -> None:
        """Apply, again and again while the store says that it may yet work."""
        gives_up = self._clock.monotonic() + self._retry_seconds
        while True:
            try:
                self._store.apply(emission)
            except MoescopeError as error:
                if not error.retriable or self._clock.monotonic() >= gives_up:
                    raise
                self._clock.sleep(RETRY_PAUSE_SECONDS)
            else:
                return
