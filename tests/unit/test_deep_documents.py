"""Files that commands read, nested deeper than Python goes: refused like any damaged one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from moescope.console.demo.plan import MANIFEST, read_recordings
from moescope.console.kafka.letter_position import FILE_NAME, NOTHING, PositionFile
from moescope.console.watch.health_files import read_reports
from moescope.core.batchlog import BatchLogFormatError, BatchLogReader, BatchLogWriter
from moescope.core.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

DEEP = "[" * 100_000 + "]" * 100_000


def test_a_log_of_deep_metadata_is_damaged(tmp_path: Path) -> None:
    """Its reader says which file, and what to do."""
    BatchLogWriter(tmp_path, "p").close()
    (tmp_path / "p" / "partition.json").write_text(DEEP)
    with pytest.raises(BatchLogFormatError, match=r"partition\.json is damaged"):
        BatchLogReader(tmp_path, "p")


def test_a_deep_manifest_of_the_demo_is_refused(tmp_path: Path) -> None:
    """Recordings may be somebody's own: `--recordings`."""
    (tmp_path / MANIFEST).write_text(DEEP)
    with pytest.raises(InputError, match="cannot be read"):
        read_recordings(tmp_path)


def test_a_deep_report_of_a_component_is_told_as_unreadable(tmp_path: Path) -> None:
    """One file in the data directory must not take the doctor's answer on all others away."""
    path = tmp_path / "health-owner-h-1.json"
    path.write_text(DEEP)
    report = read_reports(tmp_path, "owner")[path]
    assert isinstance(report, InputError)
    assert "cannot be read" in report.what


def test_a_deep_note_of_published_letters_counts_as_none(tmp_path: Path) -> None:
    """As one that is no JSON at all."""
    (tmp_path / FILE_NAME).write_text(DEEP)
    assert PositionFile(tmp_path, "topic").read() == NOTHING
