"""What the page of a fault run says of the code that was run."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from support import fleet_results
from support.fleet_results import changes_since, circumstances, present_commit

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, in which the results are looked for."""
    monkeypatch.setattr(fleet_results, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / fleet_results.PAGE).write_text("old")
    (tmp_path / ".gitignore").write_text("*.log\n")
    (tmp_path / "code.py").write_text("a = 1\n")
    _git(tmp_path, "init", "-q")
    _commit(tmp_path)
    return tmp_path


def _git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True)


def _commit(folder: Path) -> None:
    _git(folder, "add", ".")
    _git(folder, "commit", "-q", "-m", "A state")


def test_page_and_ignored_files_are_no_changes(checkout: Path) -> None:
    """The results of one scenario do not make the commit of the next one wrong."""
    commit = present_commit()
    (checkout / fleet_results.PAGE).write_text("new")
    (checkout / "noise.log").touch()
    assert changes_since(commit) == []
    _commit(checkout)
    assert changes_since(commit) == []
    assert f"commit {commit}, seed 3, at 0.5 of the full counts, 2.0 min" in circumstances(
        commit, 3, 0.5, 120
    )


def test_changed_new_and_newly_committed_files_are_changes(checkout: Path) -> None:
    """Whatever the run may have loaded that its commit does not hold is told."""
    commit = present_commit()
    (checkout / "code.py").write_text("a = 2\n")
    assert changes_since(commit) == ["code.py"]
    (checkout / "more.py").touch()
    assert changes_since(commit) == ["code.py", "more.py"]
    _commit(checkout)
    assert changes_since(commit) == ["code.py", "more.py"]
    assert changes_since(present_commit()) == []
    assert f"commit {commit} with changes," in circumstances(commit, 1, 1, 60)
