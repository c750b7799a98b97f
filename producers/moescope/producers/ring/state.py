"""The words that a writer publishes, as a reader sees them: what no writer can have said is damage.

A frame has a checksum, a word has none. But the words grow, have bounds and depend on each other,
and a writer stores them in a known order, so that most noise cannot be mistaken for a count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moescope.producers.ring.errors import RingFormatError
from moescope.producers.ring.layout import ALIGNMENT, MOST_ROWS, Closing, Geometry, State
from moescope.producers.ring.unseen import REASON_SLOTS, count_word

if TYPE_CHECKING:
    from pathlib import Path

    from moescope.producers.ring.rows import RowShape

_NAMES: Final = {
    State.TAIL: "the position of the oldest byte",
    State.HEAD: "the position after the newest frame",
    State.ROWS: "the number of recorded rows",
    State.REJECTED: "the number of rejected rows",
    State.INHERITED: "the number of rows of older rings",
    State.UNSEEN: "the number of unseen rows",
}
_CLOSINGS: Final = frozenset({0, *Closing})


class PublishedState:
    """Reads a writer's words.

    Args:
        path: The ring file, for messages.
        words: The ring's header as 64-bit words.
        geometry: Of the ring.
    """

    def __init__(self, path: Path, words: memoryview[int], geometry: Geometry) -> None:
        self._path = path
        self._words = words
        self._geometry = geometry
        self._latest: dict[int, int] = {}

    def count(self, word: int) -> int:
        """A number of rows.

        Raises:
            RingFormatError: It cannot be one: too large, or smaller than it was.
        """
        rows = self._words[word]
        if rows > MOST_ROWS:
            raise self.damage(f"In its header, {_name(word)} is {rows}: no ring has so many.")
        return self._grown(word, rows)

    def unseen_by_reason(self) -> tuple[int, ...]:
        """Unseen rows by slot of the reason, and last those without one.

        Raises:
            RingFormatError: They do not add up, or one of them cannot be.
        """
        total = self.count(State.UNSEEN)  # before the slots, which a writer counts first
        slots = [self.count(count_word(slot)) for slot in range(REASON_SLOTS)]
        counted = sum(slots)
        if 0 < counted < total:
            raise self.damage(
                f"In its header, {_name(State.UNSEEN)} is {total}, and those of all reasons add up "
                f"to {counted}."
            )
        return (*slots, max(0, total - counted))

    def rows_behind(self, position: int, rows: int, shape: RowShape) -> int:
        """Rows in the frames from a position on, before which there are that many.

        Raises:
            RingFormatError: So many do not fit there.
        """
        more = max(0, self.count(State.ROWS) - rows)
        room = self._grown(State.HEAD, self._words[State.HEAD]) - position
        if more * shape.shortest_row() > max(0, room):
            raise self.damage(
                f"In its header, {_name(State.ROWS)} is {rows + more}: {more} do not fit into the "
                f"{max(0, room)} bytes behind the first {rows}."
            )
        return more

    def check(self, position: int, shape: RowShape) -> None:
        """Look at all words.

        Args:
            position: How far the ring was read.
            shape: Of its rows.

        Raises:
            RingFormatError: One of them cannot be true.
        """
        words = self._words
        self.rows_behind(0, 0, shape)
        for word in (State.REJECTED, State.INHERITED):
            self.count(word)
        self.unseen_by_reason()
        # A tail that was read before the head is not above it; one that was read after it is not
        # a capacity below it.
        before = self._grown(State.TAIL, words[State.TAIL])
        head = self._grown(State.HEAD, words[State.HEAD])
        after = self._grown(State.TAIL, words[State.TAIL])
        if (
            not max(before, position) <= head <= after + self._geometry.capacity
            or head % ALIGNMENT
            or after % self._geometry.segment_bytes
        ):
            raise self.damage(
                f"In its header, {_name(State.TAIL)} is {after} and {_name(State.HEAD)} is {head}, "
                f"of {self._geometry.capacity} bytes that were read up to {position}."
            )
        if words[State.CLOSED] not in _CLOSINGS:
            raise self.damage(f"In its header, the mark of its end is {words[State.CLOSED]}.")

    def damage(self, why: str) -> RingFormatError:
        """The error that says so."""
        return RingFormatError(
            f"{self._path.name} is damaged.",
            why=why,
            next_step="Restart the engine that writes it, if it still runs: it makes a new ring. "
            "Then remove the file.",
        )

    def _grown(self, word: int, value: int) -> int:
        """The value of a word that only grows."""
        before = self._latest.get(word, 0)
        if value < before:
            raise self.damage(f"In its header, {_name(word)} went back from {before} to {value}.")
        self._latest[word] = value
        return value


def _name(word: int) -> str:
    if word in _NAMES:
        return _NAMES[State(word)]
    return "the number of unseen rows of one reason"
