"""A storm of dead letters is a line a minute for each reason, and every partition is in one."""

from __future__ import annotations

import pytest

from moescope.core.accounts import DeadLetterCount
from moescope.core.clock import ManualClock
from moescope.processors.letter_notes import QUIET_SECONDS, LetterNotes


class Told:
    """Notes, their clock, and what they said."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000)
        self.said: list[str] = []
        self.notes = LetterNotes(self.said.append, self.clock)

    def come(self, reason: str, **records: int) -> None:
        """One commit: partition → records of that reason."""
        self.notes.note(
            DeadLetterCount(
                partition=name, reason=reason, records=number, kept=number, record_bytes=9
            )
            for name, number in records.items()
        )

    def news(self) -> list[str]:
        """What was said since this was asked, up to the first semicolon."""
        found = [line.split(";")[0] for line in self.said]
        self.said.clear()
        return found


@pytest.fixture
def told() -> Told:
    """Nothing has come yet."""
    return Told()


def test_a_commit_is_one_line_that_names_every_partition(told: Told) -> None:
    """Another program that writes to all partitions is not taken for trouble in one."""
    told.come("malformed", b=4, a=30)
    assert told.news() == ["dead letters, malformed: 34 records (a 30, b 4)"]


def test_the_rest_of_a_minute_is_summed_up_at_its_end(told: Told) -> None:
    """A reason is told at once, and then once a minute for as long as more come."""
    told.come("malformed", a=1)
    for _ in range(50):
        told.come("malformed", a=1, b=2)
    told.come("log_gap", c=5)
    assert told.news() == [
        "dead letters, malformed: 1 record (a 1)",
        "dead letters, log_gap: 5 records (c 5)",
    ]
    told.notes.look()
    assert told.news() == []
    told.clock.sleep(QUIET_SECONDS)
    told.notes.look()
    assert told.news() == [
        "dead letters, malformed: 150 records (a 50, b 100) more in the last 60 s"
    ]
    told.come("malformed", a=1)
    assert told.news() == []


def test_a_storm_that_is_over_leaves_nothing_behind(told: Told) -> None:
    """After a minute without any the next one is told at once."""
    told.come("malformed", a=1)
    told.clock.sleep(QUIET_SECONDS)
    told.notes.look()
    assert told.news() == ["dead letters, malformed: 1 record (a 1)"]
    told.come("malformed", a=2)
    assert told.news() == ["dead letters, malformed: 2 records (a 2)"]


def test_who_ends_says_what_it_has_not_said(told: Told) -> None:
    """Records of the last minute are not kept back."""
    told.come("malformed", a=1)
    told.come("malformed", a=2)
    told.clock.sleep(7)
    told.news()
    told.notes.end()
    assert told.news() == ["dead letters, malformed: 2 records (a 2) more in the last 7 s"]
