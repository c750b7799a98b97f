"""`moescope pattern`: what detectors named, and what it means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from moescope.console.options import AsJson, ConfigFile, DataDirectory, settings_from
from moescope.console.output import print_json, print_pairs, print_table

if TYPE_CHECKING:
    from moescope.core.patterns import Pattern

app = typer.Typer(
    help="Look at patterns that detectors named.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("list")
def list_(
    model: Annotated[str, typer.Option(help="Only this model.")] = "",
    config: ConfigFile = None,
    data: DataDirectory = None,
    as_json: AsJson = False,
) -> None:
    """List findings: first those that later windows may still extend, then the newest.

    Example: moescope pattern list --model olmoe-1b-7b
    """
    from moescope.console.pattern_rows import finding_rows
    from moescope.console.reading import Reader, scope_words, window_words
    from moescope.console.times import shown

    with Reader(settings_from(config, data)) as reader:
        found = finding_rows(reader, model=model)
    if as_json:
        print_json(found)
        return
    print_table(
        (
            "finding", "pattern", "open", "may page", "model", "revision", "phase", "window",
            "scope", "began (UTC)", "ended (UTC)", "confidence",
        ),
        [
            (
                r["finding"], r["pattern"], r["open"], r["pages"], r["model"], r["revision"],
                r["phase"], window_words(r), scope_words(r), shown(r["began_at"]),
                shown(r["ended_at"]), r["confidence"],
            )
            for r in found
        ],
    )  # fmt: skip


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(metavar="NAME|FINDING", help="A pattern, or how a finding's id begins.")
    ],
    config: ConfigFile = None,
    data: DataDirectory = None,
    as_json: AsJson = False,
) -> None:
    """Show what a pattern means, or a finding with what was seen.

    Example: moescope pattern show fixed_prefix
    """
    from moescope.core.patterns import PATTERN_BY_NAME

    settings = settings_from(config, data)
    if name in PATTERN_BY_NAME:
        _show_pattern(PATTERN_BY_NAME[name], as_json=as_json)
        return
    from moescope.console.pattern_rows import finding_document
    from moescope.console.reading import Reader

    with Reader(settings) as reader:
        document = finding_document(reader, name)
    print_json(document) if as_json else _print_finding(document)


@app.command()
def pair(
    pattern: Annotated[str, typer.Argument(help="A pattern that is found by pairing.")],
    with_prefix: Annotated[
        str,
        typer.Option(
            metavar="TEXT",
            help="How names of requests with examples begin; the rest names the question.",
        ),
    ],
    without_prefix: Annotated[
        str, typer.Option(metavar="TEXT", help="How names of the same without examples begin.")
    ],
    size: Annotated[int, typer.Option(min=1, help="Size of the token windows.")] = 128,
    phase: Annotated[str, typer.Option(help="Phase of the windows.")] = "prefill",
    config: ConfigFile = None,
    data: DataDirectory = None,
    as_json: AsJson = False,
) -> None:
    """Compare the same questions with and without examples; exit code 4: too few pairs.

    Example: moescope pattern pair few_shot_pull --with-prefix with/ --without-prefix without/
    """
    from moescope.console.pattern_rows import paired_pattern, pull_document
    from moescope.console.reading import Reader

    declared = paired_pattern(pattern)
    with Reader(settings_from(config, data)) as reader:
        document = pull_document(
            reader,
            with_prefix=with_prefix,
            without_prefix=without_prefix,
            size=size,
            phase=phase,
        )
    print_json(document) if as_json else _print_pull(declared, document)


def _show_pattern(pattern: Pattern, *, as_json: bool) -> None:
    if as_json:
        from dataclasses import asdict

        print_json(asdict(pattern))
        return
    print_pairs(
        {
            "pattern": pattern.name,
            "summary": pattern.summary,
            "evidence": pattern.evidence,
            "likely cause": pattern.likely_cause,
            "next step": pattern.next_step,
            "may page": pattern.pages,
            "found by": pattern.found_by,
            "experimental": pattern.experimental,
        }
    )


def _print_finding(row: dict[str, Any]) -> None:
    from moescope.console.reading import scope_words, window_words
    from moescope.console.times import shown

    print_pairs(
        {
            "finding": row["finding"],
            "pattern": row["pattern"],
            "open": row["open"],
            "may page": row["pages"],
            "model": f"{row['model']} {row['revision']}{', ' * bool(row['phase'])}{row['phase']}",
            "windows": f"{window_words(row)}, scope {scope_words(row)}",
            "began": shown(row["began_at"]),
            "ended": shown(row["ended_at"]),
            "confidence": row["confidence"],
            "likely cause": row["likely_cause"],
            "next step": row["next_step"],
        }
    )
    print("\nWhat was seen:\n")
    print_pairs(row["evidence"])


def _print_pull(pattern: Pattern, pull: dict[str, Any]) -> None:
    print_pairs({"pulled": pull["pulled"], "questions": pull["questions"]})
    print()
    layers = zip(
        pull["layers"],
        pull["similarity_with"],
        pull["similarity_without"],
        pull["difference"],
        pull["p_value"],
        strict=True,
    )
    print_table(("layer", "similarity with", "without", "difference", "p"), list(layers))
    if pull["pulled"]:
        print(f"\n{pattern.likely_cause} {pattern.next_step}")
