"""Carrying out a change: in this process when no owner runs, else by the owner."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING, Any, Final

from moescope.console.changes import Order
from moescope.core.errors import InputError

if TYPE_CHECKING:
    from moescope.console.changes import Change
    from moescope.core.settings import Settings

SETTLING_SECONDS: Final = 15.0
"""How long an owner may take to start or to end, and another command to let go of the store."""
_PAUSE_SECONDS: Final = 0.2


def perform(settings: Settings, change: Change, reason: str = "") -> dict[str, Any]:
    """Carry out a change, and return what it says of itself.

    Raises:
        InputError: There is no store yet, or the change is refused.
        MoescopeError: What the change raised.
    """
    from moescope.console.opened_store import opened_store
    from moescope.console.spool.client import NotServedError, ask_owner
    from moescope.console.working import carry_out
    from moescope.core.clock import SystemClock
    from moescope.storage.errors import StoreInUseError
    from moescope.storage.places import store_file

    directory = settings.data_directory
    if not store_file(directory).exists():
        raise InputError(
            f"There is no store in {directory}.",
            next_step="Check --data; `moescope run all` makes a new store.",
        )
    order = Order(change=change, author=account(), reason=reason)
    clock = SystemClock()
    give_up = clock.monotonic() + SETTLING_SECONDS
    while True:
        try:
            with opened_store(settings, closes_windows=False) as parts:
                return carry_out(order, parts)
        except StoreInUseError as error:
            in_use = error
        try:
            return ask_owner(directory, order.to_document(), clock)
        except NotServedError:
            if clock.monotonic() >= give_up:
                raise in_use from None
            clock.sleep(_PAUSE_SECONDS)


def account() -> str:
    """Name of the account that runs this process."""
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
