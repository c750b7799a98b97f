from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support.rings import (
    assert_dense,
    ids_of,
    logged,
    lost_rows,
    rows_of,
    small_recorder,
)

from moescope.producers.agent import Agent, AgentSettings

TESTS = Path(__file__).resolve().parent.parent
QUICK = AgentSettings(group_us=2_000, heartbeat_us=20_000, poll_seconds=0.001)
KILLS = 8

AGENT = """
import sys, threading
from moescope.core.batchlog import WriterSettings
from moescope.producers.agent import Agent, AgentSettings
agent = Agent(sys.argv[1], sys.argv[2], settings=AgentSettings(
    group_us=2_000, heartbeat_us=20_000, poll_seconds=0.001,
    log=WriterSettings(durability="none")))
print("started", flush=True)
agent.run(threading.Event())
"""

ENGINE = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
import numpy as np
from support.rings import ids_of, small_recorder
recorder = small_recorder(Path(sys.argv[1]))
position = 0
while True:
    serials = np.arange(position, position + 20)
    recorder.record("a", serials, ids_of(serials), "decode", token_ids=serials)
    position += 20
    if position % 2_000 == 0:
        print(position, flush=True)
"""


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    """A process of its own; returns once it has printed a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


def kill(process: subprocess.Popen[str]) -> None:
    """Kill −9, and wait for the end; killing it again does nothing."""
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_an_agent_that_is_killed_again_and_again_ships_each_row_once(tmp_path: Path) -> None:
    """Killed at any moment: every row is in the log exactly once, and numbers have no hole."""
    chance = np.random.default_rng(11)
    recorder = small_recorder(tmp_path)
    root = tmp_path / "log"
    serial = 0
    for _ in range(KILLS):
        agent = start(AGENT, tmp_path, root)
        deadline = time.monotonic() + chance.uniform(0.02, 0.25)
        while time.monotonic() < deadline:
            serials = np.arange(serial, serial + int(chance.integers(1, 12)))
            recorder.record("a", serials, ids_of(serials), "decode", token_ids=serials)
            serial += len(serials)
            time.sleep(0.001)
        kill(agent)
    with Agent(tmp_path, root, settings=QUICK) as last:
        last.drain()
    recorder.close()
    batches = logged(root)
    assert [row.serial for row in rows_of(batches) if not row.is_context] == list(range(serial))
    assert lost_rows(batches) == 0
    assert_dense(batches)
    assert len(batches) > KILLS


def test_rows_of_a_killed_engine_are_shipped(tmp_path: Path) -> None:
    """What a killed engine had recorded is shipped or counted, and its ring goes."""
    root = tmp_path / "log"
    for _ in range(2):
        engine = start(ENGINE, tmp_path, TESTS)
        try:
            with Agent(tmp_path, root, settings=QUICK) as agent:
                for _ in range(5):
                    agent.run_once()
                kill(engine)
                agent.drain()
        finally:
            kill(engine)
    assert list(tmp_path.glob("*.ring")) == []
    batches = logged(root)
    incarnations = list(dict.fromkeys(entry.batch.header.incarnation for entry in batches))
    assert len(incarnations) == 2
    assert_dense(batches)
    for incarnation in incarnations:
        own = [entry for entry in batches if entry.batch.header.incarnation == incarnation]
        shipped = [row.serial for row in rows_of(own) if not row.is_context]
        assert shipped == sorted(set(shipped))
        assert len(shipped) + lost_rows(own) == shipped[-1] + 1


def test_a_full_disk_delays_rows_and_loses_none(tmp_path: Path) -> None:
    """While the file system refuses, rows wait in the ring; once it accepts, all are shipped."""
    code = """
import resource, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
import numpy as np
from support.rings import ids_of, logged, rows_of, small_recorder
from moescope.core.batchlog import BatchLogError
from moescope.producers.agent import Agent
folder = Path(sys.argv[1])
recorder = small_recorder(folder)
agent = Agent(folder, folder / "log")
serial = 0
def record(count):
    global serial
    for _ in range(count):
        serials = np.arange(serial, serial + 10)
        recorder.record("a", serials, ids_of(serials), "decode", token_ids=serials)
        serial += 10
record(3)
agent.drain()
limit = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))
for _ in range(5):
    record(2)
    agent.run_once(flush=True)
try:
    agent.drain()
except BatchLogError as error:
    assert error.retriable, error
    print("refused", agent.counters().failed_appends)
resource.setrlimit(resource.RLIMIT_FSIZE, limit)
agent.drain()
batches = logged(folder / "log")
assert [row.serial for row in rows_of(batches) if not row.is_context] == list(range(serial))
assert [entry.batch.header.sequence for entry in batches] == list(range(len(batches)))
print("complete", serial)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), str(TESTS)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    refused, complete = done.stdout.splitlines()
    assert refused == "refused 6"
    assert complete == "complete 130"


@pytest.mark.parametrize("name", ["kafka", "torch", "duckdb", "typer"])
def test_an_agent_loads_nothing_of_the_server(name: str) -> None:
    """An agent runs beside an engine with the base install, and starts fast."""
    code = f"import sys, moescope.producers.agent; sys.exit({name!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
