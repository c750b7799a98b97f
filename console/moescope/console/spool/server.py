"""The owner's side: takes commands one after the other and answers them."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Self

from moescope.console.spool.answers import answered, error_document
from moescope.console.spool.folder import ANSWER, ASKED, TAKEN, SpoolFolder
from moescope.core.errors import DependencyUnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from moescope.core.clock import Clock

POLL_SECONDS: Final = 0.1
ANSWERS_LIVE_SECONDS: Final = 3600.0
"""Answers that nobody fetched: whoever asked was killed."""


class SpoolServer:
    """Serves the spool of a data directory on a thread of its own, inside a `with` block.

    Args:
        data_directory: Whose spool.
        execute: Carries out one command as one transaction, and returns its result.
        clock: Dates requests.
        log: Told of what people should know.
    """

    def __init__(
        self,
        data_directory: Path,
        execute: Callable[[dict[str, Any]], dict[str, Any]],
        clock: Clock,
        log: Callable[[str], None],
    ) -> None:
        self._log = log
        self._folder = SpoolFolder(data_directory)
        self._execute = execute
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="moescope-commands")
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        """Take the lock, settle what a dead owner left, and begin."""
        self._closing.enter_context(self._folder.serving())
        self._settle()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Finish the command in work; what still waits is left to whoever asked."""
        self._stop.set()
        self._thread.join()
        self._closing.close()

    def _serve(self) -> None:
        while not self._stop.is_set():
            for name in self._folder.names(ASKED):
                if self._stop.is_set():
                    return
                try:
                    self._serve_one(name)
                except OSError as error:
                    self._log(f"a command could not be answered: {error}")
            self._stop.wait(POLL_SECONDS)

    def _serve_one(self, name: str) -> None:
        if not self._folder.take(name):
            return
        answer = answered(lambda: self._execute_in_time(name))
        self._folder.write(name, ANSWER, answer)
        self._folder.remove(name, TAKEN)

    def _execute_in_time(self, name: str) -> dict[str, Any]:
        request = self._folder.read(name, TAKEN) or {}
        deadline_us = request.get("deadline_us")
        if not isinstance(deadline_us, int) or deadline_us < self._clock.now_us():
            raise DependencyUnreachableError(
                "The command came too late: whoever asked has given up. Nothing was done.",
                next_step="Give the command again.",
            )
        return self._execute(request)

    def _settle(self) -> None:
        self._folder.remove_halves()
        for name in self._folder.names(TAKEN):
            gone = {"error": error_document(owner_gone())}
            self._folder.write(name, ANSWER, gone)
            self._folder.remove(name, TAKEN)
        now_us = self._clock.now_us()
        for name in self._folder.names(ANSWER):
            if self._folder.age_seconds(name, ANSWER, now_us) > ANSWERS_LIVE_SECONDS:
                self._folder.remove(name, ANSWER)


def owner_gone() -> DependencyUnreachableError:
    """Nobody can tell any more whether the command was carried out."""
    return DependencyUnreachableError(
        "The owner ended while it carried out the command.",
        why="A command is one transaction: all of it was done, or nothing.",
        next_step="Look which (the matching `list` command, or the table `audit`), then give the "
        "command again if need be.",
    )
