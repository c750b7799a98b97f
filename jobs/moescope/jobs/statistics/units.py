"""How many sampling units a line needs."""

from __future__ import annotations

from moescope.core.thresholds import Standing

WARN_UNITS = 29
"""The greatest of so many independent values is above their P90 with 95 % (1 − 0.9²⁹ = 0.953)."""
RED_UNITS = 299
"""The same for P99: so many bound it from one side."""
BOUNDED_UNITS = 368
"""So many bound a P99 from both sides (0.99³⁶⁷ = 0.025)."""
FIRM_UNITS = 1_000
"""From here on a P99 is firm: ten units lie beyond it."""
MINIMUM_UNITS = WARN_UNITS
"""With fewer no line is set at all."""


def standing_of(units: int) -> Standing:
    """How much lines that rest on so many units can be trusted."""
    return Standing.FIRM if units >= FIRM_UNITS else Standing.PROVISIONAL
