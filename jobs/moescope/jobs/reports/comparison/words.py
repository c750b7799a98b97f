"""Buckets and layers as people say them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.jobs.reports.words import count, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from moescope.jobs.reports.comparison.schema import MarginAgreement, PositionAgreement

_LONGEST_QUOTE = 80
_MOST_NAMES = 10


def cut(text: str) -> str:
    """What somebody typed or a producer wrote, on a line that is not longer than a screen's."""
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}…"


def some_of(names: Iterable[str]) -> str:
    """Names in order, the first ten of them; those that are empty count as not given."""
    known = [cut(printable(name)) for name in sorted(set(names)) if name]
    more = len(known) - _MOST_NAMES
    told = ", ".join(known[:_MOST_NAMES]) or "not named"
    return f"{told} and {count(more)} more" if more > 0 else told


def position_words(each: PositionAgreement) -> str:
    """`4–15`, `65,536 on`."""
    first, last = each["first"], each["last"]
    if last is None:
        return f"{count(first)} on"
    return count(first) if first == last else f"{count(first)}–{count(last)}"


def layer_words(layers: Sequence[int]) -> str:
    """`layer 3`, `layers 0–15`, `layers 1, 3 and 5–9`; ascending."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    parts: list[str] = []
    for first, *rest in runs:
        is_range = len(rest) > 1  # two neighbours are as short
        parts += [f"{first}–{rest[-1]}"] if is_range else map(str, (first, *rest))
    listed = ", ".join(parts[:-1])
    return f"layer{'' if len(layers) == 1 else 's'} {f'{listed} and ' if listed else ''}{parts[-1]}"


def margin_words(each: MarginAgreement) -> str:
    """`under 0.001`, `0.01–0.02`, `1 and more`."""
    low, high = each["at_least"], each["below"]
    if high is None:
        return f"{low:g} and more"
    return f"{low:g}–{high:g}" if low else f"under {high:g}"
