"""A storm of dead letters is one line a minute for each reason."""

from __future__ import annotations

from moescope.core.clock import ManualClock
from moescope.core.emission import DeadLetterCount
from moescope.processors.letter_notes import QUIET_SECONDS, LetterNotes


def test_first_of_a_storm_is_told_and_the_rest_of_its_minute_is_not() -> None:
    """Another reason is told at once, the same one after a minute."""
    said: list[str] = []
    clock = ManualClock(1_000_000)
    notes = LetterNotes(said.append, clock)

    def come(reason: str) -> None:
        notes.note(
            [DeadLetterCount(partition="p", reason=reason, records=4, kept=4, record_bytes=9)]
        )

    for _ in range(50):
        come("bad_magic")
    come("log_gap")
    assert [line.split(";")[0] for line in said] == [
        "dead letters of p: 4 records, bad_magic",
        "dead letters of p: 4 records, log_gap",
    ]
    clock.sleep(QUIET_SECONDS)
    come("bad_magic")
    assert len(said) == 3
