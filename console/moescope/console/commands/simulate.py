"""`moescope simulate`: write a simulated fleet's batch logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from moescope.console.options import AsJson, ConfigFile, DataDirectory, settings_from
from moescope.console.output import note, print_json, print_pairs, print_table

if TYPE_CHECKING:
    from moescope.producers.simulator import SimulationTotals

_START = "2027-01-01T00:00:00"


def simulate(
    scenario: Annotated[str, typer.Argument(help="A scenario's name; `list` shows them.")],
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    duration: Annotated[int, typer.Option(help="Event time to simulate, in seconds.")] = 600,
    nodes: Annotated[int, typer.Option(help="Nodes in the fleet.")] = 4,
    prefix: Annotated[str, typer.Option(help="Nodes are called PREFIX-000, …")] = "sim",
    domain: Annotated[
        str,
        typer.Option(
            help="Watermark domain; `simulation-PREFIX`, or `live` with --live, unless told "
            "otherwise."
        ),
    ] = "",
    start: Annotated[
        str, typer.Option(metavar="TIME", help="Event time at which it begins, ISO 8601.")
    ] = _START,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="Keep step with the clock; names of nodes and requests hold the time of the "
            "start, and each node's log has the byte cap of the settings.",
        ),
    ] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
    data: DataDirectory = None,
) -> None:
    """Simulate a fleet into the data directory's batch logs, with labels of what was planted.

    Event time runs faster than the clock, unless --live makes it follow. `moescope run all`
    processes what was written.

    Example: moescope simulate hot_expert --nodes 8 --duration 1200
    """
    from moescope.console.live_simulation import LivePace, refuse_training
    from moescope.console.places import log_root
    from moescope.console.progress import progress
    from moescope.console.times import time_us
    from moescope.core.batchlog import LIVE_DOMAIN
    from moescope.core.clock import SystemClock
    from moescope.core.errors import InputError
    from moescope.producers.simulator import SCENARIOS, scenario_named
    from moescope.producers.simulator import simulate as simulate_fleet

    if scenario == "list":
        rows = [(name, known.description) for name, known in SCENARIOS.items()]
        if as_json:
            print_json(dict(rows))
        else:
            print_table(("scenario", "what happens"), rows)
        return
    chosen = scenario_named(scenario)
    settings = settings_from(config, data)
    root = log_root(settings.data_directory)
    root.mkdir(parents=True, exist_ok=True)
    pace = None
    if live:
        if start != _START:
            raise InputError("--live begins now.", next_step="Leave out one of --live and --start.")
        refuse_training(chosen)
        pace = LivePace.beginning_now(SystemClock())
    with progress(f"simulating {scenario}", duration) as report:

        def after_second(seconds: int, sums: SimulationTotals) -> None:
            report(seconds, f"{sums.tokens:,} tokens")
            if pace is not None and seconds < duration:
                pace.wait_for(seconds)

        totals = simulate_fleet(
            chosen,
            root,
            seed=seed,
            duration_s=duration,
            nodes=nodes,
            start_us=pace.start_us if pace else time_us(start),
            node_prefix=f"{prefix}-{pace.run_name}" if pace else prefix,
            domain=domain or (LIVE_DOMAIN if pace else f"simulation-{prefix}"),
            request_prefix=f"{pace.run_name}-" if pace else "",
            byte_cap=settings["log.byte_cap"] if pace else None,
            progress=after_second,
        )
    result = {
        "nodes": len(totals.nodes),
        "seconds": totals.seconds,
        "requests": totals.requests,
        "tokens": totals.tokens,
        "assignments": totals.assignments,
        "batches": totals.batches,
        "lost_rows": totals.lost_rows,
        "wire_bytes": totals.wire_bytes,
        "jsonl_equivalent_bytes": totals.jsonl_equivalent_bytes,
    }
    print_json(result) if as_json else print_pairs(result)
    note(f"written to {root}; `moescope run all --until-idle` processes it")
