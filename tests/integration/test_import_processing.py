"""Imports that were interrupted before what they wrote was processed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from moescope.console import compiling
from moescope.console.import_work import import_and_process
from moescope.core.settings import load_settings

if TYPE_CHECKING:
    from pathlib import Path

BATCHES = 6


@pytest.fixture
def told(tmp_path: Path) -> list[dict[str, Any]]:
    """What one import says, ended before processing, and then run twice to its end."""
    path = tmp_path / "rows.jsonl"
    rows = [
        {"request": "a", "position": number, "time": 10 * number, "experts": [[0, 1], [2, 3]]}
        for number in range(BATCHES)
    ]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    settings = load_settings(environment={"MOESCOPE_DATA_DIRECTORY": str(tmp_path / "data")})
    return [
        import_and_process("jsonl", [path], ["experts=8"], settings, process=process)
        for process in (False, True, True)
    ]


def test_what_an_interrupted_import_left_is_told(told: list[dict[str, Any]]) -> None:
    """An import that only processes what lay there says so, and how much; the next one does not."""
    first, second, third = told
    assert (first["rows"], first["batches"]) == (BATCHES, BATCHES)
    assert (second["rows"], second["processed_from_earlier"]) == (0, BATCHES)
    [path] = second["already_imported"]
    [note] = second["notes"]
    assert note.startswith(f"{path}: an earlier import wrote it and did not process it to its end")
    assert f"{BATCHES} batches" in note
    assert (third["already_imported"], third["processed_from_earlier"]) == ([path], 0)
    assert third["notes"] == []


def test_an_import_says_that_it_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first import on a machine takes a minute longer, and says why."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"request": "a", "position": 0, "experts": [[0, 1]]}', encoding="utf-8")
    settings = load_settings(environment={"MOESCOPE_DATA_DIRECTORY": str(tmp_path / "data")})
    monkeypatch.setattr(compiling, "has_machine_code", lambda _: False)
    import_and_process("jsonl", [path], ["experts=8"], settings, process=True)
    assert compiling.COMPILING in capsys.readouterr().err
