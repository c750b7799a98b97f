"""The page on dead letters says what to do for each reason that there is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from moescope.core.dead_letter_reasons import DeadLetterReason

if TYPE_CHECKING:
    from pathlib import Path


def test_each_reason_has_a_row(repository_root: Path) -> None:
    """Nobody meets a reason in a table that the page does not know."""
    page = (repository_root / "docs/how-to/handle-dead-letters.md").read_text()
    told = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert told == set(DeadLetterReason)
