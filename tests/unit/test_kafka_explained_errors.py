"""What a broker answers is told as what it is: in vain, for now, or no answer at all."""

from __future__ import annotations

import pytest
from kafka import errors

from moescope.core.errors import DependencyUnreachableError, SettingsError
from moescope.core.kafka import BrokerDeclinedError, BrokerUnreachableError, explain
from moescope.core.settings import load_settings

SETTINGS = load_settings(environment={}, options={"kafka.transaction_timeout": 700.0})


@pytest.mark.parametrize(
    ("error", "setting"),
    [
        (errors.InvalidTransactionTimeoutError, "kafka.transaction_timeout = 700"),
        (errors.InvalidSessionTimeoutError, "kafka.session_timeout = 10"),
        (errors.InvalidGroupIdError, "kafka.group = moescope"),
        (errors.InconsistentGroupProtocolError, "kafka.group = moescope"),
        (errors.InvalidTopicError, "kafka.topic_prefix = moescope"),
    ],
)
def test_what_no_waiting_mends_names_the_setting(error: type[Exception], setting: str) -> None:
    """Such an error is one of settings, which ends a command with 2."""
    explained = explain(error("said so"), "joining", SETTINGS)
    assert isinstance(explained, SettingsError)
    assert setting in explained.what
    assert error.__name__ in explained.why


def test_an_error_is_named_once() -> None:
    """The library's errors often begin with their own name; others do not."""
    unreachable = explain(errors.KafkaConnectionError("111 ECONNREFUSED"), "joining", SETTINGS)
    assert unreachable.why == "KafkaConnectionError: 111 ECONNREFUSED"
    assert explain(OSError("no route"), "joining", SETTINGS).why == "OSError: no route"


def test_answer_that_is_told_in_words_only_is_known_all_the_same() -> None:
    """The client wraps what it does not expect about transactions in an error without a kind."""
    told = "Unexpected error in InitProducerIdResponse: [Error 50] InvalidTransactionTimeoutError"
    explained = explain(errors.KafkaError(told), "joining", SETTINGS)
    assert isinstance(explained, SettingsError)
    assert "kafka.transaction_timeout" in explained.what


@pytest.mark.parametrize(
    "error", [errors.InvalidTxnStateError, errors.UnknownError, errors.GroupMaxSizeReachedError]
)
def test_broker_that_answers_is_not_said_to_be_away(error: type[Exception]) -> None:
    """It refused, which may pass; the answer's own name is told."""
    explained = explain(error("said so"), "joining", SETTINGS)
    assert isinstance(explained, BrokerDeclinedError)
    assert isinstance(explained, DependencyUnreachableError)
    assert error.__name__ in explained.why


@pytest.mark.parametrize(
    "error",
    [errors.KafkaTimeoutError, errors.KafkaConnectionError, errors.NotLeaderForPartitionError],
)
def test_no_answer_is_a_broker_that_cannot_be_reached(error: type[Exception]) -> None:
    """Nobody answered, or not who can."""
    assert type(explain(error("late"), "joining", SETTINGS)) is BrokerUnreachableError
