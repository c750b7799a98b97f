"""Several files that belong together: none is changed unless all of them could be written."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from moescope.core.errors import DependencyUnreachableError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def beside(path: Path) -> Path:
    """Where a file is written before it takes its place."""
    return path.with_name(f".{path.name}.{os.getpid()}")


def write_together(texts: Mapping[Path, str]) -> None:
    """Write files that readers see whole, and all of them or none.

    Args:
        texts: By path.

    Raises:
        DependencyUnreachableError: The system refused one, and which.
    """
    at = next(iter(texts))
    try:
        for at, text in texts.items():
            at.parent.mkdir(parents=True, exist_ok=True)
            beside(at).write_text(text, encoding="utf-8")
        for at in texts:
            beside(at).replace(at)
    except OSError as error:
        raise DependencyUnreachableError(
            f"The file {at} cannot be written.",
            why=error.strerror or str(error),
            next_step="Check the free space, the quota and the permissions of its folder, then run "
            "the command again.",
        ) from error
    finally:
        for path in texts:
            with suppress(OSError):
                beside(path).unlink(missing_ok=True)
