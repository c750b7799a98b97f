"""The kill switch: an environment variable when the engine starts, a file at any time."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DISABLE_VARIABLE: Final = "MOESCOPE_DISABLE"
DISABLE_FILE: Final = "disable"
"""In the recorder's folder: while it exists, nothing is recorded."""

_MEANS_NO: Final = frozenset({"", "0", "false", "no", "off"})


def disabled_by_environment(environment: Mapping[str, str] = os.environ) -> str:
    """Why the recorder must not even start, or empty."""
    value = environment.get(DISABLE_VARIABLE, "").strip().lower()
    return "" if value in _MEANS_NO else f"{DISABLE_VARIABLE} is set"


class KillSwitch:
    """Looks for the file.

    Args:
        directory: The recorder's folder.

    Attributes:
        reason: Why nothing is recorded at the moment, or empty.
    """

    def __init__(self, directory: Path) -> None:
        self._path = str(directory / DISABLE_FILE)
        self.reason = ""

    def look(self) -> bool:
        """Look once; whether something has changed.

        What cannot be told (a file system that answers nothing else) changes nothing.
        """
        before = self.reason
        try:
            os.stat(self._path)  # noqa: PTH116 - a Path makes a string of itself each time
            self.reason = f"the file {DISABLE_FILE!r} is there"
        except (FileNotFoundError, NotADirectoryError):
            self.reason = ""
        except OSError:
            pass
        return self.reason != before
