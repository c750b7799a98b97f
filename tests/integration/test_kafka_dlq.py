"""Dead letters in a real topic: listed, shown, and replayed so that each counts once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaError, ProducerFencedError
from support.batches import START_US, make_batch
from support.kafka_settings import committed_records, kafka_settings, make_topics, variables_of
from typer.testing import CliRunner

from moescope.console.app import app
from moescope.console.kafka.letters import Selection
from moescope.console.kafka.replay import (
    ReplayOrder,
    ReplayTakenOverError,
    _told_of_a_takeover,
    replay_letters,
)
from moescope.core.accounts import DeadLetter
from moescope.core.clock import ManualClock, SystemClock
from moescope.core.errors import InputError, MoescopeError
from moescope.core.kafka import open_admin, open_producer
from moescope.core.kafka.dead_letters import dead_letter_record
from moescope.core.kafka.record_times import append_time_us
from moescope.core.wire import decode, decode_batch, encode_batch, peek_identity
from moescope.processors.config import WindowConfig
from moescope.processors.partition import Partition
from moescope.processors.sources.protocol import SourceRecord

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from support.broker_choice import SharedBroker

    from moescope.core.settings import Settings

CONFIG = WindowConfig(token=((8, 8),), row_budget=10**9)


@pytest.fixture
def fleet(kafka_broker: SharedBroker, topic_prefix: str) -> Settings:
    """Topics of this test's own."""
    settings = kafka_settings(kafka_broker.bootstrap, topic_prefix)
    make_topics(settings)
    return settings


def _batches(number: int) -> list[bytes]:
    return [
        encode_batch(
            make_batch(
                seed,
                requests=1,
                first_position=64 * seed,
                prompt_tokens=10_000,
                header={"sequence": seed, "watermark_us": START_US},
            )
        )
        for seed in range(number)
    ]


def _letters(settings: Settings, payloads: Sequence[bytes], reason: str) -> list[DeadLetter]:
    return [
        DeadLetter(
            partition=f"{settings['kafka.topic_prefix']}.routing-1",
            offset=offset,
            append_time_us=START_US,
            reason=reason,
            detail=f"letter {offset}",
            payload=payload,
        )
        for offset, payload in enumerate(payloads)
    ]


def _publish(settings: Settings, letters: Sequence[DeadLetter]) -> None:
    topic = f"{settings['kafka.topic_prefix']}.dlq"
    with closing(open_producer(settings)) as producer:
        # Records of others in the topic must disturb nobody.
        producer.send(topic, key=b"foreign", value=b"?", headers=[("moescope-kind", b"letter")])
        for letter in letters:
            record = dead_letter_record(letter, f"{settings['kafka.topic_prefix']}.routing")
            producer.send(topic, key=record.key, value=record.value, headers=record.headers)
        producer.flush()


def _run(settings: Settings, *arguments: str | Path) -> Any:
    result = CliRunner(env=variables_of(settings)).invoke(
        app, ["kafka", *map(str, arguments), "--json"]
    )
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0
    return json.loads(result.stdout)


def _replayed_records(settings: Settings) -> list[SourceRecord]:
    """Everything in the routing topic; the tests' batches are of one node, so of one partition."""
    topic = f"{settings['kafka.topic_prefix']}.routing"
    records = [each for number in range(2) for each in committed_records(settings, topic, number)]
    assert {each.key for each in records} <= {b"node-0"}
    return [
        SourceRecord(
            offset, append_time_us(each.timestamp * 1_000, each.headers), bytes(each.value)
        )
        for offset, each in enumerate(records)
    ]


def _counted(records: Sequence[SourceRecord]) -> tuple[list[str], list[Any]]:
    """Verdicts, and counts of the token windows, of a partition that reads nothing else."""
    partition = Partition("p", "live", CONFIG, None)
    for record in records:
        partition.process(record)
    partition.seal()
    output = partition.take()[1]
    assert output.dead_letters == []
    windows = [
        (group.request[w], int(group.start[w]), group.counts[w].tolist())
        for group in output.groups
        for w in range(len(group))
    ]
    return [account.verdict for account in output.batches], sorted(windows)


def test_letters_of_an_old_reader_count_after_its_upgrade(
    fleet: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a reader of another version put aside is replayed by this one into the same windows."""
    payloads = _batches(3)
    older = Partition(f"{fleet['kafka.topic_prefix']}.routing-1", "live", CONFIG, None)
    with monkeypatch.context() as other_version:
        other_version.setattr(decode, "MAJOR_VERSION", 9)
        for offset, payload in enumerate(payloads):
            older.process(SourceRecord(offset, START_US, payload))
    letters = older.take()[1].dead_letters
    assert {letter.reason for letter in letters} == {"unknown_version"}
    _publish(fleet, letters)
    lines = _run(fleet, "dlq-replay", "--only", "unknown_version", "--yes", "--reason", "upgraded")
    assert [line["outcome"] for line in lines] == ["replayed"] * 3
    records = _replayed_records(fleet)
    assert [line["sequence"] for line in lines] == [0, 1, 2]
    verdicts, windows = _counted(records)
    # Appended, as far as clocks are compared, when the record was first read.
    assert verdicts == ["accepted"] * 3
    assert all(abs(record.append_time_us - START_US) < 60_000_000 for record in records)
    direct = [SourceRecord(offset, START_US, each) for offset, each in enumerate(payloads)]
    assert windows == _counted(direct)[1]
    (listed, *_) = _run(fleet, "dlq-list")
    assert (listed["replay"]["state"], listed["replay"]["reason"]) == ("replayed", "upgraded")


def test_what_cannot_be_read_is_listed_and_stays(fleet: Settings) -> None:
    """A record from the future is left with its error; the letter beside it is replayed, once."""
    good, other = _batches(2)
    too_new = good[:4] + b"\x63" + good[5:]
    gone = _letters(fleet, [b"", b"", b"", b""], "log_gap")[3]
    _publish(fleet, [*_letters(fleet, [too_new, other, b""], "malformed"), gone])
    first = _run(fleet, "dlq-replay", "--yes")
    by_key = {line["key"].rpartition("-")[2]: line for line in first}
    assert {key: line["outcome"] for key, line in by_key.items()} == {
        "1:0": "left",
        "1:1": "replayed",
        "1:2": "left",
        "1:3": "left",
    }
    assert "version 99" in by_key["1:0"]["why"]
    assert by_key["1:1"]["has_late_rows"]
    with pytest.raises(MoescopeError) as undecodable:
        decode_batch(b"")
    assert by_key["1:2"]["why"] == undecodable.value.what
    assert by_key["1:3"]["why"] == "it stands for records that are gone"
    again = _run(fleet, "dlq-replay", "--yes")
    assert {line["outcome"] for line in again} == {"left"}
    assert len(_replayed_records(fleet)) == 1
    (forced,) = _run(fleet, "dlq-replay", "1:1", "--again", "--yes")
    assert forced["outcome"] == "replayed"
    assert forced["incarnation"] != by_key["1:1"]["incarnation"]


def test_letter_that_was_published_again_after_its_replay_stays_replayed(fleet: Settings) -> None:
    """Even where the first copy of the letter has expired, the mark between them counts."""
    letters = _letters(fleet, _batches(2), "unknown_version")
    _publish(fleet, letters)
    _run(fleet, "dlq-replay", "--yes")
    _publish(fleet, letters)
    place = TopicPartition(f"{fleet['kafka.topic_prefix']}.dlq", 0)
    with closing(open_admin(fleet)) as admin:
        admin.delete_records({place: 3})
    for since in ((), ("--since", "2020-01-01")):
        lines = _run(fleet, "dlq-replay", *since, "--yes")
        assert [line["outcome"] for line in lines] == ["left"] * 2
    assert len(_replayed_records(fleet)) == 2


def test_a_letter_that_is_named_and_not_there_ends_the_replay(fleet: Settings) -> None:
    """A typing error is told as one; the letter beside it is left for the right command."""
    _publish(fleet, _letters(fleet, _batches(1), "unknown_version"))
    with pytest.raises(InputError, match=r"There is no dead letter .*-9:9 in"):
        _run(fleet, "dlq-replay", "1:0", "9:9", "--yes")
    with pytest.raises(InputError, match=r"There is no dead letter .*-1:0 in"):
        _run(fleet, "dlq-replay", "1:0", "--only", "malformed", "--yes")
    assert _replayed_records(fleet) == []


def test_letters_that_may_be_counted_already_have_to_be_named(fleet: Settings) -> None:
    """A batch too far behind to tell is replayed only when somebody says so."""
    _publish(fleet, _letters(fleet, _batches(1), "sequence_too_old"))
    (line,) = _run(fleet, "dlq-replay", "--yes")
    assert (line["outcome"], "counted already" in line["why"]) == ("left", True)
    (line,) = _run(fleet, "dlq-replay", "1:0", "--yes")
    assert line["outcome"] == "replayed"


def test_list_and_show_tell_everything_of_a_letter(fleet: Settings, tmp_path: Path) -> None:
    """The newest come last; filters take what they say; the saved payload is byte for byte."""
    payload = _batches(1)[0]
    letters = _letters(fleet, [b"x", b"y", payload], "malformed")
    _publish(fleet, [*letters, letters[2]])
    rows = _run(fleet, "dlq-list", "--limit", "2")
    assert [row["offset"] for row in rows] == [1, 2]
    assert _run(fleet, "dlq-list", "--only", "over_limits") == []
    for command in (("dlq-list",), ("dlq-replay", "--yes")):
        with pytest.raises(InputError) as unknown:
            _run(fleet, *command, "--only", "nonsense")
        assert "malformed" in unknown.value.why
    assert _run(fleet, "dlq-list", "--since", "2200-01-01") == []
    assert len(_run(fleet, "dlq-list", "--since", "2020-01-01")) == 3
    file = tmp_path / "letter.bin"
    shown = _run(fleet, "dlq-show", "1:2", "--output", file)
    assert file.read_bytes() == payload
    assert (shown["reason"], shown["detail"]) == ("malformed", "letter 2")
    assert shown["batch"]["node"] == "node-0"
    assert bytes.fromhex(shown["first_bytes"][0][10:57]) == payload[:16]
    assert _run(fleet, "dlq-show", "1:0")["batch"]["readable"] is False
    for wrong in ("1:77", "nonsense"):
        with pytest.raises(InputError):
            _run(fleet, "dlq-show", wrong)
    with pytest.raises(InputError):
        _run(fleet, "dlq-show", "1:2", "--output", file)


class _EndingClock(ManualClock):
    """Fails after so many questions, as a killed process would; the first is when it began."""

    def __init__(self, questions: int) -> None:
        super().__init__(START_US)
        self.left = questions

    def now_us(self) -> int:
        """The time, as long as there is any."""
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().now_us()


def _order(incarnation: int) -> ReplayOrder:
    return ReplayOrder(
        selection=Selection(), again=False, incarnation=incarnation, author="a", reason=""
    )


@pytest.mark.parametrize("questions", [1, 3, 4], ids=["marked", "some sent", "all sent"])
def test_interrupted_replay_goes_on_and_counts_nothing_twice(
    fleet: Settings, questions: int
) -> None:
    """After a kill between the marks, the next replay writes the same batches once more."""
    payloads = _batches(3)
    _publish(fleet, _letters(fleet, payloads, "unknown_version"))
    with pytest.raises(KeyboardInterrupt):
        replay_letters(fleet, _order(7), _EndingClock(1 + questions), lambda _: None)
    lines = replay_letters(fleet, _order(8), SystemClock(), lambda _: None)
    assert [(line.incarnation, line.sequence) for line in lines] == [(7, 0), (7, 1), (7, 2)]
    records = _replayed_records(fleet)
    assert len(records) == 3 + questions - 1
    verdicts, windows = _counted(records)
    assert sorted(verdicts) == ["accepted"] * 3 + ["duplicate"] * (questions - 1)
    direct = [SourceRecord(offset, START_US, each) for offset, each in enumerate(payloads)]
    assert windows == _counted(direct)[1]


_KILLED = """
import os, signal, sys
from moescope.console.kafka import replay
from moescope.console.kafka.letters import Selection
from moescope.core.clock import SystemClock
from moescope.core.settings import load_settings
write = replay._Writer._send
def dies(self, each):
    if each.sequence == int(sys.argv[1]):
        self._routing.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    return write(self, each)
replay._Writer._send = dies
order = replay.ReplayOrder(
    selection=Selection(), again=False, incarnation=7, author="a", reason=""
)
replay.replay_letters(load_settings(), order, SystemClock(), lambda _: None)
"""


@pytest.mark.parametrize("sent", [0, 2])
def test_killed_replay_that_is_repeated_delivers_each_letter_once(
    fleet: Settings, sent: int
) -> None:
    """SIGKILL after the first mark: by (node, incarnation, sequence) each letter is there once."""
    payloads = _batches(4)
    _publish(fleet, _letters(fleet, payloads, "unknown_version"))
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, str(sent)],
        env=os.environ | variables_of(fleet),
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert len(_replayed_records(fleet)) == sent
    marks = {row["key"]: row["replay"]["state"] for row in _run(fleet, "dlq-list")}
    assert list(marks.values()) == ["replaying"] * 4
    lines = _run(fleet, "dlq-replay", "--yes")
    assert [(line["outcome"], line["incarnation"]) for line in lines] == [("replayed", 7)] * 4
    records = _replayed_records(fleet)
    assert len(records) == 4 + sent
    identities = {peek_identity(record.payload) for record in records}
    assert len(identities) == 4
    verdicts, windows = _counted(records)
    assert sorted(verdicts) == ["accepted"] * 4 + ["duplicate"] * sent
    direct = [SourceRecord(offset, START_US, each) for offset, each in enumerate(payloads)]
    assert windows == _counted(direct)[1]
    assert {line["outcome"] for line in _run(fleet, "dlq-replay", "--yes")} == {"left"}


class _OvertakenClock(SystemClock):
    """Lets another replay begin and end when asked for the time for the n-th time."""

    def __init__(self, settings: Settings, question: int) -> None:
        super().__init__()
        self._settings = settings
        self._left = question

    def now_us(self) -> int:
        """The time, perhaps after another replay."""
        self._left -= 1
        if not self._left:
            replay_letters(self._settings, _order(8), SystemClock(), lambda _: None)
        return super().now_us()


@pytest.mark.parametrize("question", [1, 3, 4], ids=["to mark", "sending", "to mark again"])
def test_replay_that_is_overtaken_anywhere_says_so(fleet: Settings, question: int) -> None:
    """Whatever the library raises for a fenced producer, it is exit code 2 and the same words."""
    _publish(fleet, _letters(fleet, _batches(2), "unknown_version"))
    with pytest.raises(ReplayTakenOverError) as caught:
        replay_letters(fleet, _order(7), _OvertakenClock(fleet, 1 + question), lambda _: None)
    assert caught.value.exit_code == 2
    assert len({peek_identity(each.payload) for each in _replayed_records(fleet)}) == 2


def test_a_failure_that_a_fenced_producer_causes_is_told_as_one() -> None:
    """The library wraps the first failure into the message of each later call."""
    wrapped = KafkaError("Cannot perform send", ProducerFencedError("producer-1"))
    with pytest.raises(ReplayTakenOverError), _told_of_a_takeover():
        raise wrapped
    with pytest.raises(KafkaError), _told_of_a_takeover():
        raise KafkaError("Cannot perform send", OSError("away"))


def test_of_two_replays_at_once_the_earlier_gives_way(fleet: Settings) -> None:
    """A replay that starts while another waits for its answer takes over; each letter goes once."""
    _publish(fleet, _letters(fleet, _batches(2), "unknown_version"))

    def meanwhile(_: int) -> None:
        assert len(replay_letters(fleet, _order(8), SystemClock(), lambda _: None)) == 2

    with pytest.raises(InputError, match="Another dlq-replay"):
        replay_letters(fleet, _order(7), SystemClock(), meanwhile)
    assert len(_replayed_records(fleet)) == 2
