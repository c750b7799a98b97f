"""Runs every benchmark, each in a process of its own, then writes the page."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks.machine import ROOT


def main() -> None:
    """What `make bench` does."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("topics", nargs="*", help="topics to measure; all by default")
    parser.add_argument("--quick", action="store_true", help="tiny inputs: does it work at all?")
    options = parser.parse_args()
    known = sorted(
        path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py")
    )
    unknown = sorted(set(options.topics) - set(known))
    if unknown:
        parser.error(f"no such topic: {', '.join(unknown)}; choose from {', '.join(known)}")
    quick = ["--quick"] if options.quick else []
    for topic in options.topics or known:
        _run(f"benchmarks.bench_{topic}", *quick)
    _run("benchmarks.report", *quick)


def _run(module: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", module, *arguments], cwd=ROOT, check=True)  # noqa: S603 - our own modules


if __name__ == "__main__":
    main()
