from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

TESTS = """
import pytest

def test_that_passes(verified, not_verified):
    verified(subject="olmoe", what="ids")
    not_verified(subject="olmoe", what="drops", why="it has none")

def test_that_says_the_same(verified):
    verified(subject="olmoe", what="ids")

def test_that_fails(verified, not_verified):
    verified(subject="olmoe", what="failed")
    not_verified(subject="olmoe", what="failed, too", why="nobody looked")
    assert False

def test_that_stops_half_way(verified):
    verified(subject="olmoe", what="skipped")
    pytest.skip("no memory")

@pytest.mark.xfail
def test_that_is_known_to_fail(verified):
    verified(subject="olmoe", what="known to fail")
    assert False

def test_that_says_no_reason(not_verified):
    not_verified(subject="olmoe", what="no reason", why="")
"""


@pytest.mark.parametrize("workers", ["0", "2"])
def test_only_tests_that_passed_are_in_the_matrix(
    repository_root: Path, tmp_path: Path, workers: str
) -> None:
    """The page says what was verified: a test that failed verified nothing, on any worker."""
    shutil.copy(repository_root / "tests" / "engines" / "conftest.py", tmp_path)
    (tmp_path / "test_engine.py").write_text(TESTS, encoding="utf-8")
    variables = {"MOESCOPE_MATRIX": str(tmp_path / "matrix"), "MOESCOPE_MATRIX_NAME": "torch"}
    outcome = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", workers, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert "2 failed, 2 passed, 1 skipped, 1 xfailed" in outcome.stdout, outcome.stdout
    found = json.loads((tmp_path / "matrix" / "torch.json").read_text(encoding="utf-8"))
    assert found["cells"] == [
        {"subject": "olmoe", "what": "drops", "why": "it has none"},
        {"subject": "olmoe", "what": "ids", "why": ""},
    ]
