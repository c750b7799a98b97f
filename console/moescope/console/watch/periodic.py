"""Figures that are taken now and then, not whenever somebody asks."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from moescope.console.output import note

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SECONDS: Final = 10.0


@contextmanager
def periodically(take: Callable[[], None], *, seconds: float = SECONDS) -> Iterator[None]:
    """Call `take` from a thread at once, every so many seconds, and never after the block.

    What it raises is told once, and does not keep it from being called again: figures that are
    missing must not end what they are about.
    """
    stop = threading.Event()

    def run() -> None:
        complaint = ""
        while True:
            try:
                take()
                complaint = ""
            except Exception as error:  # noqa: BLE001 (told, and tried again)
                if repr(error) != complaint:
                    note(f"figures of this process cannot be taken, trying again: {error}")
                complaint = repr(error)
            if stop.wait(seconds):
                return

    thread = threading.Thread(target=run, name="moescope-figures", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
