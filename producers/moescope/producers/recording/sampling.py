"""Which requests are recorded where only a share of them is: whole ones, by a hash of the id."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from moescope.producers.ring.facts import MAX_NAME_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

_EVERY_HASH: Final = 2**64
_SALT: Final = b"moescope producer sampling"
_DRAWS_KEPT: Final = 4_096


class Picked(NamedTuple):
    """Which of several requests are recorded.

    Attributes:
        names: Of those that are.
        places: Their indices among all.
        takes: bool, for each of all.
    """

    names: list[Any]
    places: NDArray[np.intp]
    takes: NDArray[np.bool_]


class Sampling:
    """A share of the requests; a smaller share takes a part of those that a larger one takes.

    Args:
        ratio: The share, above 0.
    """

    def __init__(self, ratio: float) -> None:
        self._draws: dict[str, int] = {}
        self._latest: tuple[list[Any], int, Picked] = ([], 0, _pick([], []))
        self.change(ratio)

    def change(self, ratio: float) -> None:
        """Take another share from now on, of running requests too."""
        self._below = round(ratio * _EVERY_HASH)
        self.takes_all = self._below >= _EVERY_HASH

    def pick(self, names: list[Any]) -> Picked:
        """Which of these requests are recorded; an engine's steps ask for the same again.

        Without a lock: another thread may change the share at any point, and what was picked by
        the one before must not stay.
        """
        asked, limit, picked = self._latest
        below = self._below
        try:
            if limit == below and asked == names:
                return picked
        except Exception:  # noqa: BLE001, S110 - there are things that cannot be compared
            pass
        picked = _pick(names, [self._takes(name, below) for name in names])
        self._latest = ([*names], below, picked)
        return picked

    def takes(self, request: str | None) -> bool:
        """Whether a request is recorded; what is no request id is taken, for others to refuse."""
        return self._takes(request, self._below)

    def _takes(self, request: str | None, below: int) -> bool:
        if below >= _EVERY_HASH or type(request) is not str:
            return True
        draw = self._draws.get(request)
        if draw is None:
            draw = self._draw(request)
        return draw < below

    def _draw(self, request: str) -> int:
        try:
            name = request.encode()
        except UnicodeEncodeError:
            return -1
        if len(name) > MAX_NAME_BYTES:
            return -1
        if len(self._draws) >= _DRAWS_KEPT:
            self._draws.clear()
        digest = blake2b(name, digest_size=8, key=_SALT).digest()
        draw = self._draws[request] = int.from_bytes(digest, "little")
        return draw


def _pick(names: list[Any], takes: list[bool]) -> Picked:
    chosen = [name for name, is_taken in zip(names, takes, strict=True) if is_taken]
    mask = np.array(takes, np.bool_)
    return Picked(chosen, np.flatnonzero(mask), mask)
