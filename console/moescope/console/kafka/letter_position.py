"""How far the owner's dead letters are published: a small file beside the store.

It may be lost or old: letters are then published once more, under the same keys.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from moescope.core.batchlog.files import write_json_atomically

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME: Final = "dead-letters-published.json"


class Published(NamedTuple):
    """The letter that was published last, in the order of the table."""

    commit_id: int
    partition: str
    log_offset: int


NOTHING: Final = Published(-1, "", -1)


class PositionFile:
    """The note of one topic in a data directory.

    Args:
        directory: The data directory.
        topic: Where letters are published; the note of another topic counts for nothing.
    """

    def __init__(self, directory: Path, topic: str) -> None:
        self._path = directory / FILE_NAME
        self._topic = topic

    def read(self) -> Published:
        """The letter that was published last, or `NOTHING`."""
        try:
            noted = json.loads(self._path.read_text(encoding="utf-8"))
            if noted["topic"] == self._topic:
                return Published(
                    int(noted["commit_id"]), str(noted["partition"]), int(noted["log_offset"])
                )
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pass
        return NOTHING

    def write(self, published: Published) -> None:
        """Note it, durably.

        Raises:
            OSError: The file system refused.
        """
        write_json_atomically(self._path, {"topic": self._topic, **published._asdict()})
