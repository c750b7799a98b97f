"""What a calibration can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moescope.jobs.statistics import MINIMUM_UNITS

if TYPE_CHECKING:
    from moescope.core.settings import Settings

SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationOptions:
    """Choices that change lines or rules.

    Attributes:
        block_us: Length of the blocks of event time that are units of time windows.
        minimum_units: With fewer a line is not set at all; at least 29.
        resamples: Resamples behind the bands of the held-out check.
        minimum_coverage: Windows that saw less are left out.
        budget_per_day: False pages that a model may cost in a day of health.
    """

    block_us: int = 600 * SECOND_US
    minimum_units: int = MINIMUM_UNITS
    resamples: int = 400
    minimum_coverage: float = 0.9
    budget_per_day: float = 1.0

    @classmethod
    def of(cls, settings: Settings) -> CalibrationOptions:
        """As the settings say."""
        return cls(
            block_us=settings["calibration.block"] * SECOND_US,
            minimum_units=settings["calibration.minimum_units"],
            resamples=settings["calibration.resamples"],
            minimum_coverage=settings["store.minimum_coverage"],
            budget_per_day=settings["alerts.budget"],
        )
