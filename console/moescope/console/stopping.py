"""How long-running commands end: signals, and threads that fail for all."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def stop_on_signals() -> threading.Event:
    """An event that the first SIGINT or SIGTERM sets; the next one ends the process."""
    stop = threading.Event()

    def ask_to_stop(number: int, frame: Any) -> None:  # noqa: ANN401, ARG001 (signal's signature)
        signal.signal(number, signal.SIG_DFL)
        # The main thread may be inside of `stop.wait()` and hold the event's lock: setting it
        # here would wait for oneself.
        threading.Thread(target=stop.set, name="moescope-stop", daemon=True).start()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask_to_stop)
    return stop


@contextmanager
def beside(
    work: Callable[[threading.Event], None], stop: threading.Event, name: str
) -> Iterator[None]:
    """Do something on a thread beside the block, and end it with the block.

    Args:
        work: Ends when its argument is set; when it fails, `stop` is set, and the failure raised
            when the block has ended.
        stop: Is set when either ends.
        name: Of the thread.
    """
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work(stop)
        except BaseException as failure:  # noqa: BLE001 (raised again by the main thread)
            failures.append(failure)
            stop.set()

    thread = threading.Thread(target=run, name=name)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        if failures:
            raise failures[0]
