"""Health files: one per running component, replaced as a whole, in the data directory."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from moescope.console.watch.health import HealthReport
from moescope.console.watch.processes import is_alive
from moescope.core.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

MOST_BYTES: Final = 1 << 20
FORGOTTEN_US: Final = 86_400_000_000
_HALF: Final = ".half"


def health_file(directory: Path, report: HealthReport) -> Path:
    """Where a component of this process reports: several of one kind may share the directory."""
    host = re.sub(r"[^A-Za-z0-9.-]", "_", report.host)[:100]
    return directory / f"health-{report.component}-{host}-{report.pid}.json"


def write_report(directory: Path, report: HealthReport) -> None:
    """Replace the health file; a reader sees the old report or the new one.

    Raises:
        OSError: There is no room, or no right; the old report stays.
    """
    path = health_file(directory, report)
    half = path.with_name(f".{path.name}{_HALF}")
    try:
        half.write_text(json.dumps(report.document(), default=str), encoding="utf-8")
        half.replace(path)
    except OSError:
        with suppress(OSError):
            half.unlink(missing_ok=True)
        raise


def read_reports(directory: Path, component: str) -> dict[Path, HealthReport | InputError]:
    """Reports of a component by file, and what is wrong with those that cannot be read."""
    reports: dict[Path, HealthReport | InputError] = {}
    for path in sorted(directory.glob(f"health-{component}-*.json")):
        with suppress(FileNotFoundError):  # its process has just ended
            reports[path] = _read(path)
    return reports


def remove_leftovers(directory: Path, component: str, host: str, now_us: int) -> None:
    """Remove the files of processes of this machine that were killed.

    A container that is made anew has another host name: whatever is older than a day goes, too.
    """
    for path, report in read_reports(directory, component).items():
        if not isinstance(report, HealthReport):
            continue
        is_killed = report.host == host and not is_alive(report.pid, report.birth)
        if is_killed or report.written_at_us < now_us - FORGOTTEN_US:
            for leftover in (path, path.with_name(f".{path.name}{_HALF}")):
                with suppress(OSError):
                    leftover.unlink(missing_ok=True)


def _read(path: Path) -> HealthReport | InputError:
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(opened, "rb") as file:
            return HealthReport.of_document(json.loads(file.read(MOST_BYTES)))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        return InputError(f"{path} cannot be read.", why=str(error))
    except InputError as error:
        return error
