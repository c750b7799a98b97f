"""Whether the routing topic has as many partitions as the settings say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moescope.console.kafka.clients import opened_admin
from moescope.core.errors import DependencyUnreachableError, MoescopeError
from moescope.core.kafka import Topic, topic_name

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from moescope.core.settings import Settings

RETRY_SECONDS: Final = 2.0


def tell_partitions(settings: Settings, log: Callable[[str], None], stop: threading.Event) -> None:
    """Say so once if the numbers differ; a broker that is away, or the topic, is waited for.

    Nothing of it is an error: whoever reads takes all partitions that there are.

    Args:
        settings: Name the brokers and the topic.
        log: Told of a difference.
        stop: Ends waiting.
    """
    name, wanted = topic_name(settings, Topic.ROUTING), settings["kafka.partitions"]
    while not stop.is_set():
        try:
            found = _partitions(settings, name)
        except DependencyUnreachableError:
            found = 0
        except MoescopeError:
            # Whoever reads is refused as well, and says so.
            return
        if found:
            if found != wanted:
                log(
                    f"{name} has {found} partitions, and kafka.partitions is {wanted}: all {found} "
                    "are read; `moescope kafka topics-check` says what to do"
                )
            return
        stop.wait(RETRY_SECONDS)


def _partitions(settings: Settings, name: str) -> int:
    with opened_admin(settings, f"looking for {name}") as admin:
        found = admin.describe_topics([name])
    return sum(len(each["partitions"]) for each in found if not each["error_code"])
