from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.console.checks import run_checks
from moescope.console.engines_folder import check_engines_folder
from moescope.console.findings import Outcome
from moescope.core.settings import load_settings

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_doctor_notices_that_the_agent_reads_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engine and agent are both well, and nothing arrives: the two folders are named."""
    settings = load_settings(environment={}, options={"data.directory": str(tmp_path / "data")})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOESCOPE_DIR", "r")
    (told,) = [found for found in run_checks(settings) if found.check == "engines' folder"]
    assert told.outcome is Outcome.WARNING
    for part in ("MOESCOPE_DIR is r,", f"reads {tmp_path / 'data' / 'ring'}"):
        assert part in told.detail
    assert f"MOESCOPE_DIR={tmp_path / 'data' / 'ring'}" in told.next_step
    assert f"a link to {tmp_path / 'r'}," in told.next_step  # a link to r would be data/r


def test_one_folder_by_another_name_is_no_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link into a memory file system is how the guide sets it up; without a variable, silence."""
    settings = load_settings(environment={}, options={"data.directory": "data"})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "memory").mkdir()
    (tmp_path / "data" / "ring").symlink_to(tmp_path / "memory")
    for given in (str(tmp_path / "memory"), "data/ring", " data/../data/ring "):
        (told,) = check_engines_folder(settings, {"MOESCOPE_DIR": given})
        assert told.outcome is Outcome.OK
    assert list(check_engines_folder(settings, {"MOESCOPE_DIR": " "})) == []
