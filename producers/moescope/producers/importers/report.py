"""What an import did: rows and batches, and every rejected line with its reason."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from moescope.producers.importers.errors import RejectedLineError, TooManyRejectsError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import TextIO

FIRST_REJECTS = 20


class Reject(NamedTuple):
    """One line or group that was not imported; line 0 stands for the file as a whole."""

    file: str
    line: int
    reason: str
    detail: str

    def __str__(self) -> str:
        """File and line first, so that an editor finds it."""
        return f"{self.file}:{self.line}: {self.reason}" + (
            f" ({self.detail})" if self.detail else ""
        )


class Rejects:
    """Counts rejected lines of one file, keeps the first, writes all to a file beside the log.

    Args:
        source: The imported file, as it is named in messages.
        path: Where all rejects go, as JSON lines; created with the first one.
        limit: Most rejects before the import stops; None for no limit.
    """

    def __init__(self, source: str, path: Path, limit: int | None) -> None:
        self._source = source
        self._path = path
        self._limit = limit
        self._file: TextIO | None = None
        self.by_reason: Counter[str] = Counter()
        self.first: list[Reject] = []

    @property
    def path(self) -> Path | None:
        """The rejects file, if there is one."""
        return self._path if self.by_reason else None

    def add(self, line: int, error: RejectedLineError) -> None:
        """Take in one rejected line.

        Raises:
            TooManyRejectsError: It is one more than the limit.
        """
        reject = Reject(self._source, line, error.reason, error.detail)
        self.by_reason[error.reason] += 1
        if len(self.first) < FIRST_REJECTS:
            self.first.append(reject)
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("w", encoding="utf-8")
        self._file.write(json.dumps(reject._asdict()) + "\n")
        if self._limit is not None and self.by_reason.total() > self._limit:
            self.close()
            raise TooManyRejectsError(
                f"More than {self._limit} lines of {self._source} cannot be imported.",
                why=str(self.first[0]),
                next_step=f"All of them are in {self._path}. Correct the file or the options, "
                "or raise max_rejected.",
            )

    def close(self) -> None:
        """Finish the rejects file."""
        if self._file is not None:
            self._file.close()
            self._file = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    """What became of one file.

    Attributes:
        node: Node and partition that it was imported as.
        rows: Token rows, or tokens behind counts. requests, batches: As written.
        already_imported: The same file was imported before, with the same options.
        rejected: Lines or groups not imported, by reason.
        suspicious: What was imported although it looks wrong; gates keep it out of health.
        notes: What the reader should know.
    """

    path: str
    node: str
    rows: int = 0
    requests: int = 0
    batches: int = 0
    already_imported: bool = False
    rejected: dict[str, int] = field(default_factory=dict)
    first_rejects: tuple[Reject, ...] = ()
    rejects_file: str = ""
    suspicious: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What became of all files of an import."""

    files: tuple[FileReport, ...]

    @property
    def rows(self) -> int:
        """Rows imported now."""
        return sum(file.rows for file in self.files)

    @property
    def batches(self) -> int:
        """Batches written now."""
        return sum(file.batches for file in self.files)

    @property
    def rejected(self) -> int:
        """Lines or groups not imported."""
        return sum(sum(file.rejected.values()) for file in self.files)

    def summary(self) -> dict[str, Any]:
        """The report as plain values, for people and for JSON."""
        return {
            "files": len(self.files),
            "rows": self.rows,
            "requests": sum(file.requests for file in self.files),
            "batches": self.batches,
            "nodes": [file.node for file in self.files],
            "already_imported": [file.path for file in self.files if file.already_imported],
            "rejected": self.rejected,
            "rejected_by_reason": _added(file.rejected for file in self.files),
            "rejects_files": [file.rejects_file for file in self.files if file.rejects_file],
            "first_rejects": [str(item) for file in self.files for item in file.first_rejects],
            "suspicious": _added(file.suspicious for file in self.files),
            "notes": [f"{file.path}: {note}" for file in self.files for note in file.notes],
        }


def _added(parts: Any) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(total)
