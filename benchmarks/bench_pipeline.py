"""Batch log to committed windows: the whole processor and store, embedded."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.baselines import duckdb_with_threads, polars_with_threads
from benchmarks.figures import Baseline, Figure, Profile, Result
from benchmarks.harness import Scale, Side, main, rates
from benchmarks.logs import Log, payloads, write_simulation, write_stream
from benchmarks.rolling import EVERY, FEW, LogRolling, watch_pipeline
from benchmarks.stages import StageClock
from benchmarks.streams import WINDOW, dense_stream
from moescope.core.wire import decode_batch
from moescope.processors.sources.batch_log import BatchLogSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SLICE = 8
"""Batches whose assignments the baselines group: all of them would not fit into memory."""

TEXT = f"""
From the first record of a sealed batch log to the last commit in a new DuckDB file: reading,
checksums, decoding, gates, roll-up, metrics, levels, rows, histograms, offsets; wall-clock time on
all cores (one thread rolls up while another finishes and commits). The targets are set for Kafka
with its broker on the same cores: these are the figures of the embedded batch log, without a
broker. *Few windows*: token windows of {WINDOW} and time windows of 1, 5 and 60 s, the latter per
node and scene, too. *Every kind*: the defaults, that is token windows of 128, 256 and 512, time,
task and step windows. *Dense stream*: 32 requests of 128 tokens per batch, 4,096 × 32 × 8
assignments; *simulated fleet*: the simulator's healthy nodes, which ship small batches once a
second: there what a record costs, whatever it holds, counts for more than its assignments. The
baselines read assignments of the dense stream from Parquet (zstd, one row per assignment; {SLICE}
batches), group them by request, window, layer and expert, group them again by second, layer and
expert, and keep both results: counts only, in one go over a closed file, on all cores.
"""


def measure(scale: Scale) -> Result:
    """Measure the topic."""
    with tempfile.TemporaryDirectory() as folder:
        return _measure(scale, Path(folder))


def _measure(scale: Scale, folder: Path) -> Result:
    cores = os.cpu_count() or 1
    stream = dense_stream(quick=scale.quick)
    dense = write_stream(folder / "dense", stream, scale.pick(200, 8))
    fleet = write_simulation(
        folder / "fleet", "healthy", seconds=scale.pick(180, 20), nodes=scale.pick(4, 1)
    )
    runs = {
        "dense few": LogRolling(dense, FEW, folder / "store-1"),
        "dense every": LogRolling(dense, EVERY, folder / "store-2"),
        "fleet few": LogRolling(fleet, FEW, folder / "store-3"),
        "fleet every": LogRolling(fleet, EVERY, folder / "store-4"),
    }
    assignments = {"dense": dense.assignments, "fleet": fleet.assignments}
    _check(runs["dense few"], dense)
    parquet, rows = _unpacked(dense, folder / "rows.parquet")
    measured = rates(
        [
            *(
                Side(name, assignments[name.split()[0]], run.run, run.prepare)
                for name, run in runs.items()
            ),
            Side("DuckDB", rows, _with_duckdb(parquet, cores)),
            Side("polars", rows, _with_polars(parquet, cores)),
        ],
        scale.pick(3, 1),
        clock=time.perf_counter,
    )
    baselines = [
        Baseline(name=f"{name} over Parquet, counts only", values=measured[name])
        for name in ("DuckDB", "polars")
    ]
    stored = {}
    for name, run in runs.items():
        stored[name] = run.counted()[1]
    unit = f"M assignments/s, {cores} cores"

    def figure(what: str, name: str, target: float, log: Log) -> Figure:
        return Figure(
            what=what,
            unit=unit,
            values=measured[name],
            target=target,
            baselines=baselines if log is dense else [],
            note=f"{log.assignments / 1e6:,.0f} M assignments in {log.records:,} records "
            f"({log.assignments / log.records:,.0f} each), {log.wire_bytes / 1e6:,.0f} MB; "
            f"{stored[name]:,} rows of closed windows.",
        )

    return Result(
        topic="pipeline",
        title="Batch log to committed windows",
        text=TEXT,
        order=3,
        figures=[
            figure("few windows, dense stream", "dense few", 100, dense),
            figure("every kind, dense stream", "dense every", 60, dense),
            figure("few windows, simulated fleet", "fleet few", 100, fleet),
            figure("every kind, simulated fleet", "fleet every", 60, fleet),
            Figure(
                what="every kind, simulated fleet, against its event time",
                unit="seconds of a node per second",
                values=[
                    each * 1e6 * fleet.node_seconds / fleet.assignments
                    for each in measured["fleet every"]
                ],
                note="so many such nodes could be followed live.",
            ),
        ],
        profiles=[
            _profile("every kind, dense stream", runs["dense every"]),
            _profile("every kind, simulated fleet", runs["fleet every"]),
        ],
    )


def _check(run: LogRolling, log: Log) -> None:
    run.prepare()
    run.run()
    tokens, _ = run.counted()
    if tokens != log.tokens:
        message = f"{tokens} tokens were counted in committed windows, {log.tokens} written"
        raise AssertionError(message)


def _unpacked(log: Log, path: Path) -> tuple[Path, int]:
    """One row per assignment of the first batches of a log, as Parquet."""
    import polars as pl  # noqa: PLC0415 (after its number of threads is settled)

    tables = list(_rows(pl, log))
    frame = pl.concat(tables)
    frame.write_parquet(path, compression="zstd")
    return path, len(frame)


def _rows(pl: Any, log: Log) -> Iterator[Any]:  # noqa: ANN401 (polars, loaded late)
    for number, payload in enumerate(payloads(log.root)):
        if number == SLICE:
            return
        batch = decode_batch(payload)
        tokens, routes = batch.tokens, batch.routes
        assert tokens is not None  # noqa: S101 (narrowing)
        assert routes is not None  # noqa: S101 - narrowing
        count, layers, top_k = routes.shape
        per_token = layers * top_k
        times = tokens.event_time_us
        assert times is not None  # noqa: S101 - narrowing
        numbers = np.array([int(name.rpartition("-")[2]) for name in batch.requests.ids], np.int32)
        yield pl.DataFrame(
            {
                "request": np.repeat(numbers[tokens.request], per_token),
                "position": np.repeat(tokens.position, per_token),
                "time_us": np.repeat(times, per_token),
                "layer": np.tile(np.repeat(np.arange(layers, dtype=np.uint8), top_k), count),
                "expert": routes.expert_ids.reshape(-1).astype(np.uint8),
            }
        )


def _with_duckdb(path: Path, threads: int) -> Callable[[], object]:
    database = duckdb_with_threads(threads)

    def run() -> None:
        for name, window in (("by_token", f"position // {WINDOW}"), ("by_time", "")):
            keys = f"request, {window}" if window else "time_us // 1000000"
            database.execute(
                f"CREATE OR REPLACE TABLE {name} AS SELECT {keys}, layer, expert, count(*) AS n"  # noqa: S608 (our own text)
                f" FROM read_parquet('{path}') GROUP BY ALL"
            )

    return run


def _with_polars(path: Path, threads: int) -> Callable[[], object]:
    pl = polars_with_threads(threads)

    def run() -> None:
        rows = pl.scan_parquet(path)
        for keys in (
            ["request", pl.col("position") // WINDOW],
            [pl.col("time_us") // 1_000_000],
        ):
            rows.group_by([*keys, "layer", "expert"]).len().collect()

    return run


def _profile(title: str, run: LogRolling) -> Profile:
    run.prepare()
    began = time.perf_counter()
    with StageClock() as clock:
        clock.watch("read: batch log", BatchLogSource, "poll")
        watch_pipeline(clock)
        run.run()
        stages = clock.stages()
    elapsed = time.perf_counter() - began
    return Profile(
        title=f"Where the time goes: {title}",
        stages=stages,
        note=f"{elapsed:.1f} s of wall-clock time with the stages timed. Stages named *read* run "
        "on one thread, those named *commit* on another; DuckDB's own threads are in neither.",
    )


if __name__ == "__main__":
    polars_with_threads(os.cpu_count() or 1)
    main("pipeline", measure)
