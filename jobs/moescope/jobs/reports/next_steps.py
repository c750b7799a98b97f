"""Commands that follow from a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.jobs.reports.schema import NextStep
from moescope.jobs.reports.words import command_word

if TYPE_CHECKING:
    from moescope.jobs.reports.schema import Changes, VersionFacts


def next_steps(version: VersionFacts, changes: Changes) -> list[NextStep]:
    """What to type, depending on where the version stands."""
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
                what="goes back to the version before it",
            )
        )
    return steps
