"""`moescope kafka`: topics and dead letters of the fleet's broker."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moescope.console.options import (
    AsJson,
    ConfigFile,
    DataDirectory,
    Yes,
    settings_from,
)
from moescope.console.output import confirm, counted, note, print_json, print_pairs, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moescope.console.kafka.topic_plan import Difference

app = typer.Typer(
    help="Topics and dead letters of the fleet's Kafka.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Only = Annotated[str, typer.Option(metavar="REASON", help="Only letters with this reason.")]
Since = Annotated[
    str, typer.Option(metavar="TIME", help="Only letters published since then, ISO 8601.")
]
Key = Annotated[str, typer.Argument(metavar="PARTITION:OFFSET", help="A letter, for example 3:17.")]
_Why = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why; printed with the result, not kept.")
]


@app.command("topics-check")
def topics_check(
    config: ConfigFile = None, data: DataDirectory = None, as_json: AsJson = False
) -> None:
    """Compare the broker's topics with what the settings declare; exit code 1 when they differ.

    Example: moescope kafka topics-check --config moescope.toml
    """
    from dataclasses import asdict

    from moescope.console.kafka.topic_work import check_topics

    found = check_topics(settings_from(config, data))
    if as_json:
        print_json(
            {
                "differences": [asdict(each) for each in found.differences],
                "cautions": found.cautions,
            }
        )
    else:
        _print_differences(found.differences)
        _note_all(found.cautions)
    sys.stdout.flush()
    if found.differences:
        raise typer.Exit(1)


@app.command("topics-apply")
def topics_apply(
    config: ConfigFile = None,
    data: DataDirectory = None,
    as_json: AsJson = False,
    yes: Yes = False,
    reason: _Why = "",
) -> None:
    """Make missing topics, and set configurations that differ; a second time it does nothing.

    The number of partitions of a topic that exists is never changed: exit code 2, and what to do.

    Example: moescope kafka topics-apply --yes --reason "first installation"
    """
    from dataclasses import asdict

    from moescope.console.kafka.topic_work import apply_topics
    from moescope.console.performing import account

    def agree(todo: list[Difference]) -> None:
        if not as_json:
            _print_differences(todo)
        if not yes:
            confirm(f"Make {counted(len(todo), 'change')}?")

    done, cautions = apply_topics(settings_from(config, data), agree)
    if as_json:
        print_json(
            {
                "done": [asdict(each) for each in done],
                "cautions": cautions,
                "author": account(),
                "reason": reason,
            }
        )
        return
    note(f"{counted(len(done), 'change')} made by {account()}{f': {reason}' if reason else ''}")
    _note_all(cautions)


@app.command("dlq-list")
def dlq_list(
    only: Only = "",
    since: Since = "",
    limit: Annotated[int, typer.Option(min=1, help="Most letters: the newest.")] = 50,
    config: ConfigFile = None,
    data: DataDirectory = None,
    as_json: AsJson = False,
) -> None:
    """List the dead letters of the topic, newest last.

    Example: moescope kafka dlq-list --only unknown_version --since 2026-11-30T10:00
    """
    from moescope.console.kafka.letter_view import letter_row
    from moescope.console.kafka.letters import Selection, known_reason, opened_letters
    from moescope.console.times import shown, time_us

    selection = Selection(
        reason=known_reason(only), since_us=time_us(since) if since else None, newest=limit
    )
    with opened_letters(settings_from(config, data)) as topic:
        rows = [letter_row(each) for each in topic.letters(selection)]
    if as_json:
        print_json(rows)
        return
    print_table(
        ("letter", "published (UTC)", "reason", "bytes", "replay", "detail"),
        [
            (
                each["key"], shown(each["published_us"]), each["reason"], each["payload_bytes"],
                each["replay"]["state"] if each["replay"] else "", each["detail"],
            )
            for each in rows
        ],
    )  # fmt: skip


@app.command("dlq-show")
def dlq_show(
    letter: Key,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Save the payload there; a new file."),
    ] = None,
    config: ConfigFile = None,
    data: DataDirectory = None,
    as_json: AsJson = False,
) -> None:
    """Show a dead letter: where it came from, what this version reads in it, its first bytes.

    Example: moescope kafka dlq-show 3:17 --output letter.bin
    """
    from moescope.console.kafka.letter_view import (
        batch_summary,
        hex_view,
        letter_pairs,
        letter_row,
    )
    from moescope.console.kafka.letter_work import read_letter, save_payload
    from moescope.console.times import shown

    found, payload = read_letter(settings_from(config, data), letter)
    summary = batch_summary(payload)
    if output is not None:
        save_payload(found, payload, output)
    if as_json:
        print_json({**letter_row(found), "batch": summary, "first_bytes": hex_view(payload)})
        return
    print_pairs(letter_pairs(found))
    print()
    if summary.get("watermark_us") is not None:
        summary["watermark (UTC)"] = shown(summary.pop("watermark_us"))
    print_pairs(summary)
    print()
    for line in hex_view(payload):
        print(line)


@app.command("dlq-replay")
def dlq_replay(
    letters: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PARTITION:OFFSET]…", help="Only these; by default all."),
    ] = None,
    only: Only = "",
    since: Since = "",
    again: Annotated[
        bool, typer.Option("--again", help="Also what was replayed before: it counts once more.")
    ] = False,
    config: ConfigFile = None,
    data: DataDirectory = None,
    as_json: AsJson = False,
    yes: Yes = False,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the topic.")
    ] = "",
) -> None:
    """Write dead letters that this version can read to the routing topic, each once.

    Each goes out under a new incarnation of its node. What still cannot be read is listed, and
    stays as it is. Rows count where their windows are still open for late ones.

    Example: moescope kafka dlq-replay --only unknown_version --yes --reason "readers upgraded"
    """
    from dataclasses import asdict

    from moescope.console.kafka.letter_work import replay
    from moescope.console.kafka.letters import Selection, full_key, known_reason
    from moescope.console.kafka.replay_batches import LATE_SECONDS
    from moescope.console.times import time_us

    def agree(number: int) -> None:
        if number and not yes:
            confirm(f"Try to replay {counted(number, 'letter')}?")

    settings = settings_from(config, data)
    selection = Selection(
        keys=frozenset(full_key(settings, each) for each in letters or ()),
        reason=known_reason(only),
        since_us=time_us(since) if since else None,
    )
    lines = replay(settings, selection, agree, again=again, reason=reason)
    if as_json:
        print_json([asdict(each) for each in lines])
        return
    print_table(
        ("letter", "outcome", "node", "sequence", "why"),
        [(each.key, each.outcome, each.node, each.sequence, each.why) for each in lines],
    )
    late = sum(each.has_late_rows for each in lines)
    if late:
        note(
            f"{counted(late, 'replayed letter')} held rows older than {LATE_SECONDS // 60:g} "
            "minutes: those are counted as late, and change no window that has been finished"
        )
    replayed = sum(each.outcome == "replayed" for each in lines)
    note(f"{replayed:,} replayed, {len(lines) - replayed:,} left")


def _print_differences(found: Sequence[Difference]) -> None:
    if not found:
        note("the topics are as declared")
        return
    print_table(
        ("topic", "what", "wanted", "found", "remedy"),
        [(each.topic, each.what, each.wanted, each.found, each.remedy.value) for each in found],
    )
    _note_all([each.next_step for each in found if each.next_step])


def _note_all(texts: Sequence[str]) -> None:
    for text in texts:
        note(text)
