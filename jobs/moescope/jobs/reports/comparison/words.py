"""Buckets as people say them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.jobs.reports.words import count

if TYPE_CHECKING:
    from moescope.jobs.reports.comparison.schema import MarginAgreement, PositionAgreement


def position_words(each: PositionAgreement) -> str:
    """`4–15`, `65,536 on`."""
    first, last = each["first"], each["last"]
    if last is None:
        return f"{count(first)} on"
    return count(first) if first == last else f"{count(first)}–{count(last)}"


def margin_words(each: MarginAgreement) -> str:
    """`under 0.001`, `0.01–0.02`, `1 and more`."""
    low, high = each["at_least"], each["below"]
    if high is None:
        return f"{low:g} and more"
    return f"{low:g}–{high:g}" if low else f"under {high:g}"
