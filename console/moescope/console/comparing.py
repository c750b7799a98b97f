"""What `moescope report compare` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moescope.console.output import note, print_table
from moescope.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from moescope.jobs.reports.comparison import ComparisonReport, Limits

_MOST_SIDES: Final = 2


def compared(
    paths: Sequence[Path],
    conditions: tuple[Sequence[str], Sequence[str]],
    by: str,
    limits: Limits,
    *,
    repeats: bool,
    fewest_pairs: int,
) -> ComparisonReport:
    """Compare the logs under one or two paths.

    Args:
        paths: A, or A and B.
        conditions: Of A, and of B.
        by: `content` or `request`.
        limits: What the agreement has to reach.
        repeats: Compare A with itself.
        fewest_pairs: With fewer there is no report.

    Raises:
        InputError: The request contradicts itself, or the logs do not fit together.
        InsufficientDataError: There are too few pairs.
    """
    from moescope.jobs.reports.comparison import compare, find_side
    from moescope.jobs.reports.comparison.words import cut

    if len(paths) > _MOST_SIDES:
        raise InputError(f"{len(paths)} logs cannot be compared.", next_step="Name one or two.")
    if repeats and (len(paths) > 1 or conditions[1]):
        raise InputError(
            "Repeats are within one side.", next_step="Leave the second path and --b out."
        )
    if by not in {"content", "request"}:
        raise InputError(
            f"Rows cannot be joined on {cut(repr(by))}.", next_step="Choose content or request."
        )
    if fewest_pairs < 1:
        raise InputError("--fewest-pairs is at least 1.")
    for share in (limits.overlap, limits.all_layers):
        if share is not None and not 0.0 <= share <= 1.0:
            raise InputError(
                f"A limit of {share:g} is no share.", next_step="Give a number from 0 to 1."
            )
    a = find_side(paths[0], conditions[0])
    b = None if repeats else find_side(paths[-1], conditions[1])
    return compare(
        a,
        b,
        by="content" if by == "content" else "request",
        limits=limits,
        fewest_pairs=fewest_pairs,
    )


def print_comparison(report: ComparisonReport) -> None:
    """The report for a terminal."""
    from moescope.jobs.reports.comparison.terminal import (
        LAYER_HEAD,
        bucket_lines,
        layer_rows,
        opening_lines,
    )

    for line in opening_lines(report):
        print(line)
    print()
    print_table(LAYER_HEAD, layer_rows(report))
    print()
    for line in bucket_lines(report):
        print(line)


def check_page(out: Path) -> None:
    """Refuse a page that cannot be written, before anything is computed for it.

    Raises:
        InputError: It cannot.
    """
    from moescope.jobs.reports.comparison.page import check_writable

    check_writable(out)


def write_page(report: ComparisonReport, out: Path) -> None:
    """Write the page and its JSON twin, and say where."""
    from moescope.jobs.reports.comparison.page import write_comparison

    page, numbers = write_comparison(report, out)
    note(f"Wrote {page} and {numbers}.")
