"""Progress of long work, on standard error: a bar on a terminal, sparse lines elsewhere."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LINE_SECONDS = 10.0


class Report(Protocol):
    """Called with how much is done, and a few words on what was done."""

    def __call__(self, done: float, detail: str = "") -> None:
        """Report."""
        ...


@contextmanager
def progress(title: str, total: float | None = None) -> Iterator[Report]:
    """Show progress while the block runs.

    Args:
        title: What is being done.
        total: The value of `done` at the end, when it is known.
    """
    if sys.stderr.isatty():
        with _bar(title, total) as report:
            yield report
        return
    print(f"{title} …", file=sys.stderr, flush=True)
    yield _lines(title, total, time.monotonic)


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


def _lines(title: str, total: float | None, clock: Callable[[], float]) -> Report:
    last = clock()

    def report(done: float, detail: str = "") -> None:
        nonlocal last
        if clock() - last >= LINE_SECONDS:
            last = clock()
            share = f" {done / total:.0%}" if total else ""
            print(f"{title}{share} {detail}".rstrip(), file=sys.stderr, flush=True)

    return report
