"""`moescope run`: long-running processes."""

from __future__ import annotations

import signal
import threading
from typing import Annotated, Any

import typer

from moescope.console.options import ConfigFile, DataDirectory, settings_from
from moescope.console.output import note

app = typer.Typer(
    help="Run the agent, the processor and the store.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("all")
def all_(
    config: ConfigFile = None,
    data: DataDirectory = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when everything written so far is processed.")
    ] = False,
) -> None:
    """Run everything on one machine: agent, processor, store and export.

    Recorders on this machine write to the data directory's `ring` folder; batch logs from
    importers and the simulator lie in its `log` folder. Stop with SIGINT or SIGTERM.

    Example: moescope run all --data moescope-data
    """
    from moescope.console.owner import Owner
    from moescope.console.places import log_root, ring_directory
    from moescope.console.progress import progress
    from moescope.producers.agent import Agent

    settings = settings_from(config, data)
    stop = threading.Event()

    def ask_to_stop(number: int, frame: Any) -> None:  # noqa: ANN401, ARG001 (signal's signature)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask_to_stop)
    rings = ring_directory(settings.data_directory)
    rings.mkdir(parents=True, exist_ok=True)
    with (
        progress("processing") as report,
        Owner(
            settings,
            on_commit=lambda totals: report(
                totals.records,
                f"{totals.records:,} records, {totals.token_windows:,} token windows",
            ),
        ) as owner,
    ):
        note(f"data directory {settings.data_directory}; stop with Ctrl-C")
        agent = Agent(rings, log_root(settings.data_directory))
        if until_idle:
            agent.drain()
            totals = owner.run(until_idle=True)
        else:
            shipping = threading.Thread(target=agent.run, args=(stop,), name="moescope-agent")
            shipping.start()
            try:
                totals = owner.run(stop=stop)
            finally:
                stop.set()
                shipping.join()
    note(
        f"stopped after {totals.records:,} records in {totals.commits:,} commits; "
        f"{totals.dead_letters:,} dead letters"
    )
