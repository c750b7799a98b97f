"""Progress of long work, on standard error: a bar on a terminal, sparse lines elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LINE_SECONDS = 10.0

_log: Final = logging.getLogger("moescope.console")


class Report(Protocol):
    """Called with how much is done, and a few words on what was done."""

    def __call__(self, done: float, detail: str = "") -> None:
        """Report."""
        ...


@contextmanager
def progress(title: str, total: float | None = None, *, may_idle: bool = False) -> Iterator[Report]:
    """Show progress while the block runs.

    Args:
        title: What is being done.
        total: The value of `done` at the end, when it is known.
        may_idle: Whether a report of the same `done` as the line before says that there was nothing
            to do: then it is logged for debugging only.
    """
    if sys.stderr.isatty():
        with _bar(title, total) as report:
            yield report
        return
    print(f"{title} …", file=sys.stderr, flush=True)
    yield _lines(title, total, time.monotonic, may_idle=may_idle)


@contextmanager
def _bar(title: str, total: float | None) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[detail]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    ) as bar:
        task = bar.add_task(title, total=total, detail="")

        def report(done: float, detail: str = "") -> None:
            bar.update(task, completed=done, detail=detail)

        yield report
        if total is not None:
            bar.update(task, completed=total)


def _lines(
    title: str, total: float | None, clock: Callable[[], float], *, may_idle: bool
) -> Report:
    last, told = clock(), 0.0

    def report(done: float, detail: str = "") -> None:
        nonlocal last, told
        if clock() - last < LINE_SECONDS:
            return
        last = clock()
        share = f" {done / total:.0%}" if total else ""
        line = f"{title}{share} {detail}".rstrip()
        if may_idle and done == told:
            _log.debug("%s: idle", line)
            return
        told = done
        print(line, file=sys.stderr, flush=True)

    return report
