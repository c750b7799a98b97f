"""The owner's dead letters, published: from the table to the topic, at least once."""

from __future__ import annotations

import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

from moescope.console.kafka.letter_position import NOTHING, PositionFile, Published
from moescope.core.accounts import DeadLetter
from moescope.core.clock import NO_TIME
from moescope.core.kafka import Topic, explain, open_producer, topic_name
from moescope.core.kafka.dead_letters import dead_letter_record
from moescope.core.kafka.ending import end_producer
from moescope.storage.errors import StoreWriteError
from moescope.storage.store import last_commit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from moescope.core.settings import Settings
    from moescope.storage import Store

POLL_S: Final = 1.0
FIRST_WAIT_S: Final = 2.0
LONGEST_WAIT_S: Final = 60.0
STOP_S: Final = 15.0
LETTERS_AT_ONCE: Final = 64

_LETTERS_SQL: Final = """
    SELECT commit_id, partition, log_offset, epoch_us(append_time) AS append_time_us,
        reason, detail, payload
    FROM dead_letters
    WHERE starts_with(partition, $prefix)
        AND (commit_id > $commit_id OR (commit_id = $commit_id AND
            (partition > $partition OR (partition = $partition AND log_offset > $log_offset))))
    ORDER BY commit_id, partition, log_offset
    LIMIT $most
"""


class DeadLetterTopic:
    """Publishes what the owner put aside of the routing topic.

    Never in the way of a commit: letters are read from the table afterwards, and a broker that is
    away is asked again later. How far it came is noted after the acknowledgement, so that letters
    may come twice, under the same key.

    Args:
        store: Holds the letters.
        settings: Name data directory, broker and topics.
        log: Told once when letters begin to wait.
    """

    def __init__(self, store: Store, settings: Settings, log: Callable[[str], None]) -> None:
        self._store = store
        self._settings = settings
        self._log = log
        self._routing = topic_name(settings, Topic.ROUTING)
        self._topic = topic_name(settings, Topic.DLQ)
        self._position = PositionFile(settings.data_directory, self._topic)
        self._published: Published | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def publish(self) -> int:
        """Publish everything that waits; how many letters that were.

        Raises:
            MoescopeError: The broker, or the store, did not take it.
        """
        waiting = self._waiting()
        if not waiting:
            return 0
        number = 0
        producer = open_producer(self._settings)
        try:
            while waiting:
                self._send(producer, [letter for _, letter in waiting])
                number += len(waiting)
                self._note(waiting[-1][0])
                waiting = () if self._stopping.is_set() else self._waiting()
        finally:
            end_producer(producer)
        return number

    def start(self) -> None:
        """Publish in a thread until `stop`."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name="moescope-letters", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what waits is published by the next owner."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOP_S)
            self._thread = None

    def _run(self) -> None:
        wait_s, is_waiting = FIRST_WAIT_S, False
        while not self._stopping.is_set():
            try:
                self.publish()
            except Exception as error:  # noqa: BLE001 (nobody else would publish until a restart)
                is_told = is_waiting or isinstance(error, StoreWriteError)
                if not is_told and not self._stopping.is_set():
                    self._log(f"dead letters wait for their topic: {error}")
                # The store tells of itself.
                is_waiting = is_waiting or not isinstance(error, StoreWriteError)
                self._stopping.wait(wait_s)
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
            else:
                if is_waiting:
                    self._log("dead letters are published again")
                wait_s, is_waiting = FIRST_WAIT_S, False
                self._stopping.wait(POLL_S)

    def _waiting(self) -> Sequence[tuple[Published, DeadLetter]]:
        after = self._after()
        with closing(self._store.cursor()) as cursor:
            rows = cursor.execute(
                _LETTERS_SQL,
                {"prefix": f"{self._routing}-", "most": LETTERS_AT_ONCE, **after._asdict()},
            ).fetchall()
        return [_letter(row) for row in rows]

    def _send(self, producer: Any, letters: Sequence[DeadLetter]) -> None:
        from kafka.errors import KafkaError

        patience_s = self._settings["kafka.delivery_timeout"] + POLL_S
        try:
            sent = []
            for letter in letters:
                record = dead_letter_record(letter, self._routing)
                sent.append(
                    producer.send(
                        self._topic, key=record.key, value=record.value, headers=record.headers
                    )
                )
            for future in sent:
                future.get(patience_s)
        except KafkaError as error:
            raise explain(error, f"sending to {self._topic}", self._settings) from error

    def _after(self) -> Published:
        if self._published is None:
            with closing(self._store.cursor()) as cursor:
                newest = last_commit(cursor)
            noted = self._position.read()
            # A store that is younger than the note was restored or made anew.
            self._published = noted if noted.commit_id <= newest else NOTHING
        return self._published

    def _note(self, published: Published) -> None:
        self._position.write(published)
        self._published = published


def publishes_dead_letters(settings: Settings) -> bool:
    """Whether an owner with these settings reads the routing topic, and so puts letters aside."""
    return bool(settings["kafka.bootstrap_servers"]) and settings["store.source"] == "routing"


@contextmanager
def publishing_dead_letters(
    store: Store, settings: Settings, log: Callable[[str], None]
) -> Iterator[None]:
    """Publish the owner's dead letters meanwhile, where it reads the routing topic itself.

    Args:
        store: Holds the letters.
        settings: Of the owner. With `store.source = deltas`, processors publish their own.
        log: Told of what people should know.
    """
    if not publishes_dead_letters(settings):
        yield
        return
    topic = DeadLetterTopic(store, settings, log)
    topic.start()
    try:
        yield
    finally:
        topic.stop()


def _letter(row: tuple[Any, ...]) -> tuple[Published, DeadLetter]:
    commit_id, partition, offset, append_time_us, reason, detail, payload = row
    return Published(commit_id, partition, offset), DeadLetter(
        partition=partition,
        offset=offset,
        append_time_us=NO_TIME if append_time_us is None else append_time_us,
        reason=reason,
        detail=detail,
        payload=bytes(payload),
    )
