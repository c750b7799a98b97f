"""What a format has to provide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from moescope.core.batch import RoutingBatch
    from moescope.producers.importers.identity import ImportIdentity
    from moescope.producers.importers.options import Option
    from moescope.producers.importers.report import Rejects


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedFile:
    """A file that was understood.

    Attributes:
        batches: In order; the same for the same file and options.
        rows, requests: What the batches carry, context rows left out.
        suspicious, notes: As in `FileReport`.
    """

    batches: Iterable[RoutingBatch]
    rows: int
    requests: int
    suspicious: Mapping[str, int]
    notes: tuple[str, ...] = ()


class ParseFile(Protocol):
    """Reads one file."""

    def __call__(
        self,
        path: Path,
        identity: ImportIdentity,
        options: Mapping[str, Any],
        rejects: Rejects,
        on_line: Callable[[int], None],
    ) -> ParsedFile:
        """Read a file whole.

        Args:
            path: The file, or the folder where the format has a `folder_pattern`.
            identity: What its batches are called.
            options: Values of all options of the format.
            rejects: Takes lines that cannot be used.
            on_line: Called now and then with the number of lines read.

        Raises:
            ImportFormatError: Nothing of the file can be used.
        """
        ...


class LookAtFile(Protocol):
    """Looks at the beginning of a file, for which not all options are known yet."""

    def __call__(self, path: Path, options: Mapping[str, Any]) -> None:
        """Look at a file.

        Args:
            path: As in `ParseFile`.
            options: Values of all options; those that have to be given may be None.

        Raises:
            ImportFormatError: It cannot be read, or is of another format.
        """
        ...


@dataclass(frozen=True, slots=True)
class ImportFormat:
    """One format.

    Attributes:
        summary: One sentence.
        options: Declared options.
        parse: Reads a file.
        folder_pattern: Names of the files of a run; a folder of them is imported as one. Empty:
            files do not belong together.
        look: Looks at a file; None where no option has to be given.
    """

    name: str
    summary: str
    options: tuple[Option, ...]
    parse: ParseFile
    folder_pattern: str = ""
    look: LookAtFile | None = None
