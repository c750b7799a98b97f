"""A broker's own settings against what moescope asks of it; no broker needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moescope.console.findings import Finding, Outcome
from moescope.core.kafka.broker_settings import BROKER_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from moescope.core.settings import Settings

CHECK: Final = "kafka broker"

_AT_LEAST: Final = {
    "message.max.bytes": "larger routing batches are refused where a topic does not say otherwise",
    "replica.fetch.max.bytes": "replicas fetch the largest batches one by one, or fall behind",
    "offsets.retention.minutes": "a processor group that was off for longer starts again from the "
    "beginning",
}
_EXACTLY: Final = {
    "auto.create.topics.enable": "a mistyped topic name becomes a topic with the wrong partitions "
    "and retention",
    "unclean.leader.election.enable": "acknowledged records can be lost for availability",
}


def limit_findings(name: str, broker: Mapping[str, str], settings: Settings) -> Iterator[Finding]:
    """Warnings about one broker.

    Args:
        name: Of the broker, for people.
        broker: Its settings; what is missing may not be read and is not judged.
        settings: Time-outs that have to be inside of the broker's limits.
    """
    for setting, consequence in _AT_LEAST.items():
        if setting in broker and int(broker[setting]) < int(BROKER_SETTINGS[setting]):
            yield _warning(
                name, setting, broker, f"at least {BROKER_SETTINGS[setting]}", consequence
            )
    for setting, consequence in _EXACTLY.items():
        if setting in broker and broker[setting] != BROKER_SETTINGS[setting]:
            yield _warning(name, setting, broker, BROKER_SETTINGS[setting], consequence)
    session_ms = round(settings["kafka.session_timeout"] * 1_000)
    transaction_ms = round(settings["kafka.transaction_timeout"] * 1_000)
    refused = "processors with these settings are refused"
    for setting, wanted, is_within in (
        ("group.min.session.timeout.ms", session_ms, int.__le__),
        ("group.max.session.timeout.ms", session_ms, int.__ge__),
        ("transaction.max.timeout.ms", transaction_ms, int.__ge__),
    ):
        if setting in broker and not is_within(int(broker[setting]), wanted):
            bound = "at most" if is_within is int.__le__ else "at least"
            yield _warning(name, setting, broker, f"{bound} {wanted}", refused)


def replication_findings(
    broker: Mapping[str, str], brokers: int, settings: Settings
) -> Iterator[Finding]:
    """Warnings about a cluster whose new topics would live on one broker alone.

    Args:
        broker: Settings of one of them.
        brokers: How many there are.
        settings: Say who decides about replicas.
    """
    if brokers > 1 and settings["kafka.replication"] == -1:
        setting = "default.replication.factor"
        if broker.get(setting) == "1":
            yield _warning(
                f"{brokers} brokers", setting, broker, "3", "topics live on one broker, and are "
                "gone with it; or set kafka.replication",
            )  # fmt: skip


def _warning(
    name: str, setting: str, broker: Mapping[str, str], wanted: str, consequence: str
) -> Finding:
    return Finding(
        CHECK,
        Outcome.WARNING,
        f"{name}: {setting} is {broker[setting]}, should be {wanted}: {consequence}",
        "Change it in the settings of the broker; the reference page on topics lists all.",
    )
