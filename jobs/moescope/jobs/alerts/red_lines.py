"""The commit hook that moves alerts on, slot by slot of event time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.core.clock import END_OF_TIME, NO_TIME
from moescope.core.exceedance import SLOT_US
from moescope.jobs.alerts.memory import load_history, load_red_lines
from moescope.jobs.alerts.rows import PendingRows
from moescope.jobs.alerts.rules import RulesInForce
from moescope.jobs.alerts.slot_work import SlotWork

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import duckdb

    from moescope.core.clock import Clock
    from moescope.core.emission import CommitFacts
    from moescope.core.thresholds import ThresholdBook
    from moescope.jobs.alerts.memory import RedLineMemory

FINAL_AFTER_US = 2_000_000
"""A slot is judged once its domain is this far beyond its end, and never again."""

NO_DATA_AFTER_US = 300_000_000


def _never(_: CommitFacts) -> bool:
    return False


class RedLines:
    """Applies the paging rules in force to every slot, inside the owner's transaction.

    What it writes is a function of the exceedances and of event time: not of how records were
    cut into commits, of the wall clock, or of restarts. Its memory can be read again from the
    tables at any commit.

    Args:
        book: The versions in force, with their rules.
        clock: Dates the rows of the outbox; decides nothing.
        receivers: Names of those who get notifications.
        no_data_after_us: Event time without windows after which an alert is in state `no_data`.
        historic: Whether a commit reads a backlog: what fires then is marked and not sent. An
            alert that still fires at the first commit that does not is sent then.
    """

    def __init__(
        self,
        book: ThresholdBook,
        clock: Clock,
        receivers: Sequence[str],
        *,
        no_data_after_us: int = NO_DATA_AFTER_US,
        historic: Callable[[CommitFacts], bool] = _never,
    ) -> None:
        self._rules = RulesInForce(book)
        self._book = book
        self._clock = clock
        self._receivers = tuple(receivers)
        self._no_data_after_us = no_data_after_us
        self._is_historic = historic
        self._edition = book.edition
        self._memory: RedLineMemory | None = None

    def reset(self) -> None:
        """Forget what is in memory; it is read again at the next commit."""
        self._memory = None

    def committing(self, connection: duckdb.DuckDBPyConnection, facts: CommitFacts) -> None:
        """Judge the slots that became final, inside the transaction.

        Args:
            connection: The transaction's connection.
            facts: What the commit brings.
        """
        memory, self._memory = self._memory, None
        if memory is None:
            memory = load_red_lines(connection, facts.lanes, self._rules)
        else:
            for series in memory.take(facts.exceedances):
                if series in memory.open:
                    # The stored slot has changed, and memory is what a restart would read.
                    load_history(
                        connection, memory.open[series], self._rules, memory.judged_before_us
                    )
        work = SlotWork(
            memory,
            self._rules,
            PendingRows(self._rules, self._clock, self._receivers),
            self._no_data_after_us,
            historic=self._is_historic(facts),
        )
        work.send_what_is_no_longer_historic()
        for domain, reached_us in sorted(facts.reached_us.items()):
            work.advance(domain, _final_before(reached_us))
        if self._edition != self._book.edition:
            work.retire_unjudged()
            self._edition = self._book.edition
        work.rows.write(connection, facts.commit_id)
        self._memory = memory

    def committed(self, facts: CommitFacts) -> None:
        """Nothing is left to do: whoever delivers reads the outbox."""


def _final_before(reached_us: int) -> int:
    """Slots that begin before this are final."""
    if reached_us in {NO_TIME, END_OF_TIME}:
        return reached_us
    return (reached_us - FINAL_AFTER_US) // SLOT_US * SLOT_US
