"""What a recorder does while its engine computes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import signal, sys
from pathlib import Path
sys.path.insert(0, "tests")
from support.rings import ids_of, small_recorder

def threads():
    return len(list(Path("/proc/self/task").iterdir()))

before = threads()
recorder = small_recorder(Path(sys.argv[1]), cpu_budget=0.01)
recorder.begin_request("one", 4)
recorder.record("one", range(4), ids_of(range(4)), "prefill")
assert recorder.counters().recorded_rows == 4
assert threads() == before, f"{threads() - before} more threads"
assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
"""


def test_an_idle_recorder_costs_nothing_for_it_has_no_thread_and_no_timer(tmp_path: Path) -> None:
    """An engine that waits for requests is not woken up: all work is done in its own calls."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "ring")],
        cwd=ROOT,
        env=environment,
        check=True,
        timeout=120,
    )
