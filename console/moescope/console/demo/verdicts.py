"""What came of an incident, against what was expected of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moescope.console.demo.scorecard import Outcome

MOST: Final = 0.5
TOKEN: Final = "token:128"
TIME: Final = "time:5000000"
AS_EXPECTED: Final = "as expected"


def deviations(outcome: Outcome) -> list[str]:
    """Where an outcome differs from what was expected; empty: nowhere."""
    return list(_deviations(outcome))


def verdict(outcome: Outcome) -> str:
    """In a few words."""
    expected = outcome.stretch.expected
    if expected.unjudged:
        return f"not judged: {expected.unjudged}"
    found = deviations(outcome)
    if not found:
        return AS_EXPECTED
    return ("experimental: " if expected.experimental else "") + "; ".join(found)


def _deviations(outcome: Outcome) -> Iterator[str]:
    expected = outcome.stretch.expected
    if expected.unjudged:
        return
    if expected.coverage and not outcome.uncovered_s:
        yield "coverage did not drop"
    yield from _naming(outcome)
    for wanted, kind, words in (
        (expected.token, TOKEN, "token windows red"),
        (expected.time, TIME, "time windows red"),
    ):
        if wanted:
            yield from _too_seldom(words, outcome.shown[kind].red_blocks, outcome.stretch.blocks)
    if expected.pages is False and outcome.pages:
        yield f"paged: {', '.join(outcome.pages)}"
    if expected.pages and not outcome.pages:
        yield "joined an open page" if outcome.joined else "no page"


def _naming(outcome: Outcome) -> Iterator[str]:
    expected = outcome.stretch.expected
    if expected.paired and not outcome.pulled:
        yield "not shown"
    elif expected.pattern and not expected.paired:
        yield from _too_seldom("named", outcome.named, outcome.stretch.blocks)
    for name, blocks in outcome.false_names.items():
        yield f"{name} named in {blocks} of {outcome.stretch.blocks} min"


def _too_seldom(words: str, blocks: int, of: int) -> Iterator[str]:
    if blocks < MOST * of:
        yield f"{words} in {blocks} of {of} min"
