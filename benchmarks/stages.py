"""Times the stages of a run by wrapping the functions that they consist of."""

from __future__ import annotations

import functools
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from benchmarks.figures import Stage

if TYPE_CHECKING:
    from collections.abc import Callable


class _Frame:
    def __init__(self) -> None:
        self.cpu = time.thread_time()
        self.wall = time.perf_counter()
        self.inner_cpu = 0.0
        self.inner_wall = 0.0


class _Wrapped(NamedTuple):
    owner: Any
    name: str
    original: Any


class StageClock:
    """Sums each stage's own time: that of its thread, less the stages called inside it.

    Used as a context manager; the functions are put back at its end.
    """

    def __init__(self) -> None:
        self._wrapped: list[_Wrapped] = []
        self._stack = threading.local()
        self._lock = threading.Lock()
        self._sums: dict[str, list[float]] = {}

    def watch(self, label: str, owner: Any, name: str) -> None:  # noqa: ANN401 (module or class)
        """Time `owner.name` as a stage; several functions may share a label."""
        original = getattr(owner, name)
        self._wrapped.append(_Wrapped(owner, name, original))
        setattr(owner, name, self._timed(label, original))

    def _timed(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 (whatever it takes)
            stack: list[_Frame] = self._stack.__dict__.setdefault("frames", [])
            frame = _Frame()
            stack.append(frame)
            try:
                return function(*arguments, **named)
            finally:
                cpu = time.thread_time() - frame.cpu
                wall = time.perf_counter() - frame.wall
                stack.pop()
                if stack:
                    stack[-1].inner_cpu += cpu
                    stack[-1].inner_wall += wall
                self._add(label, cpu - frame.inner_cpu, wall - frame.inner_wall)

        return timed

    def _add(self, label: str, cpu: float, wall: float) -> None:
        with self._lock:
            sums = self._sums.setdefault(label, [0.0, 0.0, 0.0])
            sums[0] += 1
            sums[1] += cpu
            sums[2] += wall

    def stages(self) -> list[Stage]:
        """What was timed so far."""
        return [
            Stage(name=label, calls=int(calls), cpu_s=cpu, wall_s=wall)
            for label, (calls, cpu, wall) in self._sums.items()
        ]

    def __enter__(self) -> Self:
        """The clock itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Put the functions back."""
        for owner, name, original in reversed(self._wrapped):
            setattr(owner, name, original)
        self._wrapped.clear()
