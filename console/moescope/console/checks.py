"""The checks behind `moescope doctor`."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from typing import TYPE_CHECKING

from moescope.console.engines_folder import check_engines_folder
from moescope.console.failures import SERVER_PACKAGES
from moescope.console.findings import Finding, Outcome
from moescope.console.kafka.broker_checks import check_broker
from moescope.console.operation_checks import check_operations
from moescope.console.places import log_root
from moescope.console.ring_check import check_rings
from moescope.core.errors import MoescopeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from moescope.core.settings import Settings

LOW_DISK_BYTES = 2 << 30


def run_checks(settings: Settings) -> list[Finding]:
    """All findings; a check that breaks is itself a finding."""
    findings: list[Finding] = []
    checks: tuple[tuple[str, Callable[[Settings], Iterator[Finding]]], ...] = (
        ("python", _python),
        ("packages", _packages),
        ("settings", _settings),
        ("data directory", _data_directory),
        ("rings", check_rings),
        ("engines' folder", check_engines_folder),
        ("batch logs", _batch_logs),
        ("store", _store),
        ("export", _export),
        ("kafka broker", check_broker),
        ("operations", check_operations),
        ("kernels", _kernels),
    )
    for name, check in checks:
        try:
            findings += check(settings)
        except MoescopeError as error:
            findings.append(Finding(name, Outcome.FAILURE, error.what, error.next_step))
        except OSError as error:
            findings.append(
                Finding(name, Outcome.FAILURE, str(error), "Check permissions and the disk.")
            )
    return findings


def _python(settings: Settings) -> Iterator[Finding]:  # noqa: ARG001 (one signature)
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", Outcome.OK, f"{version} on {sys.platform}, {os.cpu_count()} cores")


def _packages(settings: Settings) -> Iterator[Finding]:  # noqa: ARG001 (one signature)
    missing = [name for name in SERVER_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        yield Finding(
            "packages",
            Outcome.WARNING,
            f"missing for the store and SQL: {', '.join(missing)}",
            "pip install '.[server]' in a checkout (an inference node does not need them)",
        )
    else:
        yield Finding("packages", Outcome.OK, "the server's packages are installed")


def _settings(settings: Settings) -> Iterator[Finding]:
    from moescope.console.settings_check import check_settings, environment_lines

    try:
        found = check_settings(settings)
    except MoescopeError as error:
        told = f"{error.what} {error.why}".rstrip()
        yield Finding("settings", Outcome.FAILURE, told, error.next_step)
        return
    changed = [name for name, origin in settings.origins.items() if origin != "default"]
    yield Finding("settings", Outcome.OK, f"valid; {len(changed)} differ from the defaults")
    for line in environment_lines(found):
        yield Finding("settings", Outcome.OK, line)


def _data_directory(settings: Settings) -> Iterator[Finding]:
    directory = settings.data_directory
    if not directory.exists():
        yield Finding(
            "data directory",
            Outcome.WARNING,
            f"{directory} does not exist yet",
            "It is made by the first `moescope run`, `import` or `simulate`.",
        )
        return
    with tempfile.TemporaryFile(dir=directory) as file:
        file.write(b"moescope")
    free = shutil.disk_usage(directory).free
    outcome = Outcome.OK if free >= LOW_DISK_BYTES else Outcome.WARNING
    yield Finding(
        "data directory",
        outcome,
        f"{directory} is writable, {free / 2**30:.1f} GiB free",
        "" if outcome is Outcome.OK else "Free some space, or lower log.byte_cap.",
    )


def _batch_logs(settings: Settings) -> Iterator[Finding]:
    from moescope.core.batchlog import BatchLogReader, list_partitions

    root = log_root(settings.data_directory)
    if not root.exists():
        return
    partitions = list_partitions(root)
    records = sum(info.end_offset - info.first_offset for info in partitions)
    sealed = sum(info.sealed for info in partitions)
    yield Finding(
        "batch logs",
        Outcome.OK,
        f"{len(partitions)} partitions ({sealed} sealed), {records:,} records",
    )
    for info in partitions:
        with BatchLogReader(root, info.name) as reader:
            drops = reader.drops()
        if drops.dropped_records:
            yield Finding(
                "batch logs",
                Outcome.WARNING,
                f"{info.name}: the byte cap dropped {drops.dropped_records:,} unread records",
                "Raise log.byte_cap, or find out why nothing reads this log.",
            )


def _store(settings: Settings) -> Iterator[Finding]:
    from moescope.storage.database import open_database
    from moescope.storage.errors import StoreInUseError
    from moescope.storage.migrations import MIGRATIONS
    from moescope.storage.places import store_file
    from moescope.storage.schema import schema_version

    path = store_file(settings.data_directory)
    if not path.exists():
        return
    try:
        with open_database(path) as connection:
            found = schema_version(connection)
    except StoreInUseError as error:
        yield Finding("store", Outcome.OK, error.what)
        return
    newest = max(number for number, _, _ in MIGRATIONS)
    if found < newest:
        yield Finding(
            "store",
            Outcome.WARNING,
            f"{path} has schema {found}; this version's is {newest}",
            "`moescope store migrate`, or start the owner, which migrates it.",
        )
    elif found > newest:
        yield Finding(
            "store",
            Outcome.FAILURE,
            f"{path} has schema {found}; this version knows up to {newest}",
            "Upgrade moescope.",
        )
    else:
        yield Finding("store", Outcome.OK, f"{path} opens, schema {found}")


def _export(settings: Settings) -> Iterator[Finding]:
    from moescope.storage.export.manifest import read_manifest
    from moescope.storage.places import export_folder

    folder: Path = export_folder(settings.data_directory)
    if not folder.exists():
        return
    manifest = read_manifest(folder)
    if manifest is None:
        yield Finding(
            "export", Outcome.WARNING, f"{folder} has no manifest", "Start the owner once."
        )
        return
    yield Finding("export", Outcome.OK, f"{folder}, as of commit {manifest.commit_id}")


def _kernels(settings: Settings) -> Iterator[Finding]:  # noqa: ARG001 (one signature)
    import numpy as np

    from moescope.processors.finish_kernel import finish_counts
    from moescope.processors.metrics import metric_values

    counts = np.arange(1, 17, dtype=np.uint32).reshape(1, 1, 16)
    agree = np.allclose(
        finish_counts(counts, 2), metric_values(counts, 2), rtol=1e-12, equal_nan=True
    )
    if agree:
        yield Finding("kernels", Outcome.OK, "compiled kernels agree with plain numpy")
    else:
        yield Finding(
            "kernels",
            Outcome.FAILURE,
            "compiled kernels and plain numpy disagree",
            "Reinstall numba and llvmlite, and report this.",
        )
