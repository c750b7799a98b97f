"""The partitions that a consumer group gives to this processor."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kafka import TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.errors import FencedInstanceIdError, KafkaTimeoutError
from kafka.structs import MemberState

from moescope.core.accounts import PartitionProgress
from moescope.core.clock import NO_TIME
from moescope.core.emission import LIVE_DOMAIN
from moescope.core.errors import DependencyUnreachableError
from moescope.core.kafka import Topic, open_consumer, topic_name
from moescope.core.kafka.ends import end_offsets
from moescope.core.kafka.places import partition_name, partition_number
from moescope.processors.group.bounded import end_consumer
from moescope.processors.group.members import Rebalances
from moescope.processors.group.offset_note import read_note
from moescope.processors.group.settling import Settling
from moescope.processors.resuming import Resumed
from moescope.processors.sources.topic_reader import (
    CONSUMER_OPTIONS,
    TopicReader,
    rewound,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from moescope.core.clock import Clock
    from moescope.core.kafka.broker_watch import BrokerWatch
    from moescope.core.self_metrics import SelfMetrics
    from moescope.core.settings import Settings
    from moescope.processors.group.fences import Fences
    from moescope.processors.group.members import Change
    from moescope.processors.group.settling import Settle
    from moescope.processors.group.states import StateReader
    from moescope.processors.sources.protocol import Poll

RETRY_SECONDS = 1.0
JOIN_SECONDS = 5.0
JOIN_POLL_MS = 500
LOAD_AGAIN_SECONDS = 0.25
SILENT_SECONDS = 0.5
"""While joining, heartbeats pause for a moment, too."""
LOAD_TIMEOUT_MS = 200


class GroupSource:
    """Partitions of `PREFIX.routing` that come and go, and where each was left.

    Args:
        settings: Name the brokers, the topics, the group and the instance.
        settle: Ends what earlier commits left unfinished (`TransactionalStore.settle`).
        states: Finds the states of partitions.
        fences: Whether to join again where somebody else has our name.
        metrics: Told of partitions, lag, gaps and buffers.
        clock: For pauses only.
        watch: Told when the broker goes and comes.
        log: Told which partitions are given and taken.
        patient: Whether a broker that is not there yet is waited for.
    """

    def __init__(
        self,
        settings: Settings,
        settle: Settle,
        states: StateReader,
        fences: Fences,
        *,
        metrics: SelfMetrics,
        clock: Clock,
        watch: BrokerWatch,
        log: Callable[[str], None],
        patient: bool = True,
    ) -> None:
        self._settings = settings
        self._settling = Settling(settle, clock, watch, settings["kafka.transaction_timeout"])
        self._states = states
        self._fences = fences
        self._metrics = metrics
        self._clock = clock
        self._watch = watch
        self._patient = patient
        self._log = log
        self._topic = topic_name(settings, Topic.ROUTING)
        self._reader = TopicReader(settings, self._topic, metrics, clock, watch)
        self._consumer: Any = None
        self._rebalances: Rebalances | None = None
        self._resumed: dict[int, Resumed] = {}
        self._left: set[int] = set()
        self._membership: Any = None
        self._member = ""
        self._open_at = self._load_at = float("-inf")
        self._silent_since: float | None = None
        self._asked_again_as = ""

    def partitions(self) -> dict[str, str]:
        """Name → watermark domain of the partitions that are ours and whose place is known.

        Raises:
            BrokerRefusedError: Who we are is not accepted.
            DuplicateProcessorError: Another processor has our name.
            LogRewoundError: The topic ends before the place that is read.
        """
        if self._consumer is None and not self._open():
            return {}
        try:
            self._join()
            self._require_heartbeats()
            self._reader.pump()
            self._settle_again()
            self._load()
            if not self._reader.numbers:
                self._reader.look_for_topic()
                self._ask_again()
        except FencedInstanceIdError as error:
            self._fences.note(self._member, str(error))
            self.start_over()
        return {partition_name(self._topic, number): LIVE_DOMAIN for number in self._resumed}

    def log_id(self, partition: str, known: str) -> str:
        """The topic's id, which one of the same name that is made later does not have."""
        return self._reader.topic_id(partition_number(partition), known)

    def poll(self, partition: str, offset: int, max_records: int, max_bytes: int) -> Poll:
        """Read from an offset on, as far as records are here."""
        return self._reader.poll(partition_number(partition), offset, max_records, max_bytes)

    def committed(self, partition: str, replay_from: int) -> None:
        """Places were committed with the output."""

    def revoked(self) -> Collection[str]:
        """Partitions that were taken since the last call, even if they are back already."""
        gone, self._left = self._left, set()
        changes = [] if self._rebalances is None else self._rebalances.take()
        for change in changes:
            self._metrics.add("moescope_processor_rebalances_total")
            if change.given:
                self._reader.give(change.numbers)
            else:
                gone |= change.numbers
                if change.numbers:
                    self._settling.note_taken()
                self._reader.take_away(change.numbers)
                for number in change.numbers:
                    self._resumed.pop(number, None)
            self._tell(change)
        gone |= self._revoked_unsaid()
        if changes or gone:
            self._metrics.set("moescope_processor_assigned_partitions", len(self._reader.numbers))
        return [partition_name(self._topic, number) for number in gone]

    def claim(self) -> object:
        """Our membership, as of the last rebalance whose changes we have noted.

        While one is under way the client may know the next generation before it says what that
        takes from us: a claim to it would be accepted with partitions that are no longer ours.
        """
        if self._consumer is not None:
            now = self._consumer.group_metadata()
            if now.state == MemberState.STABLE:
                self._membership = now
        return self._membership

    def unread(self, held: Collection[str]) -> frozenset[str]:  # noqa: ARG002 (the protocol's)
        """None: the store owner asks for the partitions' ends itself."""
        return frozenset()

    def settled(self) -> bool:
        """Whether we are in the group, and everything in our partitions was handed out."""
        if self._consumer is None or self._must_join():
            return False
        if self._consumer.group_metadata().state != MemberState.STABLE:
            return False
        if self._rebalances is None or self._rebalances.has_more():
            return False
        numbers = self._reader.numbers
        if not numbers:
            return not self._may_ask_again() and not self._consumer.assignment()
        return len(self._resumed) == len(numbers) and self._reader.is_read()

    def resume(self, partition: str) -> Resumed:
        """Where the last commit left a partition."""
        return self._resumed[partition_number(partition)]

    def start_over(self) -> None:
        """All memory is gone: find out again where each partition was left."""
        if self._fences.take():
            self._leave()
        numbers = list(self._reader.numbers)
        self._reader.take_away(numbers)
        self._reader.give(numbers)
        self._resumed.clear()

    def close(self) -> None:
        """Leave the group, unless we have a name under which we are expected back."""
        if self._consumer is not None:
            end_consumer(self._consumer)
            self._consumer = None

    def _leave(self) -> None:
        """Be no member any more, and join as a new one with the next call."""
        self.close()
        self._left |= set(self._reader.numbers)
        self._reader.take_away(self._left)
        self._rebalances = self._membership = None
        self._member = ""

    def _tell(self, change: Change) -> None:
        if change.numbers:
            numbers = ", ".join(str(number) for number in sorted(change.numbers))
            self._log(
                f"partitions {'given' if change.given else 'taken'}: {numbers}; "
                f"{len(self._reader.numbers)} in all"
            )

    def _revoked_unsaid(self) -> set[int]:
        """Partitions of a membership that ended without the client saying so.

        When the group answers a member that wants to join again that it does not know it, the
        client joins as a new one, and takes for kept what it is given again.
        """
        self.claim()
        member = "" if self._membership is None else self._membership.member_id
        if member == self._member:
            return set()
        ended, self._member = bool(self._member), member
        if not ended:
            return set()
        lost = set(self._reader.numbers)
        self._reader.take_away(lost)
        self._reader.give(place.partition for place in self._consumer.assignment())
        self._resumed.clear()
        return lost

    def _open(self) -> bool:
        now = self._clock.monotonic()
        if now - self._open_at < RETRY_SECONDS:
            return False
        settings = self._settings
        session_ms = round(settings["kafka.session_timeout"] * 1e3)
        try:
            consumer = open_consumer(
                settings,
                group_id=settings["kafka.group"],
                group_instance_id=settings["kafka.instance_id"] or None,
                partition_assignment_strategy=[CooperativeStickyAssignor],
                session_timeout_ms=session_ms,
                heartbeat_interval_ms=max(1, session_ms // 4),
                max_poll_interval_ms=round(settings["kafka.max_poll_interval"] * 1e3),
                **CONSUMER_OPTIONS,
            )
        except DependencyUnreachableError as error:
            if not self._patient:
                raise
            self._watch.lost(error)
            return False
        finally:
            self._open_at = self._clock.monotonic()
        self._consumer = consumer
        self._rebalances = Rebalances(consumer)
        self._reader.use(consumer)
        consumer.subscribe([self._topic], listener=self._rebalances)
        return True

    def _join(self) -> None:
        """Take part in a rebalance until it is over, or for a while.

        The library forgets a joining that ends between two polls, and begins it anew: that makes
        every member join again. So there is no pause between polls while one is under way.
        """
        give_up = self._clock.monotonic() + JOIN_SECONDS
        while self._must_join() and self._clock.monotonic() < give_up:
            self._reader.pump(0.0, wait_ms=JOIN_POLL_MS)

    def _must_join(self) -> bool:
        coordinator = getattr(self._consumer, "_coordinator", None)
        return coordinator is not None and bool(coordinator.need_rejoin())

    def _may_ask_again(self) -> bool:
        return bool(self._settings["kafka.instance_id"]) and self._asked_again_as != self._member

    def _ask_again(self) -> None:
        """Join a second time where a member with a name was given nothing at first.

        It may have taken the place of the group's leader, from whom it gets the partitions as
        they were shared out before, and whose duty to look for new ones its client does not know
        of. Joining again makes a leader share them out anew, and costs others nothing.
        """
        coordinator = getattr(self._consumer, "_coordinator", None)
        if coordinator is None or not self._may_ask_again() or self._must_join():
            return
        now = self._consumer.group_metadata()
        if now.state == MemberState.STABLE and now.member_id == self._member:
            self._asked_again_as = self._member
            coordinator.request_rejoin()

    def _require_heartbeats(self) -> None:
        """Find out that the group has fenced us where there is nothing to commit.

        The client is told so in answer to a heartbeat, sends no more of them, and keeps it to
        itself. Once the member that fenced us is gone, commits would be refused for ever.

        Raises:
            FencedInstanceIdError: We are a member that sends no heartbeats.
        """
        coordinator = getattr(self._consumer, "_coordinator", None)
        now = self._clock.monotonic()
        if (
            getattr(coordinator, "_heartbeat_enabled", True)
            or self._consumer.group_metadata().state != MemberState.STABLE
            or self._must_join()
        ):
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = now
        elif now - self._silent_since >= SILENT_SECONDS:
            self._silent_since = None
            raise FencedInstanceIdError("The group has answered a heartbeat so.")

    def _load(self) -> None:
        """Find out where partitions that were given to us were left."""
        waiting = [number for number in self._reader.numbers if number not in self._resumed]
        now = self._clock.monotonic()
        if not waiting:
            self._settling.note_asked(is_told=True)
            return
        if now - self._load_at < LOAD_AGAIN_SECONDS:
            return
        with self._reader.asking("asking for the last commit"), suppress(KafkaTimeoutError):
            # Time runs out while a transaction of the processor before is not finished yet.
            if self._settling.is_done():
                for number in waiting:
                    self._resumed[number] = self._last_commit(number)
        self._load_at = self._clock.monotonic()
        self._settling.note_asked(is_told=all(number in self._resumed for number in waiting))

    def _settle_again(self) -> None:
        # Who is no member, or sends no heartbeats any more, may have been replaced by one of the
        # same name: what that one commits is good.
        is_ours = self._member and self._silent_since is None
        if is_ours and self._settling.is_due():
            with self._reader.asking("ending what commits left"):
                self._settling.end()

    def _last_commit(self, number: int) -> Resumed:
        place = TopicPartition(self._topic, number)
        committed = self._consumer.committed(place, metadata=True, timeout_ms=LOAD_TIMEOUT_MS)
        if committed is None:
            return Resumed(None)
        note = read_note(committed.metadata)
        if note is None:
            return self._without_state(
                number, committed.offset, NO_TIME, "The group's offset was set by hand."
            )
        name = partition_name(self._topic, number)
        end = end_offsets(self._consumer, [place], LOAD_TIMEOUT_MS)[place]
        if end < note.emitted_to:
            raise rewound(name, f"It ends at record {end}, but {note.emitted_to} were read.")
        progress = self._states.read(note.state)
        is_it = progress is not None and (
            progress.partition,
            progress.emitted_to,
            progress.replay_from,
        ) == (name, note.emitted_to, committed.offset)
        if is_it:
            return Resumed(progress)
        return self._without_state(
            number,
            note.emitted_to,
            note.watermark_us,
            f"The state at record {note.state} of the deltas topic is no longer there.",
        )

    def _without_state(self, number: int, offset: int, watermark_us: int, why: str) -> Resumed:
        progress = PartitionProgress(
            partition=partition_name(self._topic, number),
            domain=LIVE_DOMAIN,
            emitted_to=offset,
            replay_from=offset,
            state=b"",
            watermark_us=watermark_us,
            step_low=NO_TIME,
            sealed=False,
        )
        return Resumed(progress, f"{why} Windows that were open then are short.")
