"""What an agent's health says of its own disk."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent

# The limit on file size stands in for a full disk.
CODE = """
import json, resource, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from support.rings import ids_of, small_recorder
from moescope.console.agent_work import _Standing
from moescope.core.clock import SystemClock
from moescope.core.self_metrics import SelfMetrics
from moescope.core.settings import load_settings
from moescope.producers.agent import Agent
from moescope.producers.shipping import Shipper
folder = Path(sys.argv[1])
settings = load_settings(environment={"MOESCOPE_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9"})
recorder = small_recorder(folder)
limit = resource.getrlimit(resource.RLIMIT_FSIZE)
told = []
with Agent(folder, folder / "log") as agent, Shipper(
    settings, folder / "log", SelfMetrics()
) as shipper:
    standing = _Standing(agent, shipper, SystemClock())
    for room in (None, 100, None):
        soft = limit[0] if room is None else room
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, limit[1]))
        recorder.record("a", [0, 1], ids_of(range(2)), "decode", token_ids=[0, 1])
        agent.run_once(flush=True)
        health = standing.health()
        told.append([health.status.value, health.why])
print(json.dumps(told))
"""


def test_a_full_disk_is_said_with_its_place(tmp_path: Path) -> None:
    """An agent whose log takes nothing is not `ok`, and says which folder is full."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path), str(TESTS)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    before, full, after = json.loads(done.stdout)
    assert (before, after) == (["ok", ""], ["ok", ""])
    assert full[0] == "waiting"
    assert "File too large" in full[1]
    assert str(tmp_path / "log" / "node-a") in full[1]
    assert str(tmp_path / "log" / "node-a") in done.stderr
