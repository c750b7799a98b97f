"""The command line's side: asks the running owner and waits for its answer."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

from moescope.console.spool.answers import result_of
from moescope.console.spool.folder import ANSWER, ASKED, TAKEN, SpoolFolder
from moescope.console.spool.server import owner_gone
from moescope.core.errors import DependencyUnreachableError

if TYPE_CHECKING:
    from pathlib import Path

    from moescope.core.clock import Clock

PATIENCE_SECONDS: Final = 120.0
"""How long a command may wait to be taken; commands are carried out one after the other."""
_LOOK_SECONDS: Final = 0.05


class NotServedError(DependencyUnreachableError):
    """No owner takes commands in this data directory; nothing was done."""


def ask_owner(
    data_directory: Path,
    request: dict[str, Any],
    clock: Clock,
    *,
    patience_seconds: float = PATIENCE_SECONDS,
) -> dict[str, Any]:
    """Have the running owner carry out a command.

    Args:
        data_directory: Whose owner.
        request: The command; JSON values.
        clock: For waiting, and for the deadline in the request.
        patience_seconds: How long it may wait to be taken.

    Returns:
        What the command returned.

    Raises:
        NotServedError: No owner is there to ask; nothing was done.
        DependencyUnreachableError: It was not taken in time, and withdrawn; or the owner ended
            while it carried it out.
        MoescopeError: What the command raised.
    """
    folder = SpoolFolder(data_directory)
    if not folder.is_served():
        raise _not_served(data_directory)
    name = f"{clock.now_us():020}-{uuid.uuid4().hex}"
    deadline_us = clock.now_us() + round(patience_seconds * 1e6)
    folder.write(name, ASKED, {**request, "deadline_us": deadline_us})
    try:
        return result_of(_wait(folder, name, clock, deadline_us, data_directory))
    finally:
        folder.remove(name, ASKED)
        folder.remove(name, ANSWER)


def _wait(
    folder: SpoolFolder, name: str, clock: Clock, deadline_us: int, data_directory: Path
) -> dict[str, Any]:
    while True:
        # Looked at first: an owner answers before it goes.
        is_served = folder.is_served()
        answer = folder.read(name, ANSWER)
        if answer is not None:
            return answer
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
        clock.sleep(_LOOK_SECONDS)


def _not_served(data_directory: Path) -> NotServedError:
    return NotServedError(
        f"No owner takes commands in {data_directory}.",
        next_step="Try again: an owner that starts or ends takes a moment.",
    )
