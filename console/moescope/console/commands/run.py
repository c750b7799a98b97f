"""`moescope run`: long-running processes."""

from __future__ import annotations

from typing import Annotated

import typer

from moescope.console.options import AsJson, ConfigFile, DataDirectory, settings_from
from moescope.console.output import note, print_json

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
    as_json: AsJson = False,
) -> None:
    """Run everything on one machine: agent, processor, store and export.

    Recorders on this machine write to the data directory's `ring` folder; batch logs from
    importers and the simulator lie in its `log` folder. Stop with SIGINT or SIGTERM: what was read
    is committed first. A second SIGINT stops at once; the next start goes on from the last commit.

    Example: moescope run all --data moescope-data
    """
    from dataclasses import asdict

    from moescope.console.run_work import run_all
    from moescope.console.stopping import stop_on_signals

    totals = run_all(settings_from(config, data), stop_on_signals(), until_idle=until_idle)
    if as_json:
        print_json(asdict(totals))
    else:
        note(
            f"stopped after {totals.records:,} records in {totals.commits:,} commits; "
            f"{totals.dead_letters:,} dead letters"
        )


@app.command("agent")
def agent(
    config: ConfigFile = None,
    data: DataDirectory = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when everything recorded so far is shipped.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Ship what recorders on this machine write to Kafka (settings kafka.*).

    Batches wait in the data directory's `log` folder until a broker has acknowledged them. Stop
    with SIGINT or SIGTERM: what is recorded is shipped first, for at most
    kafka.delivery_timeout; the next start goes on from there. A second signal ends it at once: a
    few batches may then arrive twice, which readers notice, and none is lost.

    With --until-idle exit code 3 when batches are left, or no broker was found, and nothing could
    be shipped for kafka.delivery_timeout.

    Example: MOESCOPE_KAFKA_BOOTSTRAP_SERVERS=kafka:9092 moescope run agent --data moescope-data
    """
    from dataclasses import asdict

    from moescope.console.agent_work import check_shipped, run_agent
    from moescope.console.stopping import stop_on_signals

    stop = stop_on_signals()
    totals = run_agent(settings_from(config, data), stop, until_idle=until_idle)
    if as_json:
        print_json(asdict(totals))
    else:
        note(
            f"stopped after {totals.shipped_batches:,} batches shipped; "
            f"{totals.waiting_batches:,} wait for the next start"
        )
    if until_idle and not stop.is_set():
        check_shipped(totals)


@app.command("processor")
def processor(
    config: ConfigFile = None,
    data: DataDirectory = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when everything sent so far is processed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run one of several processors that share the load of a fleet.

    Processors of one group (kafka.group) share the partitions of the routing topic, and write
    windows and sums to the deltas topic, from which `run store` takes them (store.source =
    "deltas"). Start as many as are needed, up to kafka.partitions. The data directory holds its
    health file only. SIGINT or SIGTERM: what was read is committed, and the group is left.

    Example: moescope run processor --config /etc/moescope/moescope.toml
    """
    from dataclasses import asdict

    from moescope.console.processor_work import run_processor
    from moescope.console.stopping import stop_on_signals

    totals = run_processor(settings_from(config, data), stop_on_signals(), until_idle=until_idle)
    if as_json:
        print_json(asdict(totals))
    else:
        note(
            f"stopped after {totals.records:,} records in {totals.commits:,} commits; "
            f"{totals.refused:,} refused"
        )


@app.command()
def store(
    config: ConfigFile = None,
    data: DataDirectory = None,
    standby: Annotated[
        bool,
        typer.Option("--standby", help="Wait for the owner's end if there is one, then take over."),
    ] = False,
    reset_processors: Annotated[
        bool,
        typer.Option(
            "--reset-processors",
            help="First set the processors' offsets to what is stored, as soon as none runs.",
        ),
    ] = False,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when everything sent so far is stored.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Own a fleet's store: windows, thresholds, alerts, jobs and export.

    Live traffic comes from Kafka: routing batches themselves, or with `store.source = deltas` what
    processors made of them. Imports and simulations of this machine are processed as well. Stop
    with SIGINT or SIGTERM: what was read is committed first.

    Example: moescope run store --data moescope-data --standby
    """
    from moescope.console.stopping import stop_on_signals
    from moescope.console.store_work import run_store

    metrics = run_store(
        settings_from(config, data),
        stop_on_signals(),
        standby=standby,
        reset_processors=reset_processors,
        until_idle=until_idle,
    )
    totals = {
        name: int(metrics.value(f"moescope_store_{name}_total"))
        for name in ("commits", "emissions", "refused_emissions", "gap_emissions")
    }
    if as_json:
        print_json(totals)
    else:
        note(f"stopped after {totals['commits']:,} commits")
