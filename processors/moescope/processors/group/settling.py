"""Ends commits of ours that may be open in the brokers although they were acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from moescope.core.clock import Clock
    from moescope.core.kafka.broker_watch import BrokerWatch

RETRY_SECONDS = 1.0


class Settle(Protocol):
    """Ends what earlier commits left unfinished; False: not possible yet."""

    def __call__(self, *, again: bool = False) -> bool:
        """Also of our own commits that seem to have ended, where it is `again`."""
        ...


class Settling:
    """When to end what our commits may have left open.

    A broker that is killed may come back without the end of a transaction that it has
    acknowledged. Whoever reads these places then waits until we write to them again, which may be
    never: we have no partitions any more, wait for these very places, or get no records. So it is
    ended when the broker comes back, when partitions are taken from us, and when the places that
    we ask for are not told for longer than a transaction may take.

    Args:
        settle: `TransactionalStore.settle`.
        clock: Monotonic seconds.
        watch: Knows when the broker came back.
        seconds: How long a transaction may take.
    """

    def __init__(self, settle: Settle, clock: Clock, watch: BrokerWatch, seconds: float) -> None:
        self._settle = settle
        self._clock = clock
        self._watch = watch
        self._seconds = seconds
        self._returns = watch.returns
        self._may_be_open = False
        self._tried_at = float("-inf")
        self._waiting_since: float | None = None

    def is_done(self) -> bool:
        """Whether we may ask for places: what earlier processors of our name left has ended."""
        return self._settle()

    def note_taken(self) -> None:
        """Partitions were taken from us: who gets them waits for what is open."""
        self._may_be_open = True

    def note_asked(self, *, is_told: bool) -> None:
        """We asked for the places of partitions."""
        now = self._clock.monotonic()
        if is_told:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = now
        elif now - self._waiting_since >= self._seconds:
            # The coordinator has ended by now what is unfinished, unless it takes it for ended.
            self._waiting_since, self._may_be_open = None, True

    def is_due(self) -> bool:
        """Whether something of ours may be open, and a broker answers."""
        if self._returns != self._watch.returns:
            self._returns, self._may_be_open = self._watch.returns, True
        is_time = self._clock.monotonic() - self._tried_at >= RETRY_SECONDS
        return self._may_be_open and is_time and not self._watch.is_away

    def end(self) -> None:
        """End it; the next try is a second away."""
        try:
            self._may_be_open = not self._settle(again=True)
        finally:
            self._tried_at = self._clock.monotonic()
