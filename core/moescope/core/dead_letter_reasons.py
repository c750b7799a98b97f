"""Why a record became a dead letter: every reason that there is."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from moescope.core.wire.errors import DecodeReason


class DeadLetterReason(StrEnum):
    """The reasons, as tables, metrics and records of the dead-letter topic hold them."""

    UNKNOWN_VERSION = DecodeReason.UNKNOWN_VERSION.value
    MALFORMED = DecodeReason.MALFORMED.value
    OVER_LIMITS = DecodeReason.OVER_LIMITS.value
    OUT_OF_RANGE = "out_of_range"
    """It can be decoded, and holds times or numbers that no table does."""
    SEQUENCE_TOO_OLD = "sequence_too_old"
    """It is too far behind to tell whether it was counted."""
    LOG_GAP = "log_gap"
    """Records that were gone before they were read."""
    STATE_LOST = "state_lost"
    """No record: a processor's memory was gone."""
    DELTAS_GAP = "deltas_gap"
    """Records of the deltas topic that were gone before they were applied."""
    DAMAGED_EMISSION = "damaged_emission"
    """A record of the deltas topic that is no emission, or one that cannot be applied."""


WITHOUT_RECORD: Final = frozenset(
    {DeadLetterReason.LOG_GAP, DeadLetterReason.STATE_LOST, DeadLetterReason.DELTAS_GAP}
)
"""Reasons of letters that stand for records which nobody has."""

IN_TABLE_ONLY: Final = frozenset({DeadLetterReason.DELTAS_GAP, DeadLetterReason.DAMAGED_EMISSION})
"""Reasons of letters about the deltas topic: the store keeps them, and publishes none."""
