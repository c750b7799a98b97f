"""Commits of a processor: one Kafka transaction each, with output, states and offsets."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from kafka import TopicPartition
from kafka.errors import FencedInstanceIdError, KafkaError, KafkaTimeoutError
from kafka.structs import OffsetAndMetadata

from moescope.core.emission_records import emission_records, state_key
from moescope.core.errors import DependencyUnreachableError, InputError, MoescopeError
from moescope.core.kafka import Topic, explain, open_producer, topic_name
from moescope.core.kafka.absent_topics import naming_absent
from moescope.core.kafka.dead_letters import dead_letter_record
from moescope.core.kafka.ending import end_producer
from moescope.core.kafka.places import partition_number
from moescope.processors.group.bounded import within
from moescope.processors.group.offset_note import OffsetNote
from moescope.processors.resuming import CommitRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from moescope.core.accounts import PartitionProgress
    from moescope.core.emission import Emission
    from moescope.core.kafka.broker_watch import BrokerWatch
    from moescope.core.settings import Settings
    from moescope.processors.group.fences import Fences

BACKOFF_MS = 10
"""The library looks for answers about a transaction this often."""


class TransactionalStore:
    """An `EmissionStore` whose transactions are Kafka's.

    A commit either is there as a whole, or `CommitRefusedError` is raised: then nobody may go on
    from what it was made of before `settle` has succeeded, which ends what was left unfinished.

    Args:
        settings: Name the brokers, the topics, the group and the instance.
        watch: Told when the broker goes and comes.
        fences: Told when somebody else has our name.
        log: Told of refused commits.
    """

    def __init__(
        self, settings: Settings, watch: BrokerWatch, fences: Fences, log: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._watch = watch
        self._fences = fences
        self._log = log
        self._seconds = settings["kafka.transaction_timeout"]
        self._deltas = topic_name(settings, Topic.DELTAS)
        self._dlq = topic_name(settings, Topic.DLQ)
        self._routing = topic_name(settings, Topic.ROUTING)
        name = settings["kafka.instance_id"] or uuid4().hex
        self._transactional_id = f"{settings['kafka.group']}.{name}"
        self._sender = f"{self._transactional_id}/{uuid4().hex}"
        self._number = 0
        self._producer: Any = None
        self._committing = threading.Lock()

    def load_progress(self) -> dict[str, PartitionProgress]:
        """None: it is loaded for each partition that is given."""
        return {}

    def settle(self, *, again: bool = False) -> bool:
        """Be ready to commit, with every earlier transaction of this name ended.

        Args:
            again: End them also where our own commits seem to have ended: a broker that restarts
                may lose the end of one that it has acknowledged.

        Returns:
            Whether it is so; False while no broker answers, or a commit is under way.

        Raises:
            BrokerRefusedError: Who we are is not accepted.
        """
        if self._producer is not None and not again:
            return True
        # A commit that comes meanwhile waits, and is made by the new producer.
        if not self._committing.acquire(blocking=False):
            return False
        try:
            self._abandon()
            return self._begin_anew()
        finally:
            self._committing.release()

    def _begin_anew(self) -> bool:
        try:
            self._end_what_is_open()
            self._producer = self._joined()
        except KafkaError as error:
            explained = explain(error, f"joining as {self._transactional_id}", self._settings)
            if not isinstance(explained, DependencyUnreachableError):
                raise explained from error
            self._watch.lost(explained)
            return False
        except DependencyUnreachableError as error:
            self._watch.lost(error)
            return False
        return True

    def _joined(self) -> Any:  # noqa: ANN401 (untyped library)
        """A producer of our name, whose earlier transaction the coordinator has ended."""
        producer = open_producer(
            self._settings,
            transactional_id=self._transactional_id,
            transaction_timeout_ms=round(self._seconds * 1e3),
            delivery_timeout_ms=round(self._seconds * 1e3),
            request_timeout_ms=round(self._seconds * 5e2),
            retry_backoff_ms=BACKOFF_MS,
        )
        try:
            producer.init_transactions()
        except BaseException:
            end_producer(producer)
            raise
        return producer

    def _end_what_is_open(self) -> None:
        """Abort a transaction in every place that one of ours writes to.

        A coordinator that restarts with its broker may end a transaction without a mark in its
        partitions: while the broker's metadata has no leader for one, it takes the topic for
        deleted (Kafka 4.3.1). The next commit of our name would then commit what was refused,
        too. What is written here proves that there is a leader, and the marks of its abort end
        whatever was left open.

        In which order a broker loads its transactions and its metadata is its own: no test can
        make that case, and only runs that kill brokers (`make faults`) may meet it.
        """
        producer = self._joined()
        try:
            # Without the routing topic the client would ask for its offsets for ever.
            within(self._seconds, lambda: self._touch_all(producer))
        except TimeoutError as error:
            raise KafkaTimeoutError(str(error)) from error
        finally:
            # Never used for more: the library may keep offsets of what was aborted.
            end_producer(producer)

    def _touch_all(self, producer: Any) -> None:  # noqa: ANN401 (untyped library)
        producer.begin_transaction()
        for topic in (self._deltas, self._dlq):
            with naming_absent(producer, [topic]):
                producer.send(topic, b"", b"", [], 0).get(self._seconds)
        place = {TopicPartition(self._routing, 0): OffsetAndMetadata(0, "", -1)}
        producer.send_offsets_to_transaction(place, self._settings["kafka.group"])
        producer.abort_transaction()

    def apply(self, emission: Emission) -> None:
        """Commit an emission, its partitions' states and places, and its dead letters.

        Raises:
            CommitRefusedError: Its partitions are no longer ours, or nobody knows what came of it.
            DuplicateProcessorError: Another processor has our name.
            InputError: It will never be accepted.
        """
        claim: Any = emission.claim
        if claim is None or claim.generation_id < 0:
            # Without a generation the broker would not check whose partitions they are.
            raise self._refused("The group has dropped this processor.")
        with self._committing:
            self._commit(emission, claim)

    def _commit(self, emission: Emission, claim: Any) -> None:  # noqa: ANN401 (untyped library)
        producer = self._producer
        if producer is None:
            raise self._refused("The transaction before was left unfinished.")
        self._number += 1
        try:
            within(self._seconds, lambda: self._transact(producer, emission, claim))
        except TimeoutError as error:
            # The call may yet go on: nothing may be done with this producer any more.
            self._abandon()
            raise self._refused(str(error)) from error
        except FencedInstanceIdError as error:
            self._abandon()
            self._fences.note(claim.member_id, str(error))
            raise self._refused(f"{type(error).__name__}: {error}") from error
        except KafkaError as error:
            explained = explain(error, "committing", self._settings)
            self._abandon()
            if isinstance(explained, InputError):
                raise explained from error
            raise self._refused(f"{type(error).__name__}: {error}") from error
        except BaseException:
            self._abandon()
            raise

    def close(self) -> None:
        """End the producer."""
        self._abandon()

    def _transact(
        self,
        producer: Any,  # noqa: ANN401 (untyped library)
        emission: Emission,
        claim: object,
    ) -> None:
        def send(topic: str, key: bytes, value: bytes | None, headers: Any) -> Any:  # noqa: ANN401 - untyped library
            return producer.send(topic, value, key, list(headers), 0)

        producer.begin_transaction()
        sent = [
            (record.key, send(self._deltas, record.key, record.value, record.headers))
            for record in emission_records(emission, self._sender, self._number)
        ]
        for letter in emission.dead_letters:
            record = dead_letter_record(letter, self._routing)
            sent.append((b"", send(self._dlq, record.key, record.value, record.headers)))
        producer.flush()
        placed: dict[bytes, int] = {}
        for key, future in sent:
            placed.setdefault(key, future.get(self._seconds).offset)
        offsets = {
            TopicPartition(self._routing, partition_number(progress.partition)): OffsetAndMetadata(
                progress.replay_from,
                OffsetNote(
                    progress.emitted_to,
                    placed[state_key(progress.partition)],
                    progress.watermark_us,
                ).text(),
                -1,
            )
            for progress in emission.progress
        }
        producer.send_offsets_to_transaction(offsets, claim)
        producer.commit_transaction()

    def _abandon(self) -> None:
        """Give the producer up: after a failure none is used again, also where it could abort.

        The library keeps the offsets of a transaction that was refused, and would commit them
        with the next one. Whoever opens a producer of our name next ends what this one left.
        """
        producer, self._producer = self._producer, None
        if producer is not None:
            end_producer(producer)

    def _refused(self, why: str) -> MoescopeError:
        self._log(f"a commit was refused, its records are read again: {why}")
        return CommitRefusedError("A commit was refused.", why=why)
