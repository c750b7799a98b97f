"""A comparison in a few lines of text, for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.jobs.reports.comparison.sentences import fine_percent
from moescope.jobs.reports.comparison.words import margin_words, position_words
from moescope.jobs.reports.words import figure, printable

if TYPE_CHECKING:
    from moescope.jobs.reports.comparison.schema import ComparisonReport

LAYER_HEAD = ("layer", "in common", "jaccard", "same set", "same top-1", "divergence of counts")


def opening_lines(report: ComparisonReport) -> list[str]:
    """Notes, summary and findings; names from producers cannot move the cursor."""
    noted = [f"Note: {note}" for note in report["notes"]]
    named = []
    for finding in report["findings"]:
        named.append(f"{finding['name']}: {finding['text']}")
        if finding["likely_cause"] is not None:
            named.append(f"  likely cause: {finding['likely_cause']}")
        if finding["next_step"] is not None:
            named.append(f"  next step: {finding['next_step']}")
    return [printable(line) for line in (*noted, *report["summary"], *named)]


def layer_rows(report: ComparisonReport) -> list[list[str]]:
    """Rows under `LAYER_HEAD`."""
    return [
        [
            str(each["layer"]),
            fine_percent(each["overlap"]["value"]),
            fine_percent(each["jaccard"]["value"]),
            fine_percent(each["same_set"]["value"]),
            fine_percent(None if each["top1"] is None else each["top1"]["value"]),
            figure(each["js_divergence"]),
        ]
        for each in report["layers"]
    ]


def bucket_lines(report: ComparisonReport) -> list[str]:
    """Agreement by position and by margin."""
    lines = [
        f"positions {position_words(each)}: {fine_percent(each['all_layers']['value'])} of"
        f" {each['tokens']:,} tokens agree in all layers"
        for each in report["by_position"]
    ]
    return lines + [
        f"margin {margin_words(each)}: {each['differing']:,} of {each['token_layers']:,} sets"
        " differ"
        for each in report["by_margin"] or ()
    ]
