"""Run a Kafka broker by hand, in the foreground, until Ctrl-C: `make kafka`.

    .venv/bin/python scripts/kafka.py --port 9092

It is the broker that the tests run, on data that stays.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.kafka_broker import FETCH_LIBRARIES, BrokerError, KafkaBroker


def main() -> int:
    """Start it, say where it is, and stop it when told to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--port", type=int, default=9092, help="of 127.0.0.1; it also takes the next"
    )
    parser.add_argument("--data", type=Path, default=ROOT / ".tools" / "kafka" / "data")
    options = parser.parse_args()
    missing = subprocess.run([str(FETCH_LIBRARIES)], check=False).returncode  # noqa: S603 (ours)
    if missing:
        return missing
    told_to_stop = threading.Event()
    for told in (signal.SIGINT, signal.SIGTERM):
        signal.signal(told, lambda *_: told_to_stop.set())
    try:
        with KafkaBroker(options.data, port=options.port) as broker:
            print(f"Kafka answers at {broker.bootstrap}; its data is in {options.data}.")
            print(f"export MOESCOPE_KAFKA_BOOTSTRAP_SERVERS={broker.bootstrap}")
            print("Ctrl-C stops it.", flush=True)
            while not told_to_stop.wait(1):
                if not broker.is_running:
                    print(f"It ended by itself: see {broker.log_file}.", file=sys.stderr)
                    return 1
    except BrokerError as error:
        print(f"kafka: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
