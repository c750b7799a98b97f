"""Records of the dead-letter topic say everything about a letter, and foreign ones are harmless."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moescope.core.accounts import DeadLetter
from moescope.core.dead_letter_reasons import DeadLetterReason
from moescope.core.kafka.dead_letters import (
    LARGEST_PAYLOAD,
    PayloadState,
    PublishedLetter,
    RecordKind,
    ReplayMark,
    dead_letter_record,
    read_record,
    replay_record,
)
from moescope.core.wire.errors import DecodeReason

TEXT = st.text(st.characters(codec="utf-8"), max_size=40)


@given(
    st.builds(
        DeadLetter,
        partition=TEXT.map("{}-3".format),
        offset=st.integers(0, 2**62),
        append_time_us=st.integers(-(2**63), 2**62),
        reason=TEXT,
        detail=TEXT,
        payload=st.binary(max_size=100),
    )
)
@settings(max_examples=40)
def test_letter_comes_back_as_it_was(letter: DeadLetter) -> None:
    """Place, reason, hash and every byte of the payload survive the topic."""
    record = dead_letter_record(letter, "moescope.routing")
    assert record.key.decode() == f"{letter.partition}:{letter.offset}"
    assert read_record(record.key, record.value, record.headers) == PublishedLetter(
        letter=letter,
        topic="moescope.routing",
        sha256=sha256(letter.payload).hexdigest(),
        payload_state=PayloadState.WHOLE,
    )


def test_payload_that_fits_no_record_is_left_out_and_said_to_be() -> None:
    """The letter of a giant record is published without it, with the hash of what was read."""
    payload = bytes(LARGEST_PAYLOAD + 1)
    letter = DeadLetter(
        partition="p-0", offset=1, append_time_us=0, reason="r", detail="d" * 9_000, payload=payload
    )
    record = dead_letter_record(letter, "p")
    assert record.value is None
    assert sum(len(value) for _, value in record.headers) < 4_000
    found = read_record(record.key, record.value, record.headers)
    assert isinstance(found, PublishedLetter)
    assert (found.payload_state, found.letter.payload) == (PayloadState.OMITTED, b"")
    assert found.sha256 == sha256(payload).hexdigest()


def test_mark_of_a_replay_comes_back_as_it_was() -> None:
    """Who replayed a letter, why, and as which batch, survive the topic; its value is empty."""
    mark = ReplayMark(
        key="moescope.routing-0:7",
        kind=RecordKind.REPLAYING,
        incarnation=2**64 - 1,
        sequence=3,
        marked_us=1_700_000_000_000_000,
        author="ops",
        reason="readers were upgraded – again",
    )
    record = replay_record(mark)
    assert record.value is None
    assert read_record(record.key, record.value, record.headers) == mark


@pytest.mark.parametrize("missing", ["kind", "offset", "reason", "payload"])
def test_records_of_others_are_passed_over(missing: str) -> None:
    """A record without our headers, or with nonsense in them, is no letter and no error."""
    letter = DeadLetter(
        partition="p-0", offset=1, append_time_us=0, reason="r", detail="", payload=b"x"
    )
    record = dead_letter_record(letter, "p")
    kept = [(name, value) for name, value in record.headers if not name.endswith(missing)]
    assert read_record(record.key, record.value, kept) is None
    nonsense = [(name, b"\xff?") for name, _ in record.headers]
    assert read_record(None, None, nonsense) is None
    assert read_record(None, None, [("moescope-kind", None), ("other", b"1")]) is None


def test_every_reason_is_explained() -> None:
    """Whoever finds a reason in a table finds in the docs what to do about it."""
    page = (Path(__file__).parents[2] / "docs/how-to/handle-dead-letters.md").read_text()
    assert [each for each in DeadLetterReason if f"| `{each}` |" not in page] == []
    assert set(DecodeReason) <= set(DeadLetterReason)
