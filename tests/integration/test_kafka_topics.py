"""Topics as code against a real broker: made, checked, mended, and never repartitioned."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from kafka.admin import ConfigResource, ConfigResourceType
from support.kafka_settings import kafka_settings
from typer.testing import CliRunner

from moescope.console.app import app
from moescope.console.checks import run_checks
from moescope.console.findings import Outcome
from moescope.console.kafka.broker_checks import check_broker
from moescope.console.kafka.topic_work import apply_topics, check_topics
from moescope.core.errors import InputError
from moescope.core.kafka import BrokerRefusedError, BrokerUnreachableError, open_admin

if TYPE_CHECKING:
    from pathlib import Path

    from support.broker_choice import SharedBroker

    from moescope.console.kafka.topic_plan import Difference
    from moescope.core.settings import Settings


def _yes(_: list[Difference]) -> None:
    """Agree to everything."""


def _alter(settings: Settings, topic: str, **configs: str) -> None:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    with closing(open_admin(settings)) as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, named)])


def test_topics_are_made_once_and_checked_clean(
    kafka_broker: SharedBroker, topic_prefix: str
) -> None:
    """Apply makes the declared topics; a second apply and the check find nothing to do."""
    settings = kafka_settings(kafka_broker.bootstrap, topic_prefix)
    assert {each.what for each in check_topics(settings).differences} == {"topic"}
    done, _ = apply_topics(settings, _yes)
    assert len(done) == 5
    assert check_topics(settings).differences == []
    assert apply_topics(settings, _yes)[0] == []
    with closing(open_admin(settings)) as admin:
        (routing,) = admin.describe_topics([f"{topic_prefix}.routing"])
    assert len(routing["partitions"]) == 2


def test_drift_is_shown_and_mended_and_other_configuration_left(
    kafka_broker: SharedBroker, topic_prefix: str
) -> None:
    """What somebody changed by hand is set back; what is not declared stays as they set it."""
    settings = kafka_settings(kafka_broker.bootstrap, topic_prefix)
    apply_topics(settings, _yes)
    dlq, control = f"{topic_prefix}.dlq", f"{topic_prefix}.control"
    _alter(settings, dlq, retention_ms="60000", segment_ms="1234567")
    _alter(settings, control, cleanup_policy="delete")
    with closing(open_admin(settings)) as admin:
        admin.delete_topics([f"{topic_prefix}.alerts"])
    found = {(each.topic, each.what) for each in check_topics(settings).differences}
    assert found == {
        (dlq, "retention.ms"),
        (control, "cleanup.policy"),
        (f"{topic_prefix}.alerts", "topic"),
    }
    apply_topics(settings, _yes)
    assert check_topics(settings).differences == []
    with closing(open_admin(settings)) as admin:
        configs = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, dlq)])
    assert configs["topic"][dlq]["segment.ms"]["value"] == "1234567"


def test_partitions_of_a_topic_stay_and_the_rest_is_mended(
    kafka_broker: SharedBroker, topic_prefix: str
) -> None:
    """Another number of partitions is exit code 2 and the way out, after the rest is done."""
    apply_topics(kafka_settings(kafka_broker.bootstrap, topic_prefix), _yes)
    changed = kafka_settings(
        kafka_broker.bootstrap, topic_prefix, kafka__partitions=3, kafka__dlq_retention=1
    )
    with pytest.raises(InputError) as refused:
        apply_topics(changed, _yes)
    assert refused.value.exit_code == 2
    assert "kafka.topic_prefix" in refused.value.next_step
    assert "1 difference can only" in refused.value.what
    (left,) = check_topics(changed).differences
    assert (left.what, left.found) == ("partitions", "2")


def test_replicas_that_the_cluster_cannot_hold_are_refused_in_words(
    kafka_broker: SharedBroker, topic_prefix: str
) -> None:
    """More replicas than brokers is a setting to correct, and makes no topic."""
    settings = kafka_settings(kafka_broker.bootstrap, topic_prefix, kafka__replication=31)
    with pytest.raises(BrokerRefusedError) as refused:
        apply_topics(settings, _yes)
    assert "kafka.replication" in refused.value.next_step
    assert len(check_topics(settings).differences) == 5


def test_nothing_is_made_without_a_yes(kafka_broker: SharedBroker, topic_prefix: str) -> None:
    """The plan is shown before; an answer that is no yes leaves the broker as it was."""
    settings = kafka_settings(kafka_broker.bootstrap, topic_prefix)

    def refuse(todo: list[Difference]) -> None:
        raise InputError(f"{len(todo)} are too many.")

    with pytest.raises(InputError):
        apply_topics(settings, refuse)
    assert len(check_topics(settings).differences) == 5


def _run(settings: Settings, *arguments: str, answers: str = "") -> tuple[int, str]:
    named = {
        f"MOESCOPE_KAFKA_{name}": str(settings[f"kafka.{name.lower()}"])
        for name in ("BOOTSTRAP_SERVERS", "TOPIC_PREFIX", "PARTITIONS", "CONNECT_TIMEOUT")
    }
    result = CliRunner(env=named).invoke(app, list(arguments), input=answers)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_commands_say_with_their_exit_code_what_they_found(
    kafka_broker: SharedBroker, topic_prefix: str
) -> None:
    """topics-check ends with 1 before and with 0 after topics-apply; both speak JSON."""
    settings = kafka_settings(kafka_broker.bootstrap, topic_prefix)
    code, text = _run(settings, "kafka", "topics-check", "--json")
    assert code == 1
    assert {each["found"] for each in json.loads(text)["differences"]} == {"missing"}
    with pytest.raises(InputError):
        _run(settings, "kafka", "topics-apply")
    code, text = _run(settings, "kafka", "topics-apply", "--yes", "--reason", "new", "--json")
    made: dict[str, Any] = json.loads(text)
    assert (code, len(made["done"]), made["reason"]) == (0, 5, "new")
    assert _run(settings, "kafka", "topics-check") == (0, "")


def test_absent_broker_is_told_quickly_by_check_and_doctor(tmp_path: Path) -> None:
    """Nobody at the address is exit code 3, and one failure among doctor's findings."""
    settings = kafka_settings(
        "127.0.0.1:1", "absent", kafka__connect_timeout=0.5, data__directory=str(tmp_path)
    )
    with pytest.raises(BrokerUnreachableError) as absent:
        check_topics(settings)
    assert absent.value.exit_code == 3
    failures = [each for each in run_checks(settings) if each.outcome is Outcome.FAILURE]
    assert [each.check for each in failures] == ["kafka broker"]
    assert "127.0.0.1:1" in failures[0].next_step


def test_doctor_tells_of_the_broker_and_each_difference(
    kafka_broker: SharedBroker, topic_prefix: str
) -> None:
    """Missing topics are failures; made as declared, nothing is wrong; drift is a warning."""
    settings = kafka_settings(kafka_broker.bootstrap, topic_prefix)
    before = [each.outcome for each in check_broker(settings) if each.check == "kafka topics"]
    assert before == [Outcome.FAILURE] * 5
    apply_topics(settings, _yes)
    assert {each.outcome for each in check_broker(settings)} == {Outcome.OK}
    _alter(settings, f"{topic_prefix}.routing", retention_ms="60000")
    (warning,) = (each for each in check_broker(settings) if each.outcome is not Outcome.OK)
    assert warning.outcome is Outcome.WARNING
    assert "topics-apply" in warning.next_step


def test_doctor_is_silent_about_kafka_where_there_is_none() -> None:
    """A single machine has no broker, and no finding about one."""
    assert list(check_broker(kafka_settings("", "none"))) == []
