"""Stopping by signals, as often as it takes to meet a waiting main thread at a bad moment."""

from __future__ import annotations

import subprocess
import sys

WAITER = """
import os, signal, threading
from moescope.console.stopping import stop_on_signals

for _ in range(300):
    stop = stop_on_signals()
    # The signal is handled while the main thread holds the event's lock.
    lock = stop._cond
    with lock:
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.wait(10)
print("stopped")
"""


def test_a_signal_that_meets_a_waiting_main_thread_stops_it() -> None:
    """A stop signal is never lost, and never waits for the thread that it interrupts."""
    done = subprocess.run(
        [sys.executable, "-c", WAITER], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr
