"""Where a data directory keeps what the console wires together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

LOG_FOLDER: Final = "log"
RING_FOLDER: Final = "ring"


def log_root(data_directory: Path) -> Path:
    """Batch logs: written by agents, importers and the simulator, read by the processor."""
    return data_directory / LOG_FOLDER


def ring_directory(data_directory: Path) -> Path:
    """Rings of recorders on this machine."""
    return data_directory / RING_FOLDER
