"""The demo's work: a simulated fleet in a process of its own, the owner in this one."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import signal
import threading
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from moescope.console.owner import Owner
from moescope.console.places import log_root
from moescope.console.progress import progress
from moescope.core.errors import InputError, InternalError
from moescope.producers.simulator import LABELS_FILE, SimulationTotals, scenario_named, simulate
from moescope.storage import connect

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

    from moescope.core.settings import Settings
    from moescope.processors.pipeline import PipelineTotals
    from moescope.storage.connection import Connection as QueryConnection

DEMO_MARK: Final = ".moescope-demo"
SCENARIO: Final = "demo"

WINDOWS_SQL = """
    SELECT window_kind, count(*) AS rows,
        count(*) FILTER (complete) AS complete_rows, sum(weight) AS windows_times_layers
    FROM windows GROUP BY 1 ORDER BY 1
"""

COUNTED_SQL = """
    SELECT sum(tokens) AS tokens, sum(seen) AS rows, sum(lost) AS lost
    FROM windows
    WHERE window_kind = 'time' AND scope_kind = 'all' AND size = 1000000
        AND layer = (SELECT min(layer) FROM windows)
"""

WORST_SQL = """
    SELECT window_kind, size, scope_kind, scope_value, node, phase, request, start_time, close_time,
        layer, tokens, js_uniform, js_uniform_floor, times_floor, hot_load_share
    FROM worst_windows
    WHERE complete AND window_kind = $kind AND scope_kind = 'all' AND size = $size
    ORDER BY times_floor DESC LIMIT 5
"""

SHOWN_SQL = """
    WITH chosen AS (
        SELECT window_kind, size, phase, layer, node, tokens, js_uniform, hot_load_share,
            coalesce(start_time, first_time) AS began, close_time
        FROM windows
        WHERE complete AND scope_kind = 'all'
            AND (window_kind = 'token' AND size = 128 OR window_kind = 'time' AND size = 5000000)
    ), healthy AS (
        SELECT window_kind, phase, layer, quantile_cont(js_uniform, 0.99) AS p99
        FROM chosen WHERE close_time < make_timestamp($healthy_to)
        GROUP BY ALL HAVING count(*) >= 30
    )
    SELECT window_kind, phase, layer, node, tokens, js_uniform, hot_load_share, began,
        js_uniform / p99 AS times_p99
    FROM chosen JOIN healthy USING (window_kind, phase, layer)
    WHERE began >= make_timestamp($begin) AND began < make_timestamp($end)
        AND (window_kind = 'time' OR list_contains($nodes, node))
    ORDER BY times_p99 DESC LIMIT 1
"""

COVERED_SQL = """
    SELECT min(coverage) AS coverage, count(DISTINCT start) AS seconds
    FROM windows
    WHERE window_kind = 'time' AND size = 1000000 AND scope_kind = 'node'
        AND list_contains($nodes, scope_value)
        AND start >= $begin AND start < $end
"""

LEAST_COVERED_SQL = """
    SELECT scope_value AS node, start_time, tokens, lost, coverage
    FROM windows
    WHERE window_kind = 'time' AND scope_kind = 'node' AND size = 60000000
        AND layer = (SELECT min(layer) FROM windows)
    ORDER BY coverage NULLS FIRST LIMIT 3
"""

REASONS_SQL = """
    SELECT reason, count(*) AS batches, sum(suspicious_pairs) AS suspicious_pairs,
        sum(lost_rows) AS lost_rows
    FROM (SELECT unnest(reasons) AS reason, suspicious_pairs, lost_rows FROM batches)
    GROUP BY 1 ORDER BY 2 DESC
"""


def run_demo(settings: Settings, *, nodes: int, duration_s: int, seed: int) -> dict[str, Any]:
    """Run the demo in the data directory of the settings.

    Returns:
        Totals, planted incidents, what was counted, and the worst windows.

    Raises:
        InputError: The folder holds something that is no demo.
        InternalError: The simulator's process broke.
    """
    directory = settings.data_directory
    _make_room(directory)
    root = log_root(directory)
    root.mkdir()
    receiver, sender = multiprocessing.get_context("spawn").Pipe(duplex=False)
    fleet = multiprocessing.get_context("spawn").Process(
        target=_simulate, args=(root, nodes, duration_s, seed, sender), daemon=True
    )
    began = time.monotonic()
    fleet.start()
    sender.close()
    with progress(f"{nodes} nodes, {duration_s} s of event time", duration_s) as report:
        simulated: SimulationTotals | None = None
        stop = threading.Event()
        seconds = 0

        def on_commit(totals: PipelineTotals) -> None:
            report(seconds, f"{totals.records:,} batches, {totals.token_windows:,} token windows")

        def follow() -> None:
            nonlocal simulated, seconds
            try:
                while simulated is None:
                    message = receiver.recv()
                    if isinstance(message, int):
                        seconds = message
                    else:
                        simulated = message
            except EOFError:
                pass
            finally:
                stop.set()

        following = threading.Thread(target=follow, name="demo-fleet", daemon=True)
        following.start()
        with Owner(settings, on_commit=on_commit) as owner:
            owner.pipeline.run(stop=stop)
            following.join()
            if simulated is None:
                raise InternalError(
                    "The simulated fleet stopped early.",
                    why=f"Its process ended with exit code {fleet.exitcode}.",
                    next_step="See the messages above; `moescope simulate demo` runs it alone.",
                )
            processed = owner.run(until_idle=True)
    fleet.join()
    elapsed = time.monotonic() - began
    return {
        "seconds": elapsed,
        "simulated": asdict(simulated),
        "processed": asdict(processed),
        "data": str(directory),
        **_questions(directory, root),
    }


def _simulate(root: Path, nodes: int, duration_s: int, seed: int, sender: Connection) -> None:
    # Ctrl-C reaches the whole process group; the owner's process decides, and ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    totals = simulate(
        scenario_named(SCENARIO),
        root,
        seed=seed,
        duration_s=duration_s,
        nodes=nodes,
        node_prefix="node",
        progress=lambda seconds, _: sender.send(seconds),
    )
    sender.send(totals)
    sender.close()


def _questions(directory: Path, root: Path) -> dict[str, Any]:
    with connect(directory) as connection:
        labels = json.loads((root / LABELS_FILE).read_text(encoding="utf-8"))
        # A small fleet lacks the nodes of some incidents: these happened nowhere.
        planted = [incident for incident in labels["incidents"] if incident["nodes"]]
        for incident in planted:
            incident["requests"] = len(incident["requests"])
        return {
            "planted": planted,
            "start_us": labels["start_us"],
            "counted": connection.sql(COUNTED_SQL).to_dicts()[0],
            "windows": connection.sql(WINDOWS_SQL).to_dicts(),
            "worst": {
                name: connection.sql(WORST_SQL, {"kind": kind, "size": size}).to_dicts()
                for name, kind, size in (
                    ("token windows of 128", "token", 128),
                    ("time windows of 5 s", "time", 5_000_000),
                )
            },
            "shown": [
                _shown(connection, labels["incidents"], item) for item in labels["incidents"]
            ],
            "least_covered": connection.sql(LEAST_COVERED_SQL).to_dicts(),
            "reasons": connection.sql(REASONS_SQL).to_dicts(),
        }


def _shown(
    connection: QueryConnection, incidents: list[dict[str, Any]], incident: dict[str, Any]
) -> dict[str, Any]:
    """The window that stands out most while an incident lasts, and how much was seen."""
    span = {
        "begin": incident["start_us"],
        "end": incident["end_us"],
        "nodes": incident["nodes"],
    }
    healthy_to = min(each["start_us"] for each in incidents)
    worst = connection.sql(SHOWN_SQL, {"healthy_to": healthy_to, **span}).to_dicts()
    covered = connection.sql(COVERED_SQL, span).to_dicts()[0]
    return {"incident": incident["name"], "window": worst[0] if worst else None, **covered}


def _make_room(directory: Path) -> None:
    mark = directory / DEMO_MARK
    if directory.exists() and any(directory.iterdir()):
        if not mark.exists():
            raise InputError(
                f"{directory} is not empty, and no demo made it.",
                why="The demo replaces its folder.",
                next_step="Choose another one with --data.",
            )
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    mark.write_text("This folder is replaced by `moescope demo`.\n", encoding="utf-8")
