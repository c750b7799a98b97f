"""The requests that the engine is working on: facts for the ring, and high-water positions."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from operator import gt
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from moescope.core.vocabulary import UNKNOWN_SCENE, Phase, RowFlag
from moescope.producers.ring.facts import NO_NAME, RequestFacts, is_name, pack_facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

MAX_RUNNING: Final = 65_536
"""An engine that never ends its requests must not make the recorder grow."""

_RECOMPUTED: Final = np.uint8(RowFlag.RECOMPUTED)
_PADDING: Final = np.uint8(RowFlag.PADDING)
NEVER_COUNTED_PHASES: Final = (Phase.WARMUP, Phase.DRAFT)
_NEVER_COUNTS: Final = np.array([phase in NEVER_COUNTED_PHASES for phase in Phase])
_SHORT_RUN: Final = 16
"""Rows that Python visits sooner than NumPy has begun."""


class RunningRequest:
    """One request on the engine.

    Attributes:
        facts: Packed `RequestFacts`.
        high_water: Greatest position recorded so far.
    """

    __slots__ = ("facts", "high_water")

    def __init__(self, facts: bytes) -> None:
        self.facts = facts
        self.high_water = -1


@dataclass(frozen=True, slots=True)
class ResolvedRequests:
    """The running requests of one call's runs.

    Attributes:
        requests: One per run, or None where the name cannot be a request id.
        facts: Packed facts, one per run.
        packed: All of them in a row.
        has_impossible: Whether a request is None.
        are_usual: Whether they are all different, and none is None.
    """

    requests: Sequence[RunningRequest | None]
    facts: Sequence[bytes]
    packed: bytes
    has_impossible: bool
    are_usual: bool


class RunningRequests:
    """The running requests, the least recently used one forgotten first.

    Args:
        capacity: How many are remembered.
    """

    def __init__(self, capacity: int = MAX_RUNNING) -> None:
        self._capacity = capacity
        self._running: OrderedDict[str, RunningRequest] = OrderedDict()
        self._latest: tuple[list[str | None], ResolvedRequests] | None = None
        # High-water positions of the latest requests, where they are newer than those of the
        # requests themselves: one list to replace in each step instead of many objects to visit.
        self._marks: list[int] | None = None

    def __len__(self) -> int:
        """How many requests are remembered."""
        return len(self._running)

    def begin(self, facts: RequestFacts) -> None:
        """Learn a request's facts; its high-water position stays if it is running already.

        Raises:
            ValueError: A name or number cannot be stored.
        """
        check_facts(facts)
        packed = pack_facts(facts)
        self._settle()
        self._latest = None
        known = self._running.get(facts.request)
        if known is not None:
            known.facts = packed
            return
        self._add(facts.request, packed)

    def resolve(self, names: list[str | None]) -> ResolvedRequests:
        """The requests of these ids, begun with defaults where need be.

        Decoding engines pass the same ids step after step: the latest answer is kept.
        """
        self._settle()
        if self._latest is not None and self._latest[0] == names:
            return self._latest[1]
        requests = self._find_all(names)
        has_impossible = None in requests
        facts = [request.facts if request else b"" for request in requests]
        resolved = ResolvedRequests(
            requests, facts, b"".join(facts), has_impossible,
            are_usual=not has_impossible and len(set(names)) == len(names),
        )  # fmt: skip
        self._latest = (names, resolved)
        return resolved

    def latest(self, names: list[Any]) -> ResolvedRequests | None:
        """What `resolve` answered, if these are the names that it was asked for last."""
        latest = self._latest
        try:
            return latest[1] if latest is not None and latest[0] == names else None
        except Exception:  # noqa: BLE001 - there are things that cannot be compared with a text
            return None

    def advance_latest(self, lowest: list[int], highest: list[int]) -> bool:
        """Move the high-water positions of the latest requests, which are all different.

        Args:
            lowest: The lowest new position of each.
            highest: The highest one; kept, so it must not change any more.

        Returns:
            False, and nothing moved, unless each request's positions lie above all earlier ones.
        """
        if self._latest is None:
            return False
        marks = self._marks
        if marks is None:
            # `are_usual`: none is None.
            marks = [request.high_water for request in self._latest[1].requests if request]
        if len(lowest) != len(marks) or not all(map(gt, lowest, marks)):
            return False
        self._marks = highest
        return True

    def _settle(self) -> None:
        """Tell the requests their high-water positions, before anyone else asks them."""
        if self._marks is not None and self._latest is not None:
            for request, mark in zip(self._latest[1].requests, self._marks, strict=True):
                if request is not None:
                    request.high_water = mark
        self._marks = None

    def _find_all(self, names: list[str | None]) -> list[RunningRequest | None]:
        known = [*map(self._running.get, cast("list[str]", names))]
        if None in known:
            return [self._find(name) for name in names]
        deque(map(self._running.move_to_end, cast("list[str]", names)), maxlen=0)
        return known

    def _find(self, request: str | None) -> RunningRequest | None:
        if request is None:
            return None
        known = self._running.get(request)
        if known is not None:
            self._running.move_to_end(request)
            return known
        facts = RequestFacts(request, request, UNKNOWN_SCENE)
        try:
            check_facts(facts)
        except ValueError:
            return None
        return self._add(request, pack_facts(facts))

    def forget_positions(self) -> None:
        """Take any position for a new one, as after a time in which no row was followed."""
        for request in self._running.values():
            request.high_water = -1
        self._latest = self._marks = None

    def end(self, request: str) -> RunningRequest | None:
        """Forget a request; None if it was not running."""
        self._settle()
        self._latest = None
        return self._running.pop(request, None)

    def _add(self, request: str, facts: bytes) -> RunningRequest:
        added = self._running[request] = RunningRequest(facts)
        if len(self._running) > self._capacity:
            self._running.popitem(last=False)
        return added


def check_facts(facts: RequestFacts) -> None:
    """Check what a caller said about a request.

    Raises:
        ValueError: A name is no short text, or a number no position.
    """
    for name, value in zip(("request id", "task", "scene"), facts, strict=False):
        if not is_name(value):
            raise ValueError(NO_NAME.format(name))
    for name in ("prompt_tokens", "cached_tokens"):
        number = getattr(facts, name)
        if not isinstance(number, int) or not -1 <= number < 2**31:
            raise ValueError(f"{name} is {number!r}, which is no number of tokens")


def flags_for(
    requests: Sequence[RunningRequest],
    counts: Sequence[int],
    position: NDArray[Any],
    phase: int | NDArray[Any],
    padding: NDArray[np.bool_] | None,
) -> NDArray[np.uint8]:
    """Flags of rows, moving each request's high-water position.

    A position that is not above all earlier ones of its request is `RECOMPUTED`: the first
    attempt wins, whatever the phases. Padding, warm-up and draft rows take no part in that.

    Args:
        requests: The request of each run.
        counts: Rows of each run, at least 1.
        position: Integers [T].
        phase: One phase, or [T].
        padding: Booleans [T] or None.

    Returns:
        uint8 [T], `RowFlag` bits.
    """
    flags = np.zeros(len(position), np.uint8)
    if padding is not None:
        flags[padding] = _PADDING
    if isinstance(phase, int):
        if phase in NEVER_COUNTED_PHASES:
            return flags
        outside = padding
    else:
        unhealthy = _NEVER_COUNTS[phase]
        outside = unhealthy if padding is None else unhealthy | padding
    if outside is not None and outside.any():
        _flag_some(flags, requests, counts, position, outside)
    elif len(requests) == len(position):
        _flag_single_rows(flags, requests, position.tolist())
    else:
        _flag_runs(flags, requests, counts, position)
    return flags


def _flag_single_rows(
    flags: NDArray[np.uint8], requests: Sequence[RunningRequest], positions: list[int]
) -> None:
    for index, running in enumerate(requests):
        if positions[index] > running.high_water:
            running.high_water = positions[index]
        else:
            flags[index] |= _RECOMPUTED


def _flag_runs(
    flags: NDArray[np.uint8],
    requests: Sequence[RunningRequest],
    counts: Sequence[int],
    position: NDArray[Any],
) -> None:
    start = 0
    for running, rows in zip(requests, counts, strict=True):
        if rows <= _SHORT_RUN:
            _flag_short_run(flags, running, start, position[start : start + rows].tolist())
            start += rows
            continue
        here = position[start : start + rows].astype(np.int64, copy=False)
        highest = np.maximum.accumulate(here)
        before = np.empty_like(highest)
        before[0] = running.high_water
        np.maximum(highest[:-1], running.high_water, out=before[1:])
        flags[start : start + rows][here <= before] |= _RECOMPUTED
        running.high_water = max(running.high_water, int(highest[-1]))
        start += rows


def _flag_short_run(
    flags: NDArray[np.uint8], running: RunningRequest, start: int, positions: list[int]
) -> None:
    highest = running.high_water
    for index, each in enumerate(positions, start):
        if each > highest:
            highest = each
        else:
            flags[index] |= _RECOMPUTED
    running.high_water = highest


def _flag_some(
    flags: NDArray[np.uint8],
    requests: Sequence[RunningRequest],
    counts: Sequence[int],
    position: NDArray[Any],
    outside: NDArray[np.bool_],
) -> None:
    inside = ~outside
    kept = rows_kept(counts, inside)
    chosen = flags[inside]
    _flag_runs(
        chosen,
        [running for running, count in zip(requests, kept, strict=True) if count],
        [count for count in kept if count],
        position[inside],
    )
    flags[inside] = chosen


def rows_kept(counts: Sequence[int], keep: NDArray[np.bool_]) -> list[int]:
    """How many rows of each run (of at least one row) a mask over all rows keeps."""
    starts = np.array([0, *counts[:-1]]).cumsum()
    kept: list[int] = np.add.reduceat(keep, starts, dtype=np.int64).tolist()
    return kept
