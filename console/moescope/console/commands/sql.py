"""`moescope sql`: one query over the window tables."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from moescope.console.options import AsJson, ConfigFile, DataDirectory, settings_from


class Form(StrEnum):
    """How rows are printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"


def sql(
    query: Annotated[
        str, typer.Argument(help="One statement that reads; `-` reads it from stdin.")
    ],
    form: Annotated[Form, typer.Option("--format", help="Output format.")] = Form.TABLE,
    as_json: AsJson = False,
    config: ConfigFile = None,
    data: DataDirectory = None,
) -> None:
    """Run one SQL query over the window tables, in a process that can only read them.

    Example: moescope sql "select * from worst_windows limit 10"
    """
    from moescope.storage.run_sql import run_sql

    text = sys.stdin.read() if query == "-" else query
    chosen = Form.JSON if as_json else form
    rendered = run_sql(settings_from(config, data), text, chosen.value)
    sys.stdout.buffer.write(rendered)
    if rendered and chosen is not Form.ARROW and not rendered.endswith(b"\n"):
        sys.stdout.buffer.write(b"\n")
    sys.stdout.flush()
