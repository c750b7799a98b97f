"""`moescope kafka topics-check` and `topics-apply`: against one broker, from open to close."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moescope.console.kafka.clients import opened_admin
from moescope.console.kafka.topic_plan import Remedy, cautions, differences
from moescope.console.kafka.topics import apply_differences, read_topics
from moescope.console.output import counted
from moescope.core.errors import InputError
from moescope.core.kafka import declared_topics

if TYPE_CHECKING:
    from collections.abc import Callable

    from moescope.console.kafka.topic_plan import Difference
    from moescope.core.settings import Settings


@dataclass(frozen=True, slots=True)
class TopicsCheck:
    """What a broker's topics are like.

    Attributes:
        differences: From the declaration.
        cautions: What is as declared, and still risky.
    """

    differences: list[Difference]
    cautions: list[str]


def check_topics(settings: Settings) -> TopicsCheck:
    """Compare the broker's topics with the declaration.

    Raises:
        MoescopeError: The broker cannot be reached, or refuses.
    """
    wanted = declared_topics(settings)
    with opened_admin(settings, "reading the topics") as admin:
        found = read_topics(admin, [spec.name for spec in wanted])
    return TopicsCheck(differences(wanted, found, settings["kafka.replication"]), cautions(found))


def apply_topics(
    settings: Settings, agree: Callable[[list[Difference]], None]
) -> tuple[list[Difference], list[str]]:
    """Make the broker's topics as declared, as far as that is possible.

    Args:
        settings: Declare them.
        agree: Told what will be done before it is done; raises to stop it.

    Returns:
        What was done, and cautions about what is there now.

    Raises:
        InputError: Something can only be mended by hand; the rest was done.
        MoescopeError: The broker cannot be reached, or refuses.
    """
    wanted = declared_topics(settings)
    names = [spec.name for spec in wanted]
    replication = settings["kafka.replication"]
    with opened_admin(settings, "making the topics") as admin:
        found = differences(wanted, read_topics(admin, names), replication)
        todo = [each for each in found if each.remedy is not Remedy.BY_HAND]
        by_hand = [each for each in found if each.remedy is Remedy.BY_HAND]
        if todo:
            agree(todo)
            apply_differences(admin, wanted, todo, replication)
        there = read_topics(admin, names)
    if by_hand:
        raise InputError(
            f"{counted(len(by_hand), 'difference')} can only be mended by hand; "
            f"{counted(len(todo), 'other')} {'was' if len(todo) == 1 else 'were'} mended.",
            why="; ".join(
                f"{each.topic} has {each.what} {each.found}, not {each.wanted}" for each in by_hand
            ),
            next_step=" ".join(dict.fromkeys(each.next_step for each in by_hand)),
        )
    return todo, cautions(there)
