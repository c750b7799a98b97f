"""Deleting files of the export: orphans of a crash at once, retired ones after a grace period."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from moescope.storage.export.manifest import MANIFEST_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from moescope.storage.export.manifest import Manifest, Retired


def remove_orphans(folder: Path, manifest: Manifest | None) -> int:
    """Delete Parquet and temporary files that the manifest does not name.

    Call it only while nothing is being written. Returns how many were deleted.
    """
    known = manifest.paths() if manifest else set()
    removed = 0
    for path in folder.rglob("*.parquet"):
        if path.relative_to(folder).as_posix() not in known:
            path.unlink(missing_ok=True)
            removed += 1
    (folder / f"{MANIFEST_NAME}.new").unlink(missing_ok=True)
    remove_empty_folders(folder, (path for path in folder.rglob("*") if path.is_dir()))
    return removed


def remove_retired(folder: Path, retired: Iterable[Retired], *, before_us: int) -> list[Retired]:
    """Delete files that were retired before that time; the others are returned."""
    kept: list[Retired] = []
    parents: set[Path] = set()
    for item in retired:
        if item.at_us >= before_us:
            kept.append(item)
            continue
        path = folder / item.path
        path.unlink(missing_ok=True)
        parents.add(path.parent)
    remove_empty_folders(folder, parents)
    return kept


def remove_empty_folders(root: Path, folders: Iterable[Path]) -> None:
    """Remove those of the folders below the root that hold nothing."""
    for path in sorted(folders, key=lambda folder: len(folder.parts), reverse=True):
        if path != root:
            with contextlib.suppress(OSError):
                path.rmdir()
