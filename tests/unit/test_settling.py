"""When a processor ends what its commits may have left open."""

from __future__ import annotations

from moescope.core.clock import ManualClock
from moescope.core.errors import DependencyUnreachableError
from moescope.core.kafka.broker_watch import BrokerWatch
from moescope.processors.group.settling import RETRY_SECONDS, Settling

TRANSACTION_S = 3.0


class Commits:
    """Settles when it may, and notes how often it was asked to end its own commits."""

    def __init__(self) -> None:
        self.is_possible = True
        self.ended = 0
        self.clock = ManualClock(0)
        self.watch = BrokerWatch(lambda _: None)
        self.settling = Settling(self.settle, self.clock, self.watch, TRANSACTION_S)

    def settle(self, *, again: bool = False) -> bool:
        """As a store does."""
        self.ended += again
        return self.is_possible

    def lose_broker(self) -> None:
        """Nobody answers."""
        self.watch.lost(DependencyUnreachableError("Nobody.", why="", next_step=""))

    def go_on(self) -> int:
        """What a processor does now and then; how often commits were ended so far."""
        if self.settling.is_due():
            self.settling.end()
        return self.ended


def test_nothing_is_ended_while_all_is_well() -> None:
    """Ending what is not open would cost each processor its place in every second."""
    commits = Commits()
    for _ in range(20):
        commits.settling.note_asked(is_told=True)
        commits.clock.sleep(1.0)
        assert commits.go_on() == 0


def test_a_broker_that_came_back_may_have_lost_an_end() -> None:
    """Once for each return, and not while it is away."""
    commits = Commits()
    for times in (1, 2):
        commits.lose_broker()
        assert commits.go_on() == times - 1
        commits.watch.found()
        commits.clock.sleep(RETRY_SECONDS)
        assert commits.go_on() == times
        commits.clock.sleep(RETRY_SECONDS)
        assert commits.go_on() == times


def test_what_could_not_be_ended_is_tried_once_a_second() -> None:
    """A commit that is under way, or a broker that does not answer yet, is waited for."""
    commits = Commits()
    commits.is_possible = False
    commits.settling.note_taken()
    assert commits.go_on() == commits.go_on() == 1
    commits.clock.sleep(RETRY_SECONDS)
    commits.is_possible = True
    assert commits.go_on() == 2
    commits.clock.sleep(RETRY_SECONDS)
    assert commits.go_on() == 2


def test_places_that_nobody_tells_for_longer_than_a_transaction_are_held_by_us() -> None:
    """A coordinator ends what it knows to be unfinished; what it takes for ended, we end."""
    commits = Commits()
    for _ in range(3):
        commits.settling.note_asked(is_told=False)
        assert commits.go_on() == 0
        commits.clock.sleep(1.0)
    commits.settling.note_asked(is_told=False)
    assert commits.go_on() == 1
    commits.settling.note_asked(is_told=True)
    commits.clock.sleep(TRANSACTION_S)
    commits.settling.note_asked(is_told=False)
    assert commits.go_on() == 1


def test_a_try_that_takes_long_is_followed_by_a_pause() -> None:
    """What fails after more than a second is not tried again in the same moment."""
    commits = Commits()
    commits.is_possible = False
    plain = commits.settle

    def settle_slowly(*, again: bool = False) -> bool:
        commits.clock.sleep(3 * RETRY_SECONDS)
        return plain(again=again)

    commits.settling = Settling(settle_slowly, commits.clock, commits.watch, TRANSACTION_S)
    commits.settling.note_taken()
    assert commits.go_on() == commits.go_on() == 1


def test_a_wait_that_is_over_is_not_added_to_the_next_one() -> None:
    """Places that were told meanwhile are held by nobody."""
    commits = Commits()
    commits.settling.note_asked(is_told=False)
    commits.settling.note_asked(is_told=True)
    commits.clock.sleep(2 * TRANSACTION_S)
    commits.settling.note_asked(is_told=False)
    assert commits.go_on() == 0


def test_nothing_is_ended_while_no_broker_answers() -> None:
    """What was taken from us meanwhile is ended when one does."""
    commits = Commits()
    commits.lose_broker()
    commits.settling.note_taken()
    assert commits.go_on() == 0
    commits.watch.found()
    assert commits.go_on() == 1
