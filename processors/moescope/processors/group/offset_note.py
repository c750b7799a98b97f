"""What a processor writes beside a committed offset: where its state is, and how far it came."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

MOST_BYTES: Final = 4_096
"""What a broker takes as an offset's metadata, unless it was told otherwise."""


@dataclass(frozen=True, slots=True)
class OffsetNote:
    """The metadata of a committed offset, which itself is `replay_from`.

    Attributes:
        emitted_to: Offset of the first record whose output is not committed.
        state: Offset, in the deltas topic, of the first record of the partition's state.
        watermark_us: The partition's watermark, which stays even when the state is lost.
    """

    emitted_to: int
    state: int
    watermark_us: int

    def text(self) -> str:
        """JSON."""
        return json.dumps(asdict(self))


def read_note(text: str | None) -> OffsetNote | None:
    """The note of an offset's metadata; None where somebody else wrote it, or nobody."""
    try:
        values = json.loads(text or "")
        note = OffsetNote(values["emitted_to"], values["state"], values["watermark_us"])
    except (ValueError, KeyError, TypeError):
        return None
    return note if all(type(each) is int for each in asdict(note).values()) else None
