"""Starting and asking: imports, the command line, SQL."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.figures import Figure, Result
from benchmarks.harness import Scale, main
from benchmarks.logs import write_simulation
from moescope.console.owner import Owner
from moescope.core.settings import load_settings
from moescope.storage.places import export_folder
from moescope.storage.query import QueryPool

if TYPE_CHECKING:
    from collections.abc import Callable

QUERIES = {
    "worst windows": (
        "SELECT * FROM worst_windows WHERE complete ORDER BY times_floor DESC LIMIT 20"
    ),
    "count by kind and level": "SELECT window_kind, level, count(*) FROM windows GROUP BY ALL",
    "one layer over time": (
        "SELECT start, load_entropy FROM windows"
        " WHERE window_kind = 'time' AND size = 1000000 AND scope_kind = 'all' AND layer = 3"
        " ORDER BY start"
    ),
}

TEXT = """
Wall-clock times of processes that are started anew, with their files in the page cache. *Beyond
numpy*: the same process with `import numpy` alone is subtracted, run by run. SQL goes through the
query pool: a worker process that reads the exported Parquet files, and the text of the result
back in this process.
"""


def _seconds(arguments: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 (our own)
    return time.perf_counter() - began


def _python(code: str) -> float:
    return _seconds([sys.executable, "-c", code])


def _milliseconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e3


def measure(scale: Scale) -> Result:
    """Measure the topic."""
    repetitions = scale.pick(15, 2)
    producers, command = [], []
    for repetition in range(repetitions + 1):
        bare = _python("import numpy")
        loaded = _python("import numpy, moescope.producers")
        helped = _seconds([sys.executable, "-m", "moescope.console", "--help"])
        if repetition:
            producers.append((loaded - bare) * 1e3)
            command.append(helped * 1e3)
    figures = [
        Figure(
            what="`import moescope.producers`, beyond numpy", unit="ms", values=producers,
            better="lower", target=100,
        ),
        Figure(
            what="`moescope --help`", unit="ms", values=command, better="lower", target=300
        ),
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        figures += _queries(Path(folder), scale)
    return Result(topic="start", title="Starting and asking", text=TEXT, order=9, figures=figures)


def _queries(directory: Path, scale: Scale) -> list[Figure]:
    write_simulation(directory / "log", "healthy", seconds=scale.pick(120, 20), nodes=1)
    settings = load_settings(options={"data.directory": str(directory)}, environment={})
    with Owner(settings) as owner:
        owner.run(until_idle=True)
    starts = []
    for _ in range(scale.pick(9, 1)):
        began = time.perf_counter()
        with QueryPool(export_folder(directory), workers=1) as pool:
            pool.run("SELECT 1")
            starts.append((time.perf_counter() - began) * 1e3)
    figures = [Figure(what="query pool, start to first answer", unit="ms", values=starts,
                      better="lower")]  # fmt: skip
    with QueryPool(export_folder(directory), workers=1) as pool:
        rows = pool.run("SELECT count(*) AS n FROM windows").to_polars().item()
        for name, query in QUERIES.items():
            pool.run(query)
            values = [_milliseconds(lambda: pool.run(query)) for _ in range(scale.pick(30, 2))]  # noqa: B023 (called at once)
            figures.append(
                Figure(
                    what=f"SQL, {name}", unit="ms", values=values, better="lower",
                    note=f"{rows:,} rows of windows.",
                )
            )  # fmt: skip
    return figures


if __name__ == "__main__":
    main("start", measure)
