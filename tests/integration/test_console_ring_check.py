from __future__ import annotations

from typing import TYPE_CHECKING

from support.command_line import moescope
from support.rings import small_recorder

if TYPE_CHECKING:
    from pathlib import Path


def test_doctor_notices_that_no_engine_records(tmp_path: Path) -> None:
    """A plugin that did not attach leaves an empty folder: that is not simply `ok`."""
    rings = tmp_path / "data" / "ring"
    rings.mkdir(parents=True)
    told = moescope("doctor", "--data", "data", folder=tmp_path).stdout.splitlines()
    (number,) = [number for number, line in enumerate(told) if " rings: " in line]
    assert told[number].startswith("warn  rings: no engine has a ring in ")
    assert "its log says why" in told[number + 1]
    with small_recorder(rings):
        told = moescope("doctor", "--data", "data", folder=tmp_path).stdout.splitlines()
    (line,) = [line for line in told if " rings: " in line]
    assert line.startswith("ok    rings: 1 in ")
