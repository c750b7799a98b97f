"""Break a fleet over Kafka in many ways, and write what came of it into docs/reliability.md.

Usage: run_kafka_faults.py [--only SCENARIO]… [--scale 0.1] [--pace 1] [--seed N] [--keep FOLDER]

Each scenario has a broker and a fleet of its own. Its table is written when it has ended as it
should, with its full counts; what fails or is interrupted writes nothing. The page names the commit
that was run: with full counts nothing else may be changed, before and while it runs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.fleet_full_run import SCENARIOS
from support.fleet_load import USUAL_PACE
from support.fleet_processes import Nursery
from support.fleet_results import (
    PAGE,
    ROOT,
    Result,
    circumstances,
    present_commit,
    refusal,
    write_results,
)
from support.fleet_scenarios import Stage
from support.kafka_broker import KafkaBroker


def say(text: str) -> None:
    """Tell whoever waits."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)  # noqa: T201 - it is a script's


def run(name: str, folder: Path, arguments: argparse.Namespace) -> Result:
    """Run one scenario with a broker of its own."""
    with KafkaBroker(folder / "kafka") as broker, Nursery(folder / "logs") as nursery:
        stage = Stage(
            nursery=nursery,
            folder=folder / "fleet",
            broker=broker,
            bootstrap=broker.bootstrap,
            prefix=name,
            seed=arguments.seed,
            told=lambda text: say(f"{name}: {text}"),
            pace=arguments.pace,
        )
        return SCENARIOS[name](stage, arguments.scale)


def main() -> None:
    """Run scenarios, write the page, and fail if anything was not as promised."""
    parser = argparse.ArgumentParser(description="Break a fleet over Kafka in many ways.")
    parser.add_argument("--only", action="append", choices=sorted(SCENARIOS), default=[])
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full counts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--pace",
        type=float,
        default=USUAL_PACE,
        help="seconds of event time that go by in a second, at most 1",
    )
    parser.add_argument("--keep", type=Path, help="folder that keeps what was written")
    arguments = parser.parse_args()
    if not 0 < arguments.pace <= 1:
        parser.error(
            "--pace is above 0 and at most 1: promises ahead of the clock are not believed"
        )
    writes_page, commit = arguments.scale == 1, present_commit()
    if writes_page and (why := refusal(commit)):
        sys.exit(why)
    failed = []
    with tempfile.TemporaryDirectory(prefix="moescope-faults-") as temporary:
        root = arguments.keep or Path(temporary)
        for name in arguments.only or SCENARIOS:
            say(f"{name}: begins, seed {arguments.seed}")
            begin = time.monotonic()
            try:
                found = run(name, root / name, arguments)
            except Exception:  # noqa: BLE001 (the other scenarios can still run)
                traceback.print_exc()
                failed.append(name)
                continue
            seconds = time.monotonic() - begin
            say(f"{name}: took {seconds / 60:.1f} min\n{found.details[:4_000]}")
            text = circumstances(commit, arguments.seed, arguments.scale, seconds, found.load)
            text += f"\n\n{found.table.text()}"
            sys.stdout.write(text + "\n\n")
            if not found.is_good:
                failed.append(name)
            elif writes_page and (why := refusal(commit)):
                say(f"{name}: not written, {why}")
                failed.append(name)
            elif writes_page:
                write_results(ROOT / PAGE, f"kafka {name}", text)
    if failed:
        sys.exit(f"not as promised: {', '.join(failed)}")


if __name__ == "__main__":
    main()
