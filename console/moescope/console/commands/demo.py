"""`moescope demo`: the main job end to end, on a simulated fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moescope.console.options import AsJson, ConfigFile, settings_from
from moescope.console.output import print_json


def demo(
    data: Annotated[
        Path, typer.Option("--data", metavar="FOLDER", help="Where the demo's data go.")
    ] = Path("demo-data"),
    nodes: Annotated[int, typer.Option(min=1, help="Nodes in the simulated fleet.")] = 8,
    duration: Annotated[
        int, typer.Option(min=60, help="Event time to simulate, in seconds.")
    ] = 600,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 1,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Simulate a fleet with planted incidents, roll it up, and show totals and worst windows.

    Everything passes through the real codec, batch log, roll-up, store, export and SQL workers.
    A demo folder from an earlier run is replaced.

    Example: moescope demo --nodes 8 --duration 600
    """
    from moescope.console.demo_report import print_report
    from moescope.console.demo_work import run_demo

    result = run_demo(settings_from(config, data), nodes=nodes, duration_s=duration, seed=seed)
    if as_json:
        print_json(result)
    else:
        print_report(result)
