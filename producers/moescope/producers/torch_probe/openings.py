"""Which of the requests that are open now a forward pass belongs to."""

from __future__ import annotations

import inspect
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from moescope.producers.torch_probe.inputs import RefusedPassError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from moescope.producers.torch_probe.requests import RunningBatch

_COROUTINE: Final = inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE
_GENERATOR: Final = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_ENTERING: Final = frozenset({"__enter__", "__aenter__"})
_DRAFTING: Final = "_assisted_decoding"


class Opening:
    """One `with` block that names requests.

    Attributes:
        running: The requests.
        frame: Of the code that the block stands in, or None: then it is not known.
        thread: Where it was entered.
        is_over: Whether it was left.
    """

    __slots__ = ("frame", "is_over", "running", "thread")

    def __init__(self, running: RunningBatch, frame: FrameType | None) -> None:
        self.running = running
        self.frame = frame
        self.thread = threading.get_ident()
        self.is_over = False

    def has(self, flags: int) -> bool:
        """Whether the block stands in a function of this kind."""
        return self.frame is not None and bool(self.frame.f_code.co_flags & flags)


# Contexts keep variables for ever, so there is one for all probes.
_open_here: ContextVar[tuple[Opening, ...]] = ContextVar("moescope_open_requests", default=())


class Openings:
    """The blocks of one probe that are open, in any thread.

    A pass belongs to the innermost block whose code runs it: whose function is on the stack. So
    generators that take turns keep their own requests, on whatever thread they are resumed. Where
    the code cannot tell (a block that was entered by hand, a task or thread that was started
    within), the context does: asyncio tasks have one each.
    """

    def __init__(self) -> None:
        self._open: dict[int, Opening] = {}

    def __bool__(self) -> bool:
        """Whether any block is open."""
        return bool(self._open)

    def __iter__(self) -> Iterator[RunningBatch]:
        """The requests of all open blocks."""
        return iter([opening.running for opening in tuple(self._open.values())])

    def enter(self, running: RunningBatch, frame: FrameType | None) -> Opening:
        """Open a block.

        Args:
            running: The requests.
            frame: Of the context manager's own function.
        """
        opening = Opening(running, _owner_of(frame))
        self._open[id(opening)] = opening
        _open_here.set((*_open_here.get(), opening))
        return opening

    def leave(self, opening: Opening) -> None:
        """Close a block, from any context and in any order."""
        opening.is_over = True
        opening.frame = None  # it refers to this block, too
        self._open.pop(id(opening), None)
        _open_here.set(tuple(each for each in _open_here.get() if not each.is_over))

    def current(self) -> RunningBatch | None:
        """Whose rows a pass computes that begins here; None when nobody's.

        Raises:
            RefusedPassError: Several blocks are open, and nothing tells which one is meant.
        """
        if not self._open:
            return None
        here = _open_here.get()
        is_alone = len(here) == len(self._open) == 1 and id(here[0]) in self._open
        if is_alone and not here[0].has(_GENERATOR):
            return here[0].running
        own = [each for each in here if id(each) in self._open]
        stack = _stack()
        running_here = [each for each in tuple(self._open.values()) if each.frame in stack]
        # Of the innermost function, the block that it entered last.
        inner = min(reversed(running_here), key=lambda each: stack[each.frame], default=None)
        later = [] if inner is not None else own
        if inner in own:
            later = own[own.index(inner) + 1 :]
        possible = [] if inner is None else [inner]
        possible += [each for each in later if each.frame not in stack and not _is_suspended(each)]
        if len([each for each in possible if not each.has(_COROUTINE)]) > 1:
            for each in possible:
                each.running.miss_pass()
            raise RefusedPassError(
                "several requests open at a time",
                "nothing tells which one computes; open one at a time in a thread, or each in the "
                "function that computes it",
            )
        return possible[-1].running if possible else None


def is_drafting() -> bool:
    """Whether this runs inside of a `generate` of transformers that checks drafted tokens."""
    return any(frame.f_code.co_name == _DRAFTING for frame in _stack() if frame is not None)


def _owner_of(frame: FrameType | None) -> FrameType | None:
    """The function whose `with` block is being entered: the first that does not itself enter."""
    while frame is not None:
        caller = frame.f_back
        if caller is None or not _enters(caller):
            return frame
        while caller is not None and _enters(caller):
            caller = caller.f_back
        frame = caller
    return None


def _enters(frame: FrameType) -> bool:
    return frame.f_code.co_name in _ENTERING or frame.f_globals.get("__name__") == "contextlib"


def _stack() -> dict[FrameType | None, int]:
    """The functions that run in this thread, and how many they are away."""
    stack: dict[FrameType | None, int] = {}
    frame = inspect.currentframe()
    while frame is not None:
        stack[frame] = len(stack)
        frame = frame.f_back
    return stack


def _is_suspended(opening: Opening) -> bool:
    """Whether the block stands in a generator of this thread, which waits to be resumed."""
    return opening.has(_GENERATOR) and opening.thread == threading.get_ident()
