"""Importing files and processing them right away, when no owner runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from moescope.console.output import counted, note, print_json, print_table
from moescope.console.places import log_root
from moescope.console.progress import progress
from moescope.core.batchlog import BatchLogLockedError, BatchLogReader
from moescope.core.errors import InputError, MoescopeError
from moescope.producers.importers import FORMATS, import_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from moescope.core.accounts import PartitionProgress
    from moescope.core.settings import Settings
    from moescope.producers.importers.report import FileReport


GO_ON: Final = (
    "What was written is kept: run the same command again, and it goes on where it stopped."
)


def list_formats(*, as_json: bool) -> None:
    """Print the known formats."""
    rows = [(name, form.summary) for name, form in FORMATS.items()]
    if as_json:
        print_json(dict(rows))
    else:
        print_table(("format", "what it reads"), rows)


def import_and_process(
    form: str, paths: list[Path], options: list[str], settings: Settings, *, process: bool
) -> dict[str, Any]:
    """Import files; then roll them up, unless an owner is running and does it anyway.

    An import that was interrupted may have left files written and not, or not wholly, processed.
    They are processed now, and the result says so.

    Raises:
        InputError: A file, format or option cannot be used.
        MoescopeError: The log or the store cannot be written; what to do is told, too.
        OSError: So is the folder.
    """
    try:
        return _imported_and_processed(form, paths, options, settings, process=process)
    except (MoescopeError, OSError) as error:
        is_elsewhere = isinstance(error, BatchLogLockedError)  # and says itself what to do
        if isinstance(error, OSError) or (error.retriable and not is_elsewhere):
            note(GO_ON)
        raise


def _imported_and_processed(
    form: str, paths: list[Path], options: list[str], settings: Settings, *, process: bool
) -> dict[str, Any]:
    parsed: dict[str, str] = {}
    for option in options:
        name, sign, value = option.partition("=")
        if not sign:
            raise InputError(f"{option!r} is not NAME=VALUE.", next_step="Write -o name=value.")
        parsed[name] = value
    root = log_root(settings.data_directory)
    root.mkdir(parents=True, exist_ok=True)
    with progress(f"importing {form}") as report:
        imported = import_files(form, paths, root, parsed, progress=report)
    result: dict[str, Any] = imported.summary()
    if process:
        from moescope.console.compiling import compile_first
        from moescope.console.owner import Owner
        from moescope.processors.config import WindowConfig
        from moescope.storage.errors import StoreInUseError

        try:
            with Owner(settings) as owner:
                left = left_over(root, imported.files, owner.parts.store.load_progress())
                compile_first(WindowConfig.from_settings(settings), note)
                with progress("processing"):
                    owner.run(until_idle=True)
            result["processed"] = True
            result["processed_from_earlier"] = sum(left.values())
            result["notes"] += [
                f"{path}: an earlier import wrote it and did not process it to its end: "
                f"{counted(batches, 'batch', 'batches')} of it processed now."
                for path, batches in left.items()
            ]
        except StoreInUseError as error:
            note(
                f"{error.what} If that is `moescope run all`, it processes the import by itself; "
                "else run `moescope run all --until-idle` when it has ended."
            )
            result["processed"] = False
    return result


def left_over(
    root: Path, files: Iterable[FileReport], stored: Mapping[str, PartitionProgress]
) -> dict[str, int]:
    """Batches, by file, that an earlier import wrote and nobody has processed yet.

    Args:
        root: Of the batch logs.
        files: What became of them now.
        stored: How far each partition is processed.
    """
    left: dict[str, int] = {}
    for file in files:
        known = stored.get(file.node)
        if not file.already_imported or (known is not None and known.sealed):
            continue
        with BatchLogReader(root, file.node) as reader:
            left[file.path] = reader.end_offset() - (known.emitted_to if known else 0)
    return left
