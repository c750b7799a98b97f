"""The opening of a report: what was calibrated and what that means, in plain words."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Literal

from moescope.core.thresholds import Standing
from moescope.core.vocabulary import WindowKind
from moescope.jobs.calibration.sample import UNIT_OF
from moescope.jobs.reports.words import count, counted, percent, span, spoken_moment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moescope.jobs.reports.schema import (
        BaselineFacts,
        Changes,
        Fired,
        KeyLines,
        Line,
        Paging,
        Rate,
        VersionFacts,
    )

FIRM_UNITS = 1_000


def opening(
    *,
    version: VersionFacts,
    baseline: BaselineFacts,
    judged: Sequence[KeyLines],
    fired: Fired,
    changes: Changes,
) -> list[str]:
    """Sentences that need no knowledge of moescope."""
    return [
        (
            f"Version {version['version']} says what is normal for {version['model']}, revision"
            f" {version['revision']}. Everything in it was read from healthy traffic: baseline"
            f" {baseline['baseline']}, version {baseline['version']}{_from_to(baseline)}."
        ),
        *_basis(version, judged),
        _standing(judged),
        *_held_out(fired),
        _paging(fired["paging"]),
        *_changes(version, changes),
        _next(version),
    ]


def _from_to(baseline: BaselineFacts) -> str:
    first, last = baseline["first_time"], baseline["last_time"]
    if first is None or last is None:
        return ""
    seconds = (_time(last) - _time(first)).total_seconds()
    return (
        f", of which {span(seconds)} are stored, from {spoken_moment(first)} to"
        f" {spoken_moment(last)}"
    )


def _time(iso: str) -> datetime:
    return datetime.fromisoformat(iso)


def lines_set(judged: Sequence[KeyLines]) -> tuple[int, int]:
    """Metric × layer pairs with lines, and how many of them are firm."""
    total = firm = 0
    for each in judged:
        for line in each["lines"]:
            number = sum(centre is not None for centre in line["centre"])
            total += number
            firm += number if line["standing"] == Standing.FIRM else 0
    return total, firm


def unit_name(window_kind: str) -> str:
    """What counts as one independent piece of evidence."""
    return str(UNIT_OF.get(WindowKind(window_kind), "unit"))


def _basis(version: VersionFacts, judged: Sequence[KeyLines]) -> list[str]:
    most: dict[tuple[str, str], int] = {}
    for each in judged:
        at = each["key"]["phase"], unit_name(each["key"]["window_kind"])
        units = max((line["units"] for line in each["lines"]), default=0)
        most[at] = max(most.get(at, 0), units)
    if not most:
        return []
    parts = [f"{counted(units, unit)} of {phase}" for (phase, unit), units in most.items()]
    block_us = version["summary"].get("block_us")
    block = f" of {span(block_us / 1e6)}" if block_us else ""
    return [
        (
            f"The lines rest on up to {_listed(parts)}. Whole requests, tasks or blocks of time"
            f"{block} count as evidence, not windows: the windows of one request resemble each"
            " other."
        )
    ]


def _standing(judged: Sequence[KeyLines]) -> str:
    total, firm = lines_set(judged)
    if not total:
        return "No line could be set: see what was left out, and why."
    keys = sum(bool(each["lines"]) for each in judged)
    opening_words = (
        f"It holds lines for {count(total)} pairs of metric and layer in"
        f" {counted(keys, 'kind')} of windows."
    )
    if firm == total:
        return f"{opening_words} All are firm: they rest on at least {count(FIRM_UNITS)} units."
    if not firm:
        return (
            f"{opening_words} All are provisional: with fewer than {count(FIRM_UNITS)} requests or"
            " blocks the far tail is a guess. Use them to look, and read their intervals."
        )
    return (
        f"{opening_words} {percent(firm / total)} are firm; the others are provisional, which"
        f" means that they rest on fewer than {count(FIRM_UNITS)} requests or blocks: good for"
        " looking, uncertain in the far tail."
    )


def inside_band(rate: Rate, level: Literal["warn", "red"]) -> bool:
    """Whether a held-out rate is what chance allows; without a band nothing says otherwise."""
    band = rate["warn_band"] if level == "warn" else rate["red_band"]
    return band is None or bool(band[0] <= rate[level] <= band[1])


def _held_out(fired: Fired) -> list[str]:
    rates = fired["held_out"]
    if not rates:
        return [
            (
                "The lines were not tried on healthy traffic that calibration did not see: how"
                " often they fire on health is not known."
            )
        ]
    inside = sum(inside_band(rate, "red") for rate in rates)
    ordered = sorted(rate["red"] for rate in rates)
    middle = ordered[len(ordered) // 2]
    return [
        (
            "On healthy traffic that calibration did not see, the middle one of"
            f" {counted(len(rates), 'check')} had {percent(middle)} of its windows past red (red"
            " lines are made for 1 %, and for 2 % where both high and low values are bad);"
            f" {count(inside)} are within what chance allows."
        )
    ]


def _paging(rules: Sequence[Paging]) -> str:
    if not rules:
        return "It has no paging rule: windows get levels, and nobody is paged."
    known = [rule for rule in rules if not rule["only_bound"]]
    words = (
        f"{counted(len(rules), 'rule')} decide when red windows page somebody. On healthy traffic"
    )
    if len(rules) == 1:
        words = "One rule decides when red windows page somebody. On healthy traffic"
    if len(known) == len(rules):
        pages = sum(rule["expected_per_day"] for rule in rules)
        return f"{words} all of them together page {_per_day(pages)}."
    bound = max(rule["bound_per_day"] for rule in rules if rule["only_bound"])
    return (
        f"{words} the baseline is too short to say how often"
        f" {'all' if not known else 'some'} of them page; it only shows at most {bound:.3g} pages a"
        " day per rule."
    )


def _changes(version: VersionFacts, changes: Changes) -> list[str]:
    if changes["against"] is None:
        return ["No version was in force before it."]
    held = (version["summary"].get("change_guard") or {}).get("held", False)
    return [
        (
            f"Against {changes['against']}, in force before it,"
            f" {count(changes['beyond_interval'])} of {counted(changes['compared'], 'line')} moved"
            " by more than chance explains."
            + (" They moved so far that a person should look before it judges." if held else "")
        )
    ]


def _next(version: VersionFacts) -> str:
    if version["status"] == "draft":
        return "It is a draft: no window is judged by it until somebody activates it."
    if version["status"] == "active":
        return (
            "It is active: windows are judged by it when they close, and stored windows before it"
            " keep their levels."
        )
    return "It is retired: another version judges, or none."


def _per_day(pages: float) -> str:
    if pages == 0:
        return "never in what was replayed"
    if pages < 1:
        return f"about once in {1 / pages:.2g} days"
    return f"about {pages:.2g} times a day"


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def main_line(lines: Sequence[Line]) -> Line:
    """The metric that says most about a kind of windows."""
    by_name = {line["metric"]: line for line in lines}
    for name in ("js_trailing", "js_uniform"):
        if name in by_name:
            return by_name[name]
    return lines[0]
