"""Commands that follow from a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.jobs.reports.schema import NextStep
from moescope.jobs.reports.words import command_word

if TYPE_CHECKING:
    from moescope.jobs.reports.schema import Changes, VersionFacts


def next_steps(version: VersionFacts, changes: Changes, rolls_back_to: str) -> list[NextStep]:
    """What to type, depending on where the version stands.

    Args:
        version: The report's.
        changes: Against the version before it.
        rolls_back_to: The version that a rollback returns to; empty: none.
    """
    name = command_word(version["version"])
    steps = []
    if changes["against"] is not None:
        before = command_word(changes["against"])
        steps.append(
            NextStep(
                command=f"moescope threshold diff {before} {name}",
                what="lists every line that moved",
            )
        )
    if version["status"] != "active":
        steps.append(
            NextStep(
                command=f"moescope threshold activate {name}",
                what="judges windows by it from now on; windows that have closed keep their levels",
            )
        )
    else:
        steps.append(
            NextStep(
                command="moescope threshold rollback",
                what=f"lets {rolls_back_to} judge again"
                if rolls_back_to
                else "switches judging off: no version was in force before this one, and windows"
                " are insufficient until another is activated",
            )
        )
    return steps
