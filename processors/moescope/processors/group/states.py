"""States of partitions, fetched from where the processor before has written them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafka import TopicPartition
from kafka.errors import KafkaTimeoutError, OffsetOutOfRangeError

from moescope.core.emission_records import EmissionRecord, read_state
from moescope.core.kafka import Topic, open_consumer, topic_name
from moescope.core.kafka.ends import end_offsets
from moescope.core.plain_codec import PlainFormatError, PlainVersionError
from moescope.processors.group.bounded import end_consumer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moescope.core.accounts import PartitionProgress
    from moescope.core.clock import Clock
    from moescope.core.settings import Settings

FETCH_BYTES = 1 << 20
POLL_MS = 200


class StateReader:
    """Reads single states out of `PREFIX.deltas`.

    An offset that is committed points to a state whose transaction is committed, too. So it need
    not wait for the unfinished transactions of others, behind which committed readers stand.

    Args:
        settings: Name the brokers and the topic.
        clock: Bounds how long a state is waited for.
    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._seconds = settings["kafka.request_timeout"]
        self._place = TopicPartition(topic_name(settings, Topic.DELTAS), 0)
        self._consumer: Any = None

    def read(self, offset: int) -> PartitionProgress | None:
        """The progress whose first record lies at an offset; None: it is no longer there.

        Raises:
            KafkaError: No broker answered in time.
            PlainVersionError: A newer moescope wrote it.
        """
        if self._consumer is None:
            self._consumer = open_consumer(
                self._settings,
                auto_offset_reset="none",
                isolation_level="read_uncommitted",
                max_partition_fetch_bytes=FETCH_BYTES,
                max_poll_records=16,
            )
            self._consumer.assign([self._place])
        end = end_offsets(self._consumer, [self._place], self._seconds * 1e3)[self._place]
        if not 0 <= offset < end:
            return None
        self._consumer.seek(self._place, offset)
        try:
            return read_state(self._records(offset, end))
        except PlainVersionError:
            raise
        except (OffsetOutOfRangeError, PlainFormatError):
            return None

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            end_consumer(self._consumer)
            self._consumer = None

    def _records(self, offset: int, end: int) -> Iterator[EmissionRecord]:
        """Records from exactly this offset on, to the end of the topic."""
        give_up = self._clock.monotonic() + self._seconds
        expected = offset
        while self._consumer.position(self._place) < end:
            found = self._consumer.poll(POLL_MS).get(self._place, [])
            for record in found:
                if expected == offset != record.offset:
                    return
                expected = record.offset + 1
                yield EmissionRecord(record.key or b"", record.value or b"", record.headers)
            if not found and self._clock.monotonic() > give_up:
                raise KafkaTimeoutError(f"The state at record {offset} was not told in time.")
