"""What the shipper decides without a broker: what has arrived, who may send, how long to wait."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from moescope.console.failures import SERVER_PACKAGES
from moescope.core.kafka import BrokerRefusedError, BrokerUnreachableError
from moescope.producers.shipping.sharing import (
    MOST_BUSY_NODES,
    SLOW_AFTER_SECONDS,
    NodeLoad,
    share_of,
)
from moescope.producers.shipping.standing import Standing
from moescope.producers.shipping.waiting import BackOff, Patience, QueueLimit
from moescope.producers.shipping.window import SendWindow

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

CAP = 1_000
IDLE = NodeLoad(0, 0.0)


class PlainLog:
    """A log of ten records that is sent through a window; what has arrived is a plain set."""

    LENGTH = 10

    def __init__(self) -> None:
        self.window = SendWindow()
        self.next = 0
        self.arrived: set[int] = set()
        self.on_their_way: set[int] = set()
        self.news = 0

    def send(self) -> None:
        """Send the next record that has not arrived."""
        while self.next < self.LENGTH and self.window.is_settled(self.next):
            self.window.pass_by(self.next)
            self.next += 1
        if self.next < self.LENGTH:
            assert self.next not in self.arrived
            self.window.send(self.next, self.next + 1, 0.0)
            self.on_their_way.add(self.next)
            self.next += 1

    def arrive(self, offset: int) -> None:
        """A record that was sent at any time is acknowledged, late or twice perhaps."""
        self.news += self.window.settle(offset, again_from=self.first_unsettled())[1]
        self.arrived.add(offset)
        self.on_their_way.discard(offset)

    def rewind(self) -> None:
        """The client is given up."""
        self.next = self.first_unsettled()
        self.window.rewind()
        self.on_their_way.clear()

    def first_unsettled(self) -> int:
        """What the cursor would be moved to."""
        return self.window.first_unsettled(self.next)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(["send", "send", "rewind"]), st.integers(0, 9))))
def test_the_cursor_never_passes_what_has_not_arrived(steps: list[str | int]) -> None:
    """In whatever order answers come, also of clients that were given up: no loss, no recount."""
    log = PlainLog()
    sent_ever: set[int] = set()
    for step in steps:
        if step == "send":
            log.send()
            sent_ever |= log.on_their_way
        elif step == "rewind":
            log.rewind()
        elif step in sent_ever:
            log.arrive(int(step))
        done_to = log.first_unsettled()
        assert set(range(done_to)) <= log.arrived
        assert log.window.bytes == sum(offset + 1 for offset in log.on_their_way)
        assert len(log.window) == len(log.on_their_way)
    assert log.news == len(log.arrived)
    while log.next < log.LENGTH:
        log.send()
    for offset in range(log.LENGTH):
        log.arrive(offset)
    assert log.first_unsettled() == log.LENGTH


def test_removed_records_count_once() -> None:
    """What the byte cap removed is dropped unless it had arrived out of order before."""
    window = SendWindow()
    for offset in range(4):
        window.send(offset, 1, 0.0)
    window.settle(2, again_from=0)
    window.rewind()
    assert window.remove(0, 4) == 3
    assert window.first_unsettled(4) == 4


def test_a_node_gets_its_part_and_leaves_the_others_theirs() -> None:
    """One node's backlog does not fill what may be on its way."""
    loads = [NodeLoad(200, 0.1), IDLE]
    share = share_of(NodeLoad(100, 0.1), loads, cap=CAP, sharers=3)
    assert share.bytes == CAP // 3 - 100
    assert share_of(NodeLoad(400, 0.1), loads, cap=CAP, sharers=3).bytes == 0
    assert share_of(IDLE, [NodeLoad(900, 0.1)], cap=CAP, sharers=2).bytes == 100


def test_a_record_larger_than_its_part_still_goes() -> None:
    """A batch may be larger than a part, or than the cap: alone, it always gets through."""
    assert share_of(IDLE, [NodeLoad(300, 0.1)], cap=CAP, sharers=4).first_bytes == 700
    assert share_of(IDLE, [IDLE], cap=CAP, sharers=2).first_bytes > 100 * CAP
    assert share_of(NodeLoad(1, 0.1), [], cap=CAP, sharers=2).first_bytes == CAP // 2 - 1


def test_slow_nodes_do_not_keep_others_from_sending() -> None:
    """Few nodes at once, so that the client need not spin, but none that waits counts."""
    quick = [NodeLoad(10, 0.1)] * MOST_BUSY_NODES
    slow = [NodeLoad(10, SLOW_AFTER_SECONDS + 0.1)] * MOST_BUSY_NODES
    assert share_of(IDLE, quick, cap=CAP, sharers=6).bytes == 0
    assert share_of(NodeLoad(10, 0.1), quick, cap=CAP, sharers=6).bytes > 0
    assert share_of(IDLE, slow, cap=CAP, sharers=6).bytes > 0


def test_pauses_double_up_to_a_limit_and_differ_by_chance() -> None:
    """A broker that returns is used soon, and not by all agents at the same moment."""
    slowest = BackOff(0.2, 5.0, chance=lambda: 1.0)
    assert [slowest.pause() for _ in range(7)] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    slowest.reset()
    assert slowest.pause() == 0.2
    soonest = BackOff(0.2, 5.0, chance=lambda: 0.0)
    assert [soonest.pause() for _ in range(3)] == [0.1, 0.2, 0.4]
    for _ in range(2_000):
        soonest.pause()
    assert soonest.pause() == 2.5


def test_patience_follows_a_slow_line() -> None:
    """A line on which one batch takes long is not taken for a dead broker for ever."""
    patience = Patience(3.0, 10.0)
    for expected in (3.0, 6.0, 10.0, 10.0):
        assert patience.seconds == expected
        patience.exceeded()
    patience.answered(2.0)
    assert patience.seconds == 8.0
    patience.answered(0.01)
    assert patience.seconds == 3.0


def test_few_records_wait_inside_the_client_where_each_takes_long() -> None:
    """The client gives up what waits behind others: on a slow line nothing does, for long."""
    limit = QueueLimit()
    start = limit.records
    for _ in range(20):
        limit.answered(5.0)
    assert 1 <= limit.records < start
    for _ in range(10_000):
        limit.answered(0.01)
    assert start < limit.records < 10_000
    steady = limit.records
    limit.answered(1.0)
    assert limit.records == steady


def test_trouble_is_said_once_per_change(caplog: pytest.LogCaptureFixture) -> None:
    """A broker that is away for a day is one line in the log, and its return another."""
    standing = Standing()
    with caplog.at_level(logging.WARNING):
        for second in range(5):
            standing.not_opened(BrokerUnreachableError("nobody"), float(second))
        standing.not_opened(BrokerRefusedError("stranger"), 5.0)
        standing.opened(9.0)
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR", "WARNING"]
    assert "after 9 s" in caplog.text
    assert standing.trouble is None


def test_the_first_connection_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """A log tells that an agent has found its broker, and each time that it is away and back."""
    standing = Standing()
    standing.opened(0.0)
    standing.opened(1.0)
    for second in (2.0, 4.0):
        standing.not_opened(BrokerUnreachableError("nobody"), second)
        standing.opened(second + 1)
    said = [record.getMessage().split(",")[0] for record in caplog.records]
    away_and_back = ["Batches stay in the batch log", "Batches can be shipped again"]
    assert said == ["Kafka is reached.", *away_and_back, *away_and_back]


def test_a_client_that_opens_is_no_recovery_where_none_delivers() -> None:
    """Where opening works and sending is refused, health does not say well every half minute."""
    standing = Standing()
    standing.not_delivered(BrokerRefusedError("no right to write"), 0.0)
    standing.opened(1.0)
    assert isinstance(standing.trouble, BrokerRefusedError)
    standing.delivered(2.0)
    assert standing.trouble is None


def test_an_agent_needs_the_base_install_only(tmp_path: Path) -> None:
    """An inference node has no database, no compiler and no charts: the agent loads none."""
    code = """
import sys
from moescope.console.main import main
sys.argv = ["moescope", "run", "agent", "--until-idle", "--data", sys.argv[1]]
try:
    main()
except SystemExit as exit:
    assert exit.code == 3, exit.code  # no broker takes it
import moescope.producers.shipping, kafka
print("LOADED", *sorted({name.partition(".")[0] for name in sys.modules}))
"""
    environment = {"MOESCOPE_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9"}
    printed = subprocess.run(
        [sys.executable, "-c", code, tmp_path],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    loaded = set(printed.strip().splitlines()[-1].split())
    assert {"LOADED", "moescope", "kafka"} <= loaded
    # typer may bring rich to draw with.
    assert loaded & (set(SERVER_PACKAGES) - {"rich"}) == set()
