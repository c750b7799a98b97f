"""Which of the two shapes a fleet has: with processors, or with a store that does all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.core.errors import SettingsError

if TYPE_CHECKING:
    from moescope.core.settings import Settings


def need_processors(settings: Settings, what: str) -> None:
    """Refuse what makes sense beside processors only, where the store is said to do without.

    The store would read the routing topic itself, and nobody what processors write.

    Args:
        settings: Name the store's source.
        what: Is refused, as the subject of a sentence.

    Raises:
        SettingsError: `store.source` is not `deltas`.
    """
    source = settings["store.source"]
    if source != "deltas":
        raise SettingsError(
            f'{what} needs store.source = "deltas", and it is "{source}".',
            why="The store then reads routing batches itself, and applies nothing that processors "
            "write.",
            next_step='Set store.source = "deltas" (MOESCOPE_STORE_SOURCE=deltas) for the store, '
            "its standby and every processor alike; or do without processors.",
        )
