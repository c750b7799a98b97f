"""A shipper on the main thread goes on after a signal, whenever that comes."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CODE = """
import os, signal, socket, sys, threading, time
from pathlib import Path
from moescope.core.self_metrics import SelfMetrics
from moescope.core.settings import load_settings
from moescope.producers.shipping import Shipper

# Longer than the shipper waits for events: its time is over when the handler returns.
signal.signal(signal.SIGUSR1, lambda *_: time.sleep(0.3))
stop = threading.Event()

def disturb():
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(0.5)
    stop.set()

threading.Thread(target=disturb, daemon=True).start()
# Takes connections and says nothing, so that no event wakes the shipper.
mute = socket.create_server(("127.0.0.1", 0))
settings = load_settings(
    environment={},
    options={
        "kafka.bootstrap_servers": f"127.0.0.1:{mute.getsockname()[1]}",
        "kafka.connect_timeout": 600,
    },
)
with Shipper(settings, Path(sys.argv[1]), SelfMetrics()) as shipper:
    shipper.run(stop)
print("ended")
"""


def test_a_signal_does_not_stop_the_shipper_for_ever(tmp_path: Path) -> None:
    """A handler that outlasts the wait for events leaves no wait without an end behind."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout == "ended\n", done.stderr
