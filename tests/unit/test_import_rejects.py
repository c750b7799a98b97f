from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

from moescope.producers.importers.errors import RejectedLineError
from moescope.producers.importers.report import FIRST_REJECTS, Rejects

if TYPE_CHECKING:
    from pathlib import Path


def test_the_first_rejects_are_those_of_the_first_lines(tmp_path: Path) -> None:
    """Whoever reads the report starts at the top of the file, whatever was noticed first."""
    lines = [*range(1, 3 * FIRST_REJECTS), 7, 7]
    random.Random(3).shuffle(lines)
    rejects = Rejects("source", tmp_path / "r.jsonl", None)
    for number, line in enumerate(lines):
        rejects.add(line, RejectedLineError("bad", f"{number} \u2013 é"))
    rejects.close()
    expected = sorted(enumerate(lines), key=lambda each: each[1])
    told = [(int(each.detail.split()[0]), each.line) for each in rejects.first]
    assert told == expected[:FIRST_REJECTS]
    written = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text("utf-8").splitlines()]
    assert [(int(each["detail"].split()[0]), each["line"]) for each in written] == expected
    assert {each["file"] for each in written} == {"source"}
