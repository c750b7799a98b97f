"""Reasons as people type them for letters of the topic."""

from __future__ import annotations

import pytest

from moescope.console.kafka.letters import known_reason
from moescope.core.dead_letter_reasons import DeadLetterReason
from moescope.core.errors import InputError


@pytest.mark.parametrize("reason", ["deltas_gap", "damaged_emission"])
def test_letters_that_only_the_store_has_are_asked_of_the_store(reason: str) -> None:
    """The reason exists, so it is not denied: the message says where to look."""
    with pytest.raises(InputError, match="in the store's table only") as caught:
        known_reason(reason)
    assert f"FROM dead_letters WHERE reason = '{reason}'" in caught.value.next_step


def test_a_reason_that_does_not_exist_is_told_those_of_the_topic() -> None:
    """A mistyped reason never lists as no letters; none means all."""
    with pytest.raises(InputError, match="No dead letter has the reason 'mallformed'") as caught:
        known_reason("mallformed")
    assert "malformed" in caught.value.why
    assert "deltas_gap" not in caught.value.why
    assert known_reason("") == ""
    assert known_reason("log_gap") == DeadLetterReason.LOG_GAP
