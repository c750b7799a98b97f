"""Bring the rows of a batch's frames into order: by request, and as recorded within each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from moescope.core.batch import NO_START, Requests
from moescope.core.vocabulary import HEALTH_PHASES, Phase, RowFlag
from moescope.producers.agent.context import CONTEXT_ROWS, ContextRows
from moescope.producers.ring.facts import UNKNOWN_LENGTH, RequestFacts
from moescope.producers.ring.layout import FrameKind
from moescope.producers.ring.rows import Columns, RowShape, read_end, read_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from moescope.producers.ring.reader import Frame

_CONTEXT: Final = np.uint8(RowFlag.CONTEXT)
_END: Final = np.uint8(RowFlag.LAST_OF_REQUEST)
_END_OF_TASK: Final = np.uint8(RowFlag.LAST_OF_REQUEST | RowFlag.LAST_OF_TASK)
_NO_CONTEXT: Final = int(RowFlag.PADDING | RowFlag.RECOMPUTED)
_START_AT_ZERO: Final = (Phase.PREFILL, Phase.EVAL, Phase.TRAIN, Phase.WARMUP)


@dataclass(slots=True)
class GroupedRows:
    """The rows of one batch, with context rows, ordered by request.

    Attributes:
        facts: The request table.
        request: int32 [T], index into `facts`.
        columns: The other columns, [T, …].
        recorded_rows: How many of the T rows are not context.
        ended: Ids of requests that end with this batch.
        told_ends: Table index and remembered last row of requests that ended without a row in
            this batch; empty where these are among the T rows, as context.
    """

    facts: list[RequestFacts]
    request: NDArray[np.int32]
    columns: Columns
    recorded_rows: int
    ended: list[str] = field(default_factory=list)
    told_ends: tuple[NDArray[np.int32], Columns] | None = None

    def requests(self) -> Requests:
        """The request table of the batch."""
        starts = np.full((len(self.facts), len(Phase)), NO_START, np.int32)
        starts[:, list(_START_AT_ZERO)] = 0
        prompts = [facts.prompt_tokens for facts in self.facts]
        starts[:, Phase.DECODE] = [
            NO_START if prompt == UNKNOWN_LENGTH else prompt for prompt in prompts
        ]
        return Requests(
            ids=tuple(facts.request for facts in self.facts),
            tasks=tuple(facts.task for facts in self.facts),
            scenes=tuple(facts.scene for facts in self.facts),
            phase_starts=starts,
            cached_tokens=np.array([max(facts.cached_tokens, 0) for facts in self.facts], np.int32),
        )


class _Table:
    """The request table in the making: one row per request, task and scene."""

    def __init__(self) -> None:
        self.facts: list[RequestFacts] = []
        self._index: dict[tuple[str, str, str], int] = {}

    def index(self, facts: RequestFacts) -> int:
        key = facts[:3]
        known = self._index.get(key)
        if known is None:
            known = self._index[key] = len(self.facts)
            self.facts.append(facts)
        else:
            self.facts[known] = facts  # what is known of a request may grow
        return known


class _Collected:
    """Frames of one batch, decoded in ring order."""

    def __init__(self, shape: RowShape) -> None:
        self._shape = shape
        self.table = _Table()
        self.parts: list[Columns] = []
        self.run_requests: list[int] = []
        self.run_rows: list[NDArray[np.int64]] = []
        self.rows = 0
        self.first_index: dict[str, int] = {}
        self.ends: list[tuple[int, np.uint8]] = []
        self.ended: dict[str, None] = {}
        self.lonely_ends: dict[str, tuple[RequestFacts, np.uint8]] = {}
        self._last_row: dict[str, int] = {}
        self._latest_facts: tuple[RequestFacts, ...] = ()
        self._indices: list[int] = []

    def add(self, frame: Frame) -> None:
        if frame.header.kind == FrameKind.ROWS:
            self._add_rows(frame)
        elif frame.header.kind == FrameKind.END:
            self._add_end(frame)

    def request_of_rows(self) -> NDArray[np.int32]:
        if not self.run_rows:
            return np.empty(0, np.int32)
        return np.repeat(np.array(self.run_requests, np.int32), np.concatenate(self.run_rows))

    def _add_rows(self, frame: Frame) -> None:
        facts, counts, columns = read_rows(frame, self._shape)
        if "event_time_us" not in columns:
            columns["event_time_us"] = np.full(frame.header.rows, frame.header.first_us, np.int64)
        self.parts.append(columns)
        if facts is not self._latest_facts:
            self._latest_facts = facts
            self._indices = [self.table.index(each) for each in facts]
            for each, index in zip(facts, self._indices, strict=True):
                self.first_index.setdefault(each.request, index)
        self.run_requests.extend(self._indices)
        self.run_rows.append(counts)
        requests = [each.request for each in facts]
        self._last_row.update(
            zip(requests, (np.cumsum(counts) + (self.rows - 1)).tolist(), strict=True)
        )
        self.rows += frame.header.rows
        if self.ended:
            for request in requests:
                self.ended.pop(request, None)

    def _add_end(self, frame: Frame) -> None:
        facts, is_last_of_task = read_end(frame)
        flag = _END_OF_TASK if is_last_of_task else _END
        self.ended[facts.request] = None
        row = self._last_row.get(facts.request)
        if row is None:
            self.lonely_ends[facts.request] = (facts, flag)
        else:
            self.ends.append((row, flag))


def group_rows(
    frames: Iterable[Frame], shape: RowShape, context: ContextRows, *, repeat_context: bool = True
) -> GroupedRows:
    """Order the rows of frames, and put the context of continuing requests before them.

    The end of a request whose rows were shipped earlier becomes a context row: its last row
    again. If that is not remembered any more, the end cannot be told.

    Args:
        frames: Of one batch, in ring order; all with the same columns but for event times.
        shape: Of the rows.
        context: What is remembered. Forgotten when it does not fit the frames' columns.
        repeat_context: Whether context rows are wanted among the rows.
    """
    collected = _Collected(shape)
    for frame in frames:
        collected.add(frame)
    if repeat_context and collected.parts:
        context.use_columns(frozenset(collected.parts[0]))
    parts: list[Columns] = []
    requests: list[NDArray[np.int32]] = []
    if repeat_context:
        _add_context(parts, requests, *_continuing(collected, context))
    told_ends = _told_ends(collected, context)
    if repeat_context:
        _add_context(parts, requests, *told_ends)
    context_rows = sum(map(len, requests))
    parts.extend(collected.parts)
    requests.append(collected.request_of_rows())
    request = np.concatenate(requests)
    columns = {name: np.concatenate([part[name] for part in parts]) for name in (parts or [{}])[0]}
    for row, flag in collected.ends:
        columns["flags"][context_rows + row] |= flag
    order = np.argsort(request, kind="stable")
    return GroupedRows(
        facts=collected.table.facts,
        request=request[order],
        columns={name: column[order] for name, column in columns.items()},
        recorded_rows=collected.rows,
        ended=list(collected.ended),
        told_ends=None if repeat_context else told_ends,
    )


def _continuing(collected: _Collected, context: ContextRows) -> tuple[NDArray[np.int32], Columns]:
    """Context rows of the requests that have rows in the batch."""
    columns, owners = context.gather(list(collected.first_index))
    return np.array(list(collected.first_index.values()), np.int32)[owners], columns


def _told_ends(collected: _Collected, context: ContextRows) -> tuple[NDArray[np.int32], Columns]:
    """The last rows of requests that end here and had all their rows shipped before."""
    ends = list(collected.lonely_ends.values())
    columns, owners = context.gather(list(collected.lonely_ends), 1)
    told = [ends[owner] for owner in owners]  # the others must not enter the request table
    if told:
        columns["flags"] = columns["flags"] | np.array([flag for _, flag in told], np.uint8)
    return np.array([collected.table.index(facts) for facts, _ in told], np.int32), columns


def _add_context(
    parts: list[Columns],
    requests: list[NDArray[np.int32]],
    request: NDArray[np.int32],
    columns: Columns,
) -> None:
    if len(request):
        columns["flags"] = columns["flags"] | _CONTEXT
        parts.append(columns)
        requests.append(request)


def update_context(context: ContextRows, grouped: GroupedRows, names: Sequence[str] = ()) -> None:
    """Remember the last two rows of each request that goes on, and forget the others.

    Args:
        context: What is remembered.
        grouped: The rows of a batch.
        names: Columns to remember; all by default.
    """
    if len(grouped.request):
        columns = grouped.columns
        phases = np.array([phase in HEALTH_PHASES for phase in Phase])
        usable = np.flatnonzero(((columns["flags"] & _NO_CONTEXT) == 0) & phases[columns["phase"]])
        _remember_last(context, grouped, usable, names or tuple(columns))
    for request in grouped.ended:
        context.forget(request)


def _remember_last(
    context: ContextRows, grouped: GroupedRows, usable: NDArray[np.intp], names: Sequence[str]
) -> None:
    if not len(usable):
        return
    request = grouped.request[usable]
    last = np.flatnonzero(np.append(request[1:] != request[:-1], True))
    has_two = (last > 0) & (request[last - 1] == request[last])
    before_last = np.where(has_two, usable[last - 1], -1)
    ids = [grouped.facts[index].request for index in request[last].tolist()]
    # An id has two table rows when its task or scene changed: the later one is the newer.
    newest = list({name: place for place, name in enumerate(ids)}.values())
    columns = {name: grouped.columns[name] for name in names}
    columns["flags"] = columns["flags"] & ~(_CONTEXT | _END_OF_TASK)
    context.remember(
        [ids[place] for place in newest], usable[last][newest], before_last[newest], columns
    )


__all__ = ["CONTEXT_ROWS", "GroupedRows", "group_rows", "update_context"]
