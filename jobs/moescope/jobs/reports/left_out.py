"""What has no line, and why."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from moescope.core.metrics import JUDGED_METRICS, Needs
from moescope.jobs.reports.schema import LeftOut
from moescope.jobs.reports.words import counted, windows_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from moescope.jobs.reports.schema import KeyLines

_MISSING = {
    Needs.COUNTS: "no window of the baseline has a value",
    Needs.DROPS: "the producer does not tell how many assignments expert capacity dropped",
    Needs.REFERENCE: "its reference did not exist yet: a trailing reference needs two periods of"
    " 5 min before a window, a baseline reference a calibrated version",
    Needs.SCORES: "the producer ships expert ids without router scores",
    Needs.PAIRS: "it needs consecutive tokens of a request, which these windows do not hold",
    Needs.RANKS: "the producer does not tell in which order a token's experts were ranked",
    Needs.POSITIONS: "too few different requests were seen at the same positions",
    Needs.REQUESTS: "too few requests ran at the same time",
    Needs.PASSES: "the producer does not tell which tokens one forward pass computed",
    Needs.PLACEMENT: "the producer does not tell on which rank an expert lies",
}


def left_out(judged: Sequence[KeyLines], layers: Sequence[int]) -> list[LeftOut]:
    """Metrics without lines by kind of window, and layers without lines by metric."""
    return [*_metrics_without_lines(judged), *_layers_without_lines(judged, layers)]


def _metrics_without_lines(judged: Sequence[KeyLines]) -> Iterable[LeftOut]:
    found: dict[tuple[str, str, int, int], set[str]] = defaultdict(set)
    for each in judged:
        key = each["key"]
        found[key["phase"], key["window_kind"], key["size"], key["stride"]] |= {
            line["metric"] for line in each["lines"]
        }
    missing: dict[str, list[str]] = defaultdict(list)
    for (phase, kind, size, stride), metrics in found.items():
        words = windows_words(kind, size, stride)
        for metric in JUDGED_METRICS:
            if metric.name not in metrics:
                missing[metric.name].append(f"{phase} {words[0].lower()}{words[1:]}")
    for metric in JUDGED_METRICS:
        where = missing[metric.name]
        if where:
            everywhere = len(where) == len(found)
            yield LeftOut(
                what=f"{metric.title} ({metric.name}): "
                + ("any windows" if everywhere else "; ".join(where)),
                why=f"No line. Most likely {_MISSING[metric.needs]}, or the baseline holds fewer"
                " requests or blocks than a line needs.",
            )


def _layers_without_lines(judged: Sequence[KeyLines], layers: Sequence[int]) -> Iterable[LeftOut]:
    holes: dict[str, set[int]] = defaultdict(set)
    for each in judged:
        for line in each["lines"]:
            holes[line["metric"]] |= {
                layer
                for layer, centre in zip(layers, line["centre"], strict=True)
                if centre is None
            }
    for name, without in holes.items():
        if without:
            shown = ", ".join(map(str, sorted(without)[:20]))
            yield LeftOut(
                what=f"{name}: {counted(len(without), 'layer')} ({shown})",
                why="No line in some kind of window: the values of these layers were constant, or"
                " missing.",
            )
