"""How long to wait: between attempts, and for an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_DOUBLINGS: Final = 16
_TIMES_THE_LAST_ANSWER: Final = 4.0
_FIRST_LIMIT: Final = 16
_LOWEST_LIMIT: Final = 2
_HIGHEST_LIMIT: Final = 1_024
_SOON_SECONDS: Final = 0.5
_LATE_SECONDS: Final = 1.5


class BackOff:
    """Pauses that double up to a limit, each shortened at random by up to a half.

    Agents that lost the same broker at the same moment do not come back at the same moment.

    Args:
        first: Seconds of the first pause.
        most: Seconds of the longest.
        chance: Gives numbers from 0 up to 1.
    """

    def __init__(self, first: float, most: float, chance: Callable[[], float]) -> None:
        self._first = first
        self._most = most
        self._chance = chance
        self._failures = 0

    def pause(self) -> float:
        """Seconds to wait after one more failure."""
        full = min(self._most, self._first * 2.0 ** min(self._failures, _DOUBLINGS))
        self._failures += 1
        return shortened(full, self._chance)

    def reset(self) -> None:
        """It worked: the next pause is the first again."""
        self._failures = 0


def shortened(seconds: float, chance: Callable[[], float]) -> float:
    """A pause of half that length to that length."""
    return seconds * (0.5 + 0.5 * chance())


class Patience:
    """How long a broker may be silent with records on their way before its client is given up.

    A slow line is not a dead broker: the limit is a multiple of the last answer's time, and
    doubles when it was too short.

    Args:
        least: Seconds, also the first limit.
        most: Seconds.
    """

    def __init__(self, least: float, most: float) -> None:
        self._least = min(least, most)
        self._most = most
        self.seconds = self._least

    def answered(self, after: float) -> None:
        """An answer came after that many seconds."""
        self.seconds = min(self._most, max(self._least, _TIMES_THE_LAST_ANSWER * after))

    def exceeded(self) -> None:
        """There was no answer in time."""
        self.seconds = min(self._most, 2 * self.seconds)


class QueueLimit:
    """How many records of a node may wait inside the client, so that none waits there for long.

    The client sends a partition's requests one after the other, and gives a record up that has
    waited for too long, also behind others. So the limit follows how long records take.
    """

    def __init__(self) -> None:
        self.records = _FIRST_LIMIT

    def answered(self, after: float) -> None:
        """A record was acknowledged after that many seconds."""
        if after < _SOON_SECONDS:
            self.records = min(_HIGHEST_LIMIT, self.records + 1)
        elif after > _LATE_SECONDS:
            self.records = max(_LOWEST_LIMIT, self.records // 2)
