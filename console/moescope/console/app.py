"""The command tree. Only declarations: every command imports what it needs when it runs."""

from __future__ import annotations

import typer

from moescope.console.commands import (
    config,
    demo,
    doctor,
    importing,
    run,
    simulate,
    sql,
    store,
)

app = typer.Typer(
    name="moescope",
    help="Watch how Mixture-of-Experts models route tokens to experts, window by window.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.command("demo")(demo.demo)
app.command("doctor")(doctor.doctor)
app.command("sql")(sql.sql)
app.command("import")(importing.import_)
app.command("simulate")(simulate.simulate)
app.add_typer(run.app, name="run")
app.add_typer(store.app, name="store")
app.add_typer(config.app, name="config")
