"""Figures as rows of a table, for the terminal and for the page."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.figures import Baseline, Figure, Profile, Result

HEAD = ("what", "target", "median", "best", "ratio", "met?")
_THREE_DIGITS = 100
_TWO_DIGITS = 10


class Row(NamedTuple):
    """One line."""

    what: str
    target: str
    median: str
    best: str
    ratio: str
    met: str


def number(value: float) -> str:
    """Three significant digits or so."""
    if abs(value) >= _THREE_DIGITS:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= _TWO_DIGITS else f"{value:.2f}"


def rows(result: Result) -> Iterator[Row]:
    """Every figure, each followed by its baselines."""
    for figure in result.figures:
        yield _own(figure)
        for baseline in figure.baselines:
            yield _other(figure, baseline)


def _own(figure: Figure) -> Row:
    sign = "≥" if figure.better == "higher" else "≤"
    target = "" if figure.target is None else f"{sign} {number(figure.target)}"
    return Row(
        f"{figure.what} ({figure.unit})",
        target,
        number(figure.median),
        number(figure.best),
        "",
        figure.verdict(),
    )


def _other(figure: Figure, baseline: Baseline) -> Row:
    ratios = figure.ratios(baseline)
    best = max(baseline.values) if figure.better == "higher" else min(baseline.values)
    met = ""
    if baseline.target is not None:
        met = "no"
        if max(ratios) >= baseline.target:
            met = "best run only"
        if median(ratios) >= baseline.target:
            met = "yes"
    return Row(
        f"↳ {baseline.name}",
        "" if baseline.target is None else f"≥ {number(baseline.target)} ×",
        number(median(baseline.values)),
        number(best),
        f"{number(median(ratios))} ×",
        met,
    )


def terminal_table(result: Result) -> str:
    """A table in columns, and the profiles below it."""
    lines = [HEAD, *rows(result)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    text = [f"\n{result.title}{'  (quick: not figures)' if result.quick else ''}"]
    for line in lines:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        text.append("  ".join(cells).rstrip())
    for profile in result.profiles:
        text.append(f"\n{profile.title}")
        text += ["  ".join(cells) for cells in profile_cells(profile)]
    return "\n".join(text)


def profile_cells(profile: Profile) -> list[tuple[str, str, str, str, str]]:
    """Stages by CPU time: name, calls, CPU seconds, share, wall seconds."""
    total = sum(stage.cpu_s for stage in profile.stages) or 1.0
    ordered = sorted(profile.stages, key=lambda stage: -stage.cpu_s)
    return [
        (
            stage.name,
            f"{stage.calls:,}",
            f"{stage.cpu_s:.3f} s",
            f"{stage.cpu_s / total:.0%}",
            f"{stage.wall_s:.3f} s",
        )
        for stage in ordered
    ]
