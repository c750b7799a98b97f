from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from support.command_line import moescope, query
from support.rings import START_US, ids_of, small_recorder

from moescope.core.clock import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 300


def generate(data: Path, tokens_per_second: float) -> None:
    """A request that is generated that fast, and shipped and processed."""
    clock = ManualClock(START_US)
    with small_recorder(data / "ring", clock=clock) as recorder:
        recorder.begin_request("slow", prompt_tokens=0)
        for position in range(ROWS):
            recorder.record("slow", np.array([position]), ids_of([position]), "decode")
            clock.sleep(1 / tokens_per_second)
        recorder.end_request("slow")
    moescope("run", "all", "--until-idle", "--data", data, folder=data.parent)


def left_out(data: Path, **variables: str) -> list[dict[str, Any]]:
    """What `doctor` says was left out."""
    printed = moescope(
        "doctor", "--json", "--data", data, folder=data.parent, variables=variables
    ).stdout
    return [each for each in json.loads(printed) if each["check"] == "left out"]


def test_doctor_tells_of_generations_too_slow_for_their_windows(tmp_path: Path) -> None:
    """At 2 tokens per second 240 rows fit into 120 s: the rest is late, and nothing else tells."""
    data = tmp_path / "data"
    generate(data, tokens_per_second=2.0)
    late = query(data, "SELECT sum(late_rows)::INT AS rows FROM batches")[0]["rows"]
    assert late == 2 * (ROWS - 240) - (ROWS - 256)  # of sizes 256 and 512; the next 256 is open
    (found,) = left_out(data)
    assert found["outcome"] == "warning"
    assert found["detail"].startswith(f"{late} rows of token windows that had closed")
    assert "120 s" in found["detail"]
    assert "slower than 4.3 tokens per second" in found["next_step"]
    assert "below 512 positions" in found["next_step"]
    assert "windows.token" in found["next_step"]
    (found,) = left_out(data, MOESCOPE_WINDOWS_TOKEN="64,240")
    assert "slower than 2.0 tokens per second" in found["next_step"]


def test_doctor_is_silent_about_generations_that_fill_their_windows(tmp_path: Path) -> None:
    """Five tokens per second are enough for the longest of the windows that there are."""
    data = tmp_path / "data"
    generate(data, tokens_per_second=5.0)
    assert left_out(data) == []
