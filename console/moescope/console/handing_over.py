"""Letting processors go on from what the store holds, whatever they did before."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, TypeVar

from moescope.core.emission_records import HANDED_OVER, state_records
from moescope.core.errors import DependencyUnreachableError
from moescope.core.kafka import Topic, explain, open_admin, open_producer, topic_name
from moescope.core.kafka.places import partition_name, partition_number
from moescope.processors.group.offset_note import OffsetNote

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from moescope.core.accounts import PartitionProgress
    from moescope.core.clock import Clock
    from moescope.core.settings import Settings
    from moescope.storage.store import Store

SENDER: Final = "store"
RETRY_SECONDS: Final = 0.5
_Answer = TypeVar("_Answer")
_ACTIVE: Final = frozenset(
    {
        "UnknownMemberIdError",
        "NonEmptyGroupError",
        "GroupSubscribedToTopicError",
        "RebalanceInProgressError",
    }
)
"""What a broker says of offsets whose group has members."""


class ProcessorsActiveError(DependencyUnreachableError):
    """Processors run, or count as running; their offsets cannot be set meanwhile."""


def hand_over(settings: Settings, store: Store, clock: Clock) -> int:
    """Set the processors' group to the places and states of the store.

    What they committed to the deltas topic before and the store has not applied is passed over:
    they make it again from the routing topic.

    Args:
        settings: Name the brokers, topics and the group.
        store: Open.
        clock: For pauses.

    Returns:
        How many partitions the store knows.

    Raises:
        ProcessorsActiveError: A processor runs; nothing was done.
        DependencyUnreachableError: No broker answers, or a topic is missing.
    """
    from kafka.errors import KafkaError

    routing, deltas = (topic_name(settings, each) for each in (Topic.ROUTING, Topic.DELTAS))
    known = _known(store, routing)
    try:
        members = _once_the_group_is_found(lambda: _members(settings), settings, clock)
        if members:
            raise _active(settings, f"members of the group: {', '.join(members)}")
        states = _send_states(settings, deltas, known)
        end = _once_the_group_is_found(
            lambda: _set_offsets(settings, routing, deltas, known, states), settings, clock
        )
    except KafkaError as error:
        if type(error).__name__ in _ACTIVE:
            raise _active(settings, f"the broker says {type(error).__name__}") from error
        raise explain(
            error, f"handing over to the group {settings['kafka.group']}", settings
        ) from error
    store.read_deltas_from(partition_name(deltas, 0), min(states.values(), default=end))
    return len(known)


def needs_hand_over(settings: Settings, store: Store) -> bool:
    """Whether a store that read routing batches itself is about to read deltas for the first time.

    Later it is for people to say so: a group whose offsets do not fit may be the wrong one.
    """
    routing, deltas = (topic_name(settings, each) for each in (Topic.ROUTING, Topic.DELTAS))
    return bool(_known(store, routing)) and partition_name(deltas, 0) not in store.read_to()


def _once_the_group_is_found(
    ask: Callable[[], _Answer], settings: Settings, clock: Clock
) -> _Answer:
    """An answer of a broker, which needs a moment to find out who keeps a group."""
    from kafka.errors import KafkaError

    gives_up = clock.monotonic() + settings["kafka.connect_timeout"]
    while True:
        try:
            return ask()
        except KafkaError as error:
            if not error.retriable or clock.monotonic() >= gives_up:
                raise
            clock.sleep(RETRY_SECONDS)


def _members(settings: Settings) -> list[str]:
    """Who belongs to the group at present, for people."""
    from kafka.errors import GroupIdNotFoundError

    group = settings["kafka.group"]
    with closing(open_admin(settings)) as admin:
        try:
            described = admin.describe_groups([group])[group]
        except GroupIdNotFoundError:
            return []
    return sorted(
        f"{each['group_instance_id'] or each['client_id']} at {each['client_host'].lstrip('/')}"
        for each in described["members"]
    )


def _active(settings: Settings, why: str) -> ProcessorsActiveError:
    return ProcessorsActiveError(
        f"A processor of the group {settings['kafka.group']} still runs.",
        why=f"Its offsets can be set only while nobody is in the group; {why}.",
        next_step="Stop all processors. One that was killed, or that has a kafka.instance_id, "
        f"counts as running for kafka.session_timeout ({settings['kafka.session_timeout']:g} s) "
        "more.",
    )


def _known(store: Store, routing: str) -> dict[int, PartitionProgress]:
    """Progress of the partitions of the routing topic, by number."""
    return {
        number: progress
        for name, progress in store.load_progress().items()
        if partition_name(routing, number := _number(name)) == name
    }


def _number(name: str) -> int:
    try:
        return partition_number(name)
    except ValueError:
        return -1


def _send_states(
    settings: Settings, deltas: str, known: Mapping[int, PartitionProgress]
) -> dict[int, int]:
    """Number of a partition → offset of its state's first record."""
    found: dict[int, int] = {}
    seconds = settings["kafka.delivery_timeout"]
    producer: Any = open_producer(settings)
    try:
        for number, progress in sorted(known.items()):
            sent = [
                producer.send(deltas, key=each.key, value=each.value, headers=list(each.headers))
                for each in state_records(progress, SENDER, number, HANDED_OVER)
            ]
            offsets = [each.get(timeout=seconds).offset for each in sent]
            found[number] = offsets[0]
    finally:
        producer.close(timeout=seconds)
    return found


def _set_offsets(
    settings: Settings,
    routing: str,
    deltas: str,
    known: Mapping[int, PartitionProgress],
    states: Mapping[int, int],
) -> int:
    """Commit the group's offsets, and delete those the store knows nothing of.

    Returns:
        Where the deltas topic ends.
    """
    from kafka import TopicPartition
    from kafka.structs import OffsetAndMetadata

    group = settings["kafka.group"]
    offsets = {
        TopicPartition(routing, number): OffsetAndMetadata(
            progress.replay_from,
            OffsetNote(progress.emitted_to, states[number], progress.watermark_us).text(),
            -1,
        )
        for number, progress in known.items()
    }
    with closing(open_admin(settings)) as admin:
        committed = admin.list_group_offsets([group]).get(group, {})
        ends = admin.list_partition_offsets({TopicPartition(deltas, 0): -1})
        stale = [place for place in committed if place.topic == routing and place not in offsets]
        results = dict(admin.alter_group_offsets(group, offsets))
        if stale:
            results |= admin.delete_group_offsets(group, stale)
    for refusal in results.values():
        if refusal.__name__ != "NoError":
            raise refusal
    return int(next(iter(ends.values())).offset)
