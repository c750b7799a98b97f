"""What a check of `moescope doctor` says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """What a check found."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    check: str
    outcome: Outcome
    detail: str
    next_step: str = ""
