"""What an import did: rows and batches, and every rejected line with its reason."""

from __future__ import annotations

import json
from array import array
from bisect import insort
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

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
    """Counts rejected lines, keeps the first, writes all to a file beside the log, in line order.

    Args:
        source: The imported file or folder, as it is named in messages.
        path: Where all rejects go, as JSON lines; created with the first one.
        limit: Most rejects before the import stops; None for no limit.
    """

    def __init__(self, source: str, path: Path, limit: int | None) -> None:
        self._source = source
        self._path = path
        self._limit = limit
        self._file: TextIO | None = None
        self._order = _Order()
        self.by_reason: Counter[str] = Counter()
        self.first: list[Reject] = []

    @property
    def path(self) -> Path | None:
        """The rejects file, if there is one."""
        return self._path if self.by_reason else None

    def add(self, line: int, error: RejectedLineError, file: Path | None = None) -> None:
        """Take in one rejected line.

        Args:
            line: Its number.
            error: Why.
            file: Of a folder, the file that has the line.

        Raises:
            TooManyRejectsError: It is one more than the limit.
        """
        reject = Reject(str(file or self._source), line, error.reason, error.detail)
        self.by_reason[error.reason] += 1
        insort(self.first, reject, key=_place)
        del self.first[FIRST_REJECTS:]
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("w", encoding="utf-8")
        written = self._file.write(json.dumps(reject._asdict()) + "\n")
        self._order.note(reject, written)
        if self._limit is not None and self.by_reason.total() > self._limit:
            self.close()
            raise TooManyRejectsError(
                f"More than {self._limit} lines of {self._source} cannot be imported.",
                why=str(self.first[0]),
                next_step=f"All of them are in {self._path}. Correct the file or the options, "
                "or raise max_rejected.",
            )

    def close(self) -> None:
        """Finish the rejects file: what is wrong in a group was seen after all lines."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._order.put(self._path)


class _Order:
    """Where the lines of a rejects file are, and where they belong."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._file_of = array("q")
        self._line_of = array("q")
        self._begins = array("q", [0])

    def note(self, reject: Reject, written: int) -> None:
        """One more is written, in so many bytes: JSON in ASCII has one for each character."""
        self._file_of.append(self._files.setdefault(reject.file, len(self._files)))
        self._line_of.append(reject.line)
        self._begins.append(self._begins[-1] + written)

    def put(self, path: Path) -> None:
        """Bring a written file in order of files and lines; nothing is done where it is."""
        rank = {name: place for place, name in enumerate(sorted(self._files))}
        place_of = np.array([rank[name] for name in self._files], np.int64)
        order = np.lexsort((self._line_of, place_of[np.asarray(self._file_of)]))
        if (order[1:] > order[:-1]).all():
            return
        sorted_path = path.with_name(f"{path.name}.sorted")
        with path.open("rb") as found, sorted_path.open("wb") as file:
            for number in order.tolist():
                found.seek(self._begins[number])
                file.write(found.read(self._begins[number + 1] - self._begins[number]))
        sorted_path.replace(path)


def _place(reject: Reject) -> tuple[str, int]:
    return reject.file, reject.line


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
