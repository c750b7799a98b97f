"""The command line's side: asks the running owner and waits for its answer."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

from moescope.console.spool.answers import LOOK, result_of
from moescope.console.spool.folder import ANSWER, ASKED, TAKEN, SpoolFolder
from moescope.console.spool.server import owner_gone
from moescope.core.errors import DependencyUnreachableError

if TYPE_CHECKING:
    from pathlib import Path

    from moescope.core.clock import Clock

PATIENCE_SECONDS: Final = 120.0
"""How long a command may wait to be taken; commands are carried out one after the other."""
ANSWER_SECONDS: Final = 900.0
"""How long whoever asked waits in all, also for a command that was taken."""
_LOOK_SECONDS: Final = 0.05


class NotServedError(DependencyUnreachableError):
    """No owner takes commands in this data directory; nothing was done."""


def ask_owner(
    data_directory: Path,
    request: dict[str, Any],
    clock: Clock,
    *,
    patience_seconds: float = PATIENCE_SECONDS,
    answer_seconds: float = ANSWER_SECONDS,
) -> dict[str, Any]:
    """Have the running owner carry out a command.

    Args:
        data_directory: Whose owner.
        request: The command; JSON values.
        clock: For waiting, and for the deadline in the request.
        patience_seconds: How long it may wait to be taken.
        answer_seconds: How long to wait in all, from asking to the answer.

    Returns:
        What the command returned.

    Raises:
        NotServedError: No owner is there to ask; nothing was done.
        DependencyUnreachableError: It was not taken in time, and withdrawn; or the owner ended
            while it carried it out; or no answer came in time, or ever will.
        MoescopeError: What the command raised.
    """
    folder = SpoolFolder(data_directory)
    if not folder.is_served():
        raise _not_served(data_directory)
    name = f"{clock.now_us():020}-{uuid.uuid4().hex}"
    asked_us = clock.now_us()
    deadline_us = asked_us + round(min(patience_seconds, answer_seconds) * 1e6)
    last_us = asked_us + round(answer_seconds * 1e6)
    folder.write(name, ASKED, {**request, "deadline_us": deadline_us})
    try:
        return result_of(_wait(folder, name, clock, (deadline_us, last_us), data_directory))
    finally:
        folder.remove(name, ASKED)
        folder.remove(name, ANSWER)


def _wait(
    folder: SpoolFolder,
    name: str,
    clock: Clock,
    deadlines_us: tuple[int, int],
    data_directory: Path,
) -> dict[str, Any]:
    deadline_us, last_us = deadlines_us
    while True:
        # Looked at first: an owner answers before it goes.
        is_served = folder.is_served()
        # Waiting before taken, as the owner renames the one to the other.
        is_done = not folder.has(name, ASKED) and not folder.has(name, TAKEN)
        answer = folder.read(name, ANSWER)
        if answer is not None:
            return answer
        if is_done:
            raise _unanswered(
                "The owner could not write its answer; the command may have been carried out.",
                "A full disk, for instance; the owner's log says it.",
            )
        if not is_served:
            if folder.remove(name, ASKED):
                raise _not_served(data_directory)
            # A new owner may just have taken it.
            if not folder.is_served() and folder.remove(name, TAKEN):
                raise owner_gone()
        elif clock.now_us() > deadline_us and folder.remove(name, ASKED):
            raise DependencyUnreachableError(
                "The owner did not take the command in time; it was withdrawn, nothing was done.",
                why="It carries out one command after the other, and an earlier one takes long.",
                next_step="Try again later; `moescope job list` shows what is running.",
            )
        elif clock.now_us() > last_us:
            raise _unanswered(
                "The owner did not answer in time; the command may have been, or may still be, "
                "carried out.",
                "It took the command and is still at it.",
            )
        clock.sleep(_LOOK_SECONDS)


def _unanswered(what: str, why: str) -> DependencyUnreachableError:
    return DependencyUnreachableError(
        what, why=why, next_step=f"{LOOK} Give it again only if it was not done."
    )


def _not_served(data_directory: Path) -> NotServedError:
    return NotServedError(
        f"No owner takes commands in {data_directory}.",
        next_step="Try again: an owner that starts or ends takes a moment.",
    )
