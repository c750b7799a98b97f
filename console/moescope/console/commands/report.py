"""`moescope report`: pages for people who decide."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moescope.console.options import AsJson, ConfigFile, DataDirectory, settings_from

app = typer.Typer(help="Write reports.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def calibration(
    version: Annotated[
        str, typer.Argument(help="Threshold version; the newest unless told otherwise.")
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where to; the data directory's `reports` folder."),
    ] = None,
    config: ConfigFile = None,
    data: DataDirectory = None,
    as_json: AsJson = False,
) -> None:
    """Write what a calibration rests on and how good it is, as one HTML page and its JSON twin.

    Example: moescope report calibration t-1 --out reports
    """
    from moescope.console.changes import WriteReport
    from moescope.console.changing import print_result
    from moescope.console.output import print_json
    from moescope.console.performing import perform

    settings = settings_from(config, data)
    # The owner may run in another folder.
    folder = str(out.expanduser().absolute()) if out else ""
    result = perform(settings, WriteReport(version=version, folder=folder))
    print_json(result) if as_json else print_result(result)


@app.command()
def compare(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="A [B]",
            help="Data directories, log roots or partitions; B is A unless it is given.",
        ),
    ],
    a: Annotated[
        list[str] | None,
        typer.Option(
            "--a",
            metavar="KEY=VALUE",
            help="Only such rows are side A, as revision=r41; repeatable.",
        ),
    ] = None,
    b: Annotated[
        list[str] | None,
        typer.Option("--b", metavar="KEY=VALUE", help="The same for side B; repeatable."),
    ] = None,
    by: Annotated[
        str, typer.Option(help="What rows are joined on beside the position: content or request.")
    ] = "content",
    repeats: Annotated[
        bool, typer.Option("--repeats", help="Compare what A saw again with its first sighting.")
    ] = False,
    min_overlap: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Least mean overlap of any layer; else exit code 1."),
    ] = None,
    min_all_layers: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Least share of tokens that agree in all layers; else exit code 1.",
        ),
    ] = None,
    fewest_pairs: Annotated[
        int, typer.Option(metavar="N", help="With fewer pairs of tokens: exit code 4.")
    ] = 100,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Also write this page, and FILE.json beside it."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the routing of the same tokens in two logs: revisions, precisions, engines.

    Example: moescope report compare canary-bf16 canary-fp32 --min-all-layers 0.8 --out page.html
    """
    from moescope.console.comparing import check_page, compared, print_comparison, write_page
    from moescope.console.output import print_json
    from moescope.jobs.reports.comparison import Limits

    if out is not None:
        check_page(out)
    report = compared(
        paths,
        (a or [], b or []),
        by,
        Limits(overlap=min_overlap, all_layers=min_all_layers),
        repeats=repeats,
        fewest_pairs=fewest_pairs,
    )
    if out is not None:
        write_page(report, out)
    print_json(report) if as_json else print_comparison(report)
    if not all(limit["met"] for limit in report["limits"]):
        raise typer.Exit(1)
