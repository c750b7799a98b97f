from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
from support.command_line import TIMEOUT_SECONDS, environment
from support.rings import ids_of, small_recorder

if TYPE_CHECKING:
    from pathlib import Path

WITHOUT_PAUSE = """
import sys
import moescope.console.progress as progress
from moescope.console.main import main
progress.LINE_SECONDS = 0.0  # a line per commit, where a person sees one in ten seconds
sys.argv = ["moescope", "run", "all", "--data", "data"]
main()
"""


def test_a_process_without_work_writes_no_lines(tmp_path: Path) -> None:
    """An engine that is idle says each second that it lives: that is no news for a log."""
    noted = tmp_path / "noted"

    def lines() -> list[str]:
        return [line for line in noted.read_text().splitlines() if " records, " in line]

    def wait_until(count: int) -> None:
        give_up = time.monotonic() + TIMEOUT_SECONDS
        while len(lines()) < count and time.monotonic() < give_up:
            time.sleep(0.1)

    with noted.open("w") as errors, small_recorder(tmp_path / "data" / "ring") as recorder:
        process = subprocess.Popen(
            [sys.executable, "-c", WITHOUT_PAUSE], cwd=tmp_path, env=environment(),
            stdout=subprocess.DEVNULL, stderr=errors,
        )  # fmt: skip
        try:
            positions = np.arange(128)
            recorder.record("a", positions, ids_of(positions), "prefill")
            recorder.end_request("a")  # else windows would close by themselves, which is news
            wait_until(1)
            time.sleep(3.0)  # windows may close a commit later
            worked = len(lines())
            assert worked
            time.sleep(5.0)
            assert len(lines()) == worked
            recorder.record("b", positions, ids_of(positions), "prefill")
            wait_until(worked + 1)
            assert len(lines()) > worked
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(TIMEOUT_SECONDS)
