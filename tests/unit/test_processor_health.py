"""A processor says what it does, and what it waits for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from moescope.console.processor_work import _State
from moescope.console.watch import HealthStatus
from moescope.core.kafka import BrokerUnreachableError
from moescope.core.kafka.broker_watch import BrokerWatch
from moescope.core.self_metrics import SelfMetrics
from moescope.core.settings import load_settings
from moescope.core.thresholds import ThresholdBook
from moescope.processors.control import ControlFollower

if TYPE_CHECKING:
    from collections.abc import Callable


def ignore(text: str) -> None:
    """Nobody listens."""


def test_health_tells_the_share_and_what_is_waited_for() -> None:
    """Partitions, lag and commits are facts; while no broker answers it waits, and says why."""
    metrics, log = SelfMetrics(), ignore
    watch = BrokerWatch(log)
    state = _State(metrics, watch)
    assert state.health().status is HealthStatus.WAITING
    state.control, state.is_working = follower(log), True
    metrics.set("moescope_processor_assigned_partitions", 2)
    metrics.set("moescope_processor_lag_records", 5, partition="routing-0")
    metrics.set("moescope_processor_lag_records", 7, partition="routing-1")
    metrics.add("moescope_processor_commits_total", 3)
    facts = {"partitions": 2, "lag_records": 12, "commits": 3}
    assert (state.health().status, dict(state.health().facts)) == (HealthStatus.OK, facts)
    watch.lost(BrokerUnreachableError("No Kafka broker answered.", next_step="Start one."))
    health = state.health()
    assert (health.status, dict(health.facts)) == (HealthStatus.WAITING, facts)
    assert "No Kafka broker answered." in health.why
    watch.found()
    assert state.health().status is HealthStatus.OK


def test_health_tells_why_thresholds_are_not_known_yet() -> None:
    """Whoever looks is told of the broker that is not there, and not only of thresholds."""
    state = _State(SelfMetrics(), BrokerWatch(ignore))
    assert "not read yet" in state.health().why
    told = threading.Event()
    settings = load_settings(
        environment={},
        options={"kafka.bootstrap_servers": "127.0.0.1:9", "kafka.connect_timeout": 0.5},
    )
    with ControlFollower(settings, ThresholdBook(), lambda _: told.set()) as control:
        state.control = control
        assert told.wait(60)
        health = state.health()
    assert health.status is HealthStatus.WAITING
    assert "127.0.0.1:9" in health.why


def follower(log: Callable[[str], None]) -> ControlFollower:
    """One that has no failure; it is not started."""
    return ControlFollower(load_settings(environment={}), ThresholdBook(), log)
