"""The few numbers at the top of a report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moescope.jobs.reports.sentences import inside_band, lines_set, unit_name
from moescope.jobs.reports.words import NOTHING, count, figure, percent

if TYPE_CHECKING:
    from moescope.jobs.reports.schema import CalibrationReport


@dataclass(frozen=True, slots=True)
class Tile:
    """One number."""

    name: str
    value: str
    note: str


def tiles(report: CalibrationReport) -> list[Tile]:
    """Evidence, lines, firmness, false alarms, pages."""
    return [*_evidence(report), _lines(report), _false_alarms(report), _pages(report)]


def _evidence(report: CalibrationReport) -> list[Tile]:
    most: dict[str, int] = {}
    for each in report["judged"]:
        unit = unit_name(each["key"]["window_kind"])
        most[unit] = max([most.get(unit, 0), *(line["units"] for line in each["lines"])])
    notes = {
        "request": "at most, behind token windows",
        "task": "at most, behind task windows",
        "block": "of time at most, behind windows over all requests",
    }
    return [
        Tile(f"{unit.capitalize()}s", count(units), notes.get(unit, "at most"))
        for unit, units in sorted(most.items(), reverse=True)
    ]


def _lines(report: CalibrationReport) -> Tile:
    total, firm = lines_set(report["judged"])
    return Tile(
        "Lines",
        count(total),
        f"metric × layer; {percent(firm / total)} firm" if total else "none could be set",
    )


def _false_alarms(report: CalibrationReport) -> Tile:
    rates = report["fired"]["held_out"]
    name = "Held-out checks as expected"
    if not rates:
        return Tile(name, NOTHING, "nothing was held out")
    inside = sum(inside_band(rate, "red") for rate in rates)
    return Tile(
        name,
        f"{count(inside)} of {count(len(rates))}",
        "red rate within chance of 1 %, or 2 % of two sides",
    )


def _pages(report: CalibrationReport) -> Tile:
    rules = report["fired"]["paging"]
    name = "False pages a day"
    if not rules:
        return Tile(name, NOTHING, "no paging rule")
    if any(rule["only_bound"] for rule in rules):
        bound = max(rule["bound_per_day"] for rule in rules)
        return Tile(name, f"≤ {figure(bound)}", "per rule; the baseline is too short for more")
    pages = sum(rule["expected_per_day"] for rule in rules)
    return Tile(name, figure(pages), "all rules together, on the baseline")
