"""The owner's side: takes commands one after the other and answers them."""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from moescope.console.spool.answers import answered, error_document
from moescope.console.spool.folder import ANSWER, ASKED, TAKEN, SpoolFolder
from moescope.core.errors import DependencyUnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from moescope.core.clock import Clock

POLL_SECONDS: Final = 0.1
WRITE_ATTEMPTS: Final = 3
"""How often the owner tries to write an answer, for instance on a full disk."""
_WRITE_PAUSE_SECONDS: Final = 0.2
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
        self._told_strangers: set[str] = set()
        self._told_trouble = ""

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
            self._guarded(self._tell_strangers)
            self._guarded(self._serve_waiting)
            self._stop.wait(POLL_SECONDS)

    def _serve_waiting(self) -> None:
        for name in self._folder.names(ASKED):
            if self._stop.is_set():
                return
            self._guarded(partial(self._serve_one, name))

    def _serve_one(self, name: str) -> None:
        if self._folder.take(name):
            self._deliver(name, answered(lambda: self._execute_in_time(name)))

    def _deliver(self, name: str, answer: dict[str, Any]) -> None:
        try:
            for attempt in range(WRITE_ATTEMPTS):
                try:
                    self._folder.write(name, ANSWER, answer)
                    break
                except OSError as error:
                    if attempt == WRITE_ATTEMPTS - 1:
                        self._tell(f"the command {name!r} could not be answered: {error}")
                    else:
                        self._clock.sleep(_WRITE_PAUSE_SECONDS)
        finally:
            # Without an answer too: that is how whoever asked learns that none will come.
            self._folder.remove(name, TAKEN)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Work that may fail without ending the owner; the same failure is told once."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 (the next command must still be served)
            trouble = f"commands: {type(error).__name__}: {error}"
            if trouble != self._told_trouble:
                self._told_trouble = trouble
                self._tell(trouble)

    def _tell(self, line: str) -> None:
        # Where a disk is full, the log may be on it.
        with suppress(Exception):
            self._log(line)

    def _tell_strangers(self) -> None:
        found = self._folder.strangers()
        for name in sorted(found - self._told_strangers):
            self._tell(f"commands: {name!r} is no command and left alone; remove it")
        self._told_strangers = found

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
        for work in (
            self._folder.remove_halves,
            self._tell_strangers,
            self._remove_old_answers,
            self._answer_taken,
        ):
            self._guarded(work)

    def _answer_taken(self) -> None:
        gone = {"error": error_document(owner_gone())}
        for name in self._folder.names(TAKEN):
            self._guarded(partial(self._deliver, name, gone))

    def _remove_old_answers(self) -> None:
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
