"""`moescope kafka dlq-show` and `dlq-replay`: against one broker, from open to close."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from moescope.console.kafka.letters import Selection, full_key, no_letter, opened_letters
from moescope.console.kafka.replay import ReplayOrder, replay_letters
from moescope.console.performing import account
from moescope.core.clock import SystemClock
from moescope.core.errors import InputError
from moescope.core.kafka.dead_letters import PayloadState

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from moescope.console.kafka.letters import FoundLetter
    from moescope.console.kafka.replay import ReplayLine
    from moescope.core.settings import Settings


def read_letter(settings: Settings, text: str) -> tuple[FoundLetter, bytes]:
    """One letter and its payload.

    Args:
        settings: Name broker and topic.
        text: Its key, as people type it.

    Raises:
        InputError: There is no such letter.
        MoescopeError: The broker cannot be reached, or refuses.
    """
    key = full_key(settings, text)
    with opened_letters(settings) as topic:
        found = topic.letters(Selection(keys=frozenset({key})))
        if not found:
            raise no_letter([key], topic.name)
        ((_, payload),) = topic.payloads([found[0].place])
    return found[0], payload


def save_payload(found: FoundLetter, payload: bytes, path: Path) -> None:
    """Write a letter's payload into a new file.

    Raises:
        InputError: The file exists, or the payload was not kept.
    """
    if found.published.payload_state is PayloadState.OMITTED:
        raise InputError(
            f"The payload of {found.key} was not kept.",
            why="It is larger than a record of the topic may be.",
            next_step="Read it from the log itself while that still holds it.",
        )
    try:
        with path.open("xb") as file:
            file.write(payload)
    except FileExistsError as error:
        raise InputError(f"{path} exists.", next_step="Name a new file.") from error


def replay(
    settings: Settings,
    selection: Selection,
    agree: Callable[[int], None],
    *,
    again: bool,
    reason: str,
) -> list[ReplayLine]:
    """Replay letters in this account's name; raises like :func:`replay_letters`."""
    order = ReplayOrder(
        selection=selection,
        again=again,
        incarnation=secrets.randbits(64),
        author=account(),
        reason=reason,
    )
    return replay_letters(settings, order, SystemClock(), agree)
