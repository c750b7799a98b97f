"""Imports files into the batch log: one sealed partition per file, once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moescope.core.batchlog import (
    BatchLogLockedError,
    BatchLogReader,
    BatchLogWriter,
    WriterSettings,
    partition_names,
)
from moescope.core.wire import encode_batch
from moescope.producers.importers.errors import ImportFormatError
from moescope.producers.importers.identity import ImportIdentity
from moescope.producers.importers.options import (
    MAX_REJECTED,
    identity_of,
    missing_options,
    parse_options,
)
from moescope.producers.importers.registry import format_named
from moescope.producers.importers.report import FileReport, ImportReport, Rejects
from moescope.producers.importers.source_files import check_readable, file_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path
    from typing import Any

    from moescope.core.batch import RoutingBatch
    from moescope.producers.importers.format import ImportFormat


class Progress(Protocol):
    """Told now and then how far an import is."""

    def __call__(self, done: float, detail: str = "") -> None:
        """Take in the files finished so far, and what is being done."""
        ...


def import_files(
    form: str,
    paths: Iterable[Path],
    log_root: Path,
    options: Mapping[str, str] | None = None,
    *,
    progress: Progress | None = None,
) -> ImportReport:
    """Import files of one format.

    Each file becomes a partition of its own, which is a watermark domain of its own and sealed
    when it is complete. Its name is derived from the file's bytes, the format and the options,
    so that a second import changes nothing, and an import that broke off is taken up again.

    Args:
        form: Name of the format.
        paths: Files, or folders of the files of a run where the format knows them.
        log_root: Batch log to write to.
        options: Options of the format, as text.
        progress: Told how far the import is.

    Raises:
        ImportFormatError: Unknown format or option, a file that cannot be read, or an option that
            has to be given: nothing is imported. A file of which nothing can be used: those before
            it are imported.
        BatchLogLockedError: Another import of the file is running.
        BatchLogError: The log cannot be written.
    """
    chosen = format_named(form)
    listed = list(paths)
    if not listed:
        raise ImportFormatError("There is no file to import.", next_step="Name at least one file.")
    # Files first: whoever named a wrong one does not need to find out options for it.
    for path in listed:
        check_readable(path, chosen.folder_pattern)
    values = parse_options(chosen.options, options or {})
    _check_options(chosen, values, listed)
    reports = []
    for done, path in enumerate(listed):

        def on_line(lines: int, done: int = done, path: Path = path) -> None:
            if progress is not None:
                progress(done, f"{path.name}: {lines:,} lines")

        reports.append(_import_file(chosen, values, path, log_root, on_line))
        if progress is not None:
            progress(done + 1, path.name)
    return ImportReport(tuple(reports))


def _check_options(chosen: ImportFormat, values: Mapping[str, Any], paths: list[Path]) -> None:
    """Refuse an import whose options do not say what they have to, all of them at once.

    Raises:
        ImportFormatError: Some are missing, or a file is of another format anyway.
    """
    missing = missing_options(chosen.options, values)
    if not missing:
        return
    if chosen.look is not None:
        for path in paths:
            chosen.look(path, values)
    names = ", ".join(option.name for option in missing)
    raise ImportFormatError(
        f"What {chosen.name} needs to read this is not known: {names}.",
        why=" ".join(f"{option.name}: {option.help}" for option in missing),
        next_step=f"Give {'it' if len(missing) == 1 else 'all of them'}, for example "
        + " ".join(f"-o {option.name}={option.example}" for option in missing),
    )


def _import_file(
    chosen: ImportFormat,
    values: Mapping[str, Any],
    path: Path,
    log_root: Path,
    on_line: Any,
) -> FileReport:
    digest = file_digest(
        path, identity_of(chosen.name, chosen.options, values), chosen.folder_pattern
    )
    identity = ImportIdentity.from_digest(digest)
    if _is_sealed(log_root, identity.node):
        return FileReport(path=str(path), node=identity.node, already_imported=True)
    limit = values.get(MAX_REJECTED.name)
    rejects = Rejects(str(path), log_root / f"{identity.node}.rejects.jsonl", limit)
    try:
        parsed = chosen.parse(path, identity, values, rejects, on_line)
        written = _write(log_root, identity.node, parsed.batches)
    except BatchLogLockedError as error:
        raise BatchLogLockedError(
            f"Another import of {path} is running.",
            why=f"Its batch log partition {identity.node!r} is being written: one file with one "
            "set of options has one partition.",
            next_step="Wait until it has ended, then run this one again: it goes on where that one "
            "stopped, and imports nothing twice.",
        ) from error
    finally:
        rejects.close()
    return FileReport(
        path=str(path),
        node=identity.node,
        rows=parsed.rows,
        requests=parsed.requests,
        batches=written,
        rejected=dict(rejects.by_reason),
        first_rejects=tuple(rejects.first),
        rejects_file=str(rejects.path or ""),
        suspicious=dict(parsed.suspicious),
        notes=parsed.notes,
    )


def _is_sealed(log_root: Path, partition: str) -> bool:
    if partition not in partition_names(log_root):
        return False
    with BatchLogReader(log_root, partition) as reader:
        return reader.is_sealed()


def _write(log_root: Path, partition: str, batches: Iterable[RoutingBatch]) -> int:
    """Append the batches that are not there yet, seal, and return how many there are."""
    count = 0
    with BatchLogWriter(
        log_root, partition, domain=partition, append_clock="none", settings=WriterSettings()
    ) as writer:
        already = writer.next_offset
        for batch in batches:
            if count >= already:
                writer.append(encode_batch(batch))
            count += 1
        writer.flush()
        writer.seal()
    return count
