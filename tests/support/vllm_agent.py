"""An agent beside an engine, in a process of its own: `python vllm_agent.py RING LOG`.

    with AgentProcess(ring, log) as agent:
        agent.kill()

It ships until SIGTERM, and then what is left.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

from moescope.producers.agent import Agent

ROOT = Path(__file__).resolve().parents[2]
LONGEST_STOP_S = 20.0


def main() -> None:
    """Ship until asked to stop."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with Agent(sys.argv[1], sys.argv[2]) as agent:
        agent.run(stop)
        agent.drain()


class AgentProcess:
    """A running agent, from the moment it is made.

    Args:
        ring: Ring folder.
        log: Where the batch log lies.
        output: File for what it says.
    """

    def __init__(self, ring: Path, log: Path, output: Path) -> None:
        path = os.pathsep.join(str(ROOT / part) for part in ("core", "producers"))
        with output.open("ab") as opened:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__)), str(ring), str(log)],
                env=os.environ | {"PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=opened,
                stderr=opened,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it lives."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it as a crash would."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """Let it ship what is left, and end; its exit code."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(LONGEST_STOP_S)
        self.kill()
        return -signal.SIGKILL

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill it if it still runs."""
        if self.is_running:
            self.kill()


if __name__ == "__main__":
    main()
