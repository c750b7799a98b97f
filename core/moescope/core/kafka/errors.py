"""What goes wrong with a broker, in words that say what to do about it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar, Final

from moescope.core.errors import (
    DependencyUnreachableError,
    InputError,
    MoescopeError,
    SettingsError,
)

if TYPE_CHECKING:
    from moescope.core.settings import Settings


class BrokerUnreachableError(DependencyUnreachableError):
    """No broker answers, or not in time."""


class BrokerDeclinedError(BrokerUnreachableError):
    """A broker answers, and does not do what was asked of it; later it may."""


class TopicMissingError(DependencyUnreachableError):
    """A topic does not exist."""


class BrokerRefusedError(InputError):
    """The broker does not accept who we say we are, or what we want to do."""

    exit_code: ClassVar[int] = 3


class KafkaRecordTooLargeError(InputError):
    """A record is larger than the broker or the topic allows."""


class MissingChecksumError(InputError):
    """The fast checksum is not installed: Kafka would run at a thirtieth of its speed."""


_REFUSED: Final = frozenset(
    {
        "SaslAuthenticationFailedError",
        "AuthenticationFailedError",
        "TopicAuthorizationFailedError",
        "GroupAuthorizationFailedError",
        "ClusterAuthorizationFailedError",
        "TransactionalIdAuthorizationFailedError",
        "UnsupportedSaslMechanismError",
        "IllegalSaslStateError",
        "AuthorizationError",
    }
)
_WRONG_SETTING: Final = {
    "InvalidTransactionTimeoutError": (
        "kafka.transaction_timeout",
        "Lower it, or raise the brokers' transaction.max.timeout.ms.",
    ),
    "InvalidSessionTimeoutError": (
        "kafka.session_timeout",
        "Put it between the brokers' group.min and group.max.session.timeout.ms.",
    ),
    "InvalidGroupIdError": ("kafka.group", "Give the group another name."),
    "InconsistentGroupProtocolError": (
        "kafka.group",
        "Others share out partitions in another way in this group: use a group of its own.",
    ),
    "InvalidTopicError": ("kafka.topic_prefix", "Choose a prefix that gives names of topics."),
}
"""What a broker will never take, whose setting it is, and what to do about it."""
_ERROR_NAME: Final = re.compile(r"\[Error -?\d+\] (\w+)")
_MAKE_TOPICS: Final = "Make the topics: `moescope kafka topics-apply --yes`."
_MISSING: Final = frozenset({"UnknownTopicOrPartitionError", "UnknownTopicIdError"})
_TOO_LARGE: Final = frozenset({"MessageSizeTooLargeError", "RecordListTooLargeError"})


def missing_topic(topic: str) -> TopicMissingError:
    """The error of a topic that is not there."""
    return TopicMissingError(
        f"The topic {topic} does not exist.",
        next_step=_MAKE_TOPICS,
    )


def absent_topic(topic: str) -> Any:
    """The client's error for it, of which `explain` makes one with the topic's name."""
    from kafka.errors import UnknownTopicOrPartitionError  # noqa: PLC0415 (not before a client)

    error = UnknownTopicOrPartitionError(topic)
    error.absent_topic = topic
    return error


def is_refusal(error: BaseException) -> bool:
    """Whether a broker does not accept who we are, or we it: time does not mend that."""
    names = _names(error)
    # The library turns what OpenSSL says into text.
    return bool(names & _REFUSED or "SSLError" in names or "CERTIFICATE" in str(error))


def explain(error: BaseException, doing: str, settings: Settings) -> MoescopeError:
    """The error of ours that stands for one of the Kafka client's.

    Args:
        error: What the client raised, or an `ssl.SSLError`.
        doing: What was tried, to go behind "while": "sending to moescope.routing".
        settings: Name the brokers.
    """
    names = _names(error)
    why = _told(error)
    servers = settings["kafka.bootstrap_servers"]
    if is_refusal(error):
        return BrokerRefusedError(
            f"The Kafka broker refused while {doing}.",
            why=why,
            next_step="Check kafka.security_protocol, the user, the certificates and the "
            "broker's access rules: `moescope doctor`.",
        )
    if "KafkaConfigurationError" in names or names & _WRONG_SETTING.keys():
        return _wrong_setting(names, doing, settings, why)
    if names & _TOO_LARGE:
        return KafkaRecordTooLargeError(
            f"A record is over the broker's limit while {doing}.",
            why=why,
            next_step="Raise the limits that `moescope kafka topics-check` lists.",
        )
    if names & _MISSING:
        return _missing(error, doing, why)
    if "BrokerResponseError" in names and "RetriableError" not in names:
        return BrokerDeclinedError(
            f"The Kafka broker refused what was asked while {doing}.",
            why=why,
            next_step="See the broker's log; moescope asks again.",
        )
    return BrokerUnreachableError(
        f"No Kafka broker answered while {doing}.",
        why=why,
        next_step=f"Check that a broker runs at {servers}, can be reached from here, and speaks "
        f"{settings['kafka.security_protocol']} there (kafka.security_protocol).",
    )


def _missing(error: BaseException, doing: str, why: str) -> TopicMissingError:
    topic = getattr(error, "absent_topic", "")
    if topic:
        return missing_topic(topic)
    return TopicMissingError(f"A topic is missing while {doing}.", why=why, next_step=_MAKE_TOPICS)


def _told(error: BaseException) -> str:
    """What an error says, with the name of its class once: the library's often begin with it."""
    name, text = type(error).__name__, str(error)
    return text if name in text else f"{name}: {text}"


def _names(error: BaseException) -> set[str]:
    """Names of an error's classes, and of that which it only tells in words.

    What the library does not expect of an answer about transactions becomes a plain `KafkaError`
    with the answer in its text.
    """
    names = {kind.__name__ for kind in type(error).__mro__}
    if type(error).__name__ == "KafkaError":
        from kafka import errors  # noqa: PLC0415 (imported already by who raised it)

        for word in _ERROR_NAME.findall(str(error)):
            told = getattr(errors, word, None)
            names |= {kind.__name__ for kind in getattr(told, "__mro__", ())}
    return names


def _wrong_setting(names: set[str], doing: str, settings: Settings, why: str) -> SettingsError:
    for name in names & _WRONG_SETTING.keys():
        setting, next_step = _WRONG_SETTING[name]
        return SettingsError(
            f"The Kafka broker does not take {setting} = {settings[setting]} while {doing}.",
            why=why,
            next_step=next_step,
        )
    return SettingsError(
        f"The Kafka client does not accept its settings while {doing}.",
        why=why,
        next_step="Check the settings under kafka: `moescope config show`.",
    )
