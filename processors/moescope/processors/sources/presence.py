"""Whether a topic is there and somebody answers, where nothing else is asked of a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kafka.errors import KafkaTimeoutError

from moescope.core.kafka import explain, missing_topic

if TYPE_CHECKING:
    from moescope.core.clock import Clock
    from moescope.core.kafka.broker_watch import BrokerWatch
    from moescope.core.settings import Settings

ABSENT_LOOKS: Final = 2
"""The first answer may belong to a question that was asked before the topic was named."""
SILENCE_SECONDS: Final = 10.0
"""Metadata that are asked for every three seconds are that old where nobody answers."""


class TopicPresence:
    """Judges by the metadata that a consumer asks for by itself.

    Args:
        settings: Name the brokers.
        topic: Name of the topic.
        clock: Tells how long nobody has answered.
        watch: Told what was found.
    """

    def __init__(self, settings: Settings, topic: str, clock: Clock, watch: BrokerWatch) -> None:
        self._settings = settings
        self._topic = topic
        self._clock = clock
        self._watch = watch
        self._cluster: Any = None
        self._told_ms = 0.0
        self._told_at = clock.monotonic()
        self._absent_looks = 0

    def use(self, consumer: Any) -> None:  # noqa: ANN401 (untyped library)
        """Judge by this consumer from now on."""
        self._cluster = getattr(getattr(consumer, "_client", None), "cluster", None)
        self._told_at = self._clock.monotonic()
        self._absent_looks = 0

    def look(self) -> None:
        """Tell what is known now."""
        if self._cluster is None:
            return
        now = self._clock.monotonic()
        told_ms = getattr(self._cluster, "_last_successful_refresh_ms", 0.0)
        if told_ms > self._told_ms:
            self._told_ms, self._told_at = told_ms, now
            self._judge()
        elif now - self._told_at >= SILENCE_SECONDS:
            silence = KafkaTimeoutError(f"No metadata for {SILENCE_SECONDS:g} s.")
            self._watch.lost(explain(silence, f"looking for {self._topic}", self._settings))

    def _judge(self) -> None:
        if self._cluster.partitions_for_topic(self._topic):
            self._absent_looks = 0
            self._watch.found()
            return
        self._absent_looks += 1
        if self._absent_looks >= ABSENT_LOOKS:
            self._watch.lost(missing_topic(self._topic))
