"""`moescope demo`: the main job end to end, on recorded and simulated traffic."""

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
    recordings: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Recorded routing to play; by default that of the checkout."
        ),
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes in the simulated fleet.")] = 8,
    duration: Annotated[
        int, typer.Option(min=300, help="Event time to simulate, in seconds.")
    ] = 1200,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 1,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Play real routing and a simulated fleet, calibrate, plant incidents, and keep score.

    Healthy traffic comes first; the job `calibrate` makes thresholds from it. Then held-out
    health and incidents are played, and a scorecard shows for each of them what turned red, what
    was named, what paged and when. Everything passes through the real codec, batch log, roll-up,
    store, calibration, alert and export code. A demo folder from an earlier run is replaced.

    Example: moescope demo --nodes 8 --duration 1200
    """
    from moescope.console.demo.report import as_document, print_report
    from moescope.console.demo.running import recordings_here, run_demo

    result = run_demo(
        settings_from(config, data),
        recordings or recordings_here(),
        nodes=nodes,
        duration_s=duration,
        seed=seed,
    )
    if as_json:
        print_json(as_document(result))
    else:
        print_report(result)
