"""What a comparison shows, in sentences that stand by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moescope.core.patterns import PATTERN_BY_NAME
from moescope.jobs.reports.comparison.losses import LogLosses
from moescope.jobs.reports.comparison.schema import FindingText
from moescope.jobs.reports.comparison.words import layer_words, some_of
from moescope.jobs.reports.words import count, counted, figure

if TYPE_CHECKING:
    from moescope.core.patterns import Pattern
    from moescope.jobs.reports.comparison.schema import (
        ComparisonReport,
        Estimate,
        LimitReport,
        SideReport,
    )

FRAMEWORK_SKEW: Final = PATTERN_BY_NAME["framework_skew"]
ENGINE_FAULT: Final = PATTERN_BY_NAME["engine_fault"]
_MOST_OF_THEM = 0.9


def fine_percent(share: float | None) -> str:
    """A share in percent, with digits enough to tell 99.97 from 100."""
    if share is None:
        return "–"
    missing = min(share, 1.0 - share)
    if missing <= 0:
        return f"{100 * share:.0f} %"
    digits = 1 if missing >= 0.01 else 2 if missing >= 0.001 else 3  # noqa: PLR2004 (of a share)
    return f"{100 * share:.{digits}f} %"


def with_interval(estimate: Estimate | None) -> str:
    """A share, and from where to where it may be."""
    if estimate is None:
        return "–"
    value = fine_percent(estimate["value"])
    if estimate["low"] is None or estimate["high"] is None:
        return f"{value} (one request: no interval)"
    return f"{value} ({fine_percent(estimate['low'])} to {fine_percent(estimate['high'])})"


def side_titles(report: ComparisonReport) -> list[str]:
    """What each side is: its conditions, or else its folder; more where these are alike."""
    sides = [side for _, side in _sides(report)]
    paths = [side["path"].rstrip("/").split("/") for side in sides]
    titles = [side["selection"] or path[-1] for side, path in zip(sides, paths, strict=True)]
    if len(set(titles)) == len(titles):
        return titles
    shown = 1
    while shown < max(map(len, paths)) and len({"/".join(path[-shown:]) for path in paths}) == 1:
        shown += 1
    tails = ["/".join(path[-shown:]) for path in paths]
    return [
        f"{tail}, {side['selection']}" if side["selection"] else tail
        for side, tail in zip(sides, tails, strict=True)
    ]


def notes(report: ComparisonReport) -> list[str]:
    """What to know before any number is read: nothing in the numbers tells it."""
    a, b = report["a"], report["b"]
    found = [words for name, side in _sides(report) if (words := _losses(side).words(name))]
    if b is None:
        return found
    if a["models"] != b["models"]:
        found.append(
            f"The sides are of different models: A of {some_of(a['models'])}, B of"
            f" {some_of(b['models'])}. Unless one was made from the other (quantised, tuned, or"
            " just named differently), expert 7 of one has nothing to do with expert 7 of the"
            " other, and their agreement says nothing."
        )
    if a["revisions"] != b["revisions"]:
        found.append(
            f"The sides are of different revisions: A of {some_of(a['revisions'])}, B of"
            f" {some_of(b['revisions'])}. What differs may come from the weights."
        )
    return found


def _losses(side: SideReport) -> LogLosses:
    return LogLosses(
        records=side["records"],
        unreadable_records=side["unreadable_records"],
        removed_records=side["removed_records"],
        log_bytes=side["log_bytes"],
        unreadable_bytes=side["unreadable_bytes"],
        tail_bytes=side["tail_bytes"],
    )


def summary(report: ComparisonReport) -> list[str]:
    """The opening."""
    return [
        _what_was_compared(report),
        *_layers(report),
        *_agreement(report),
        *_stability(report),
        *_counts(report),
        *_margins(report),
        _engines(report),
        *_what_was_left_out(report),
        *(_limit(each) for each in report["limits"]),
    ]


def findings(report: ComparisonReport) -> list[FindingText]:
    """What has a name of its own."""
    found = []
    if report["b"] is not None and report["a"]["origins"] != report["b"]["origins"]:
        found.append(_framework_skew(report))
    for name, side in _sides(report):
        if side["faulty_rows"]:
            read = side["rows"] + side["faulty_rows"]
            text = (
                f"{count(side['faulty_rows'])} of {count(read)} rows of side {name} repeat"
                " an expert within a layer or name one that does not exist. No router chooses"
                " so; they were left out."
            )
            found.append(_finding(ENGINE_FAULT, text))
    return found


def _framework_skew(report: ComparisonReport) -> FindingText:
    all_layers = report["overall"]["all_layers"]
    compared = "compared " if _is_partial(report) else ""
    if all_layers["value"] == 1.0:
        where = " in the compared layers" if compared else ""
        text = (
            f"None: for all {counted(report['tokens'], 'token')} the engine executed the experts"
            f" that the router chose{where}."
        )
        return _finding(FRAMEWORK_SKEW, text, is_there=False)
    text = (
        f"What was executed is not what the router chose for"
        f" {fine_percent(1.0 - all_layers['value'])} of the tokens (in at least one"
        f" {compared}layer), most at layer {report['overall']['worst_layer']}."
    )
    return _finding(FRAMEWORK_SKEW, text)


def _finding(pattern: Pattern, text: str, *, is_there: bool = True) -> FindingText:
    """A finding; what is not there has no cause, and nothing has to be done about it."""
    return FindingText(
        name=pattern.name,
        text=text,
        likely_cause=pattern.likely_cause if is_there else None,
        next_step=pattern.next_step if is_there else None,
    )


def _what_was_compared(report: ComparisonReport) -> str:
    requests = counted(report["requests"], "request")
    if report["b"] is None:
        return (
            f"{counted(report['tokens'], 'repeated token')} of {requests} in"
            f" {side_titles(report)[0]} were compared with their first sighting."
        )
    joined = "content key" if report["by"] == "content" else "request id"
    a, b = side_titles(report)
    return (
        f"{counted(report['tokens'], 'token')} of {requests} are in both A ({a}) and B ({b}),"
        f" joined on {joined} and position."
    )


def _layers(report: ComparisonReport) -> list[str]:
    """Which layers nothing is said about."""
    only = [
        f"{name} alone has {layer_words(side['left_out_layers'])}"
        for name, side in _sides(report)
        if side["left_out_layers"]
    ]
    if not only:
        return []
    both = layer_words(report["layer_indices"])
    return [
        f"Compared: {both}, which both have. {' and '.join(only)}: nothing is said about those."
    ]


def _sides(report: ComparisonReport) -> list[tuple[str, SideReport]]:
    return [("A", report["a"])] + ([] if report["b"] is None else [("B", report["b"])])


def _is_partial(report: ComparisonReport) -> bool:
    """Whether a side has layers that were not compared."""
    return any(side["left_out_layers"] for _, side in _sides(report))


def _agreement(report: ComparisonReport) -> list[str]:
    whole = report["overall"]
    compared = "compared " if _is_partial(report) else ""
    if whole["all_layers"]["value"] == 1.0:
        return [f"Their routes are the same in every {compared}layer."]
    worst = min(report["layers"], key=lambda each: each["overlap"]["value"])
    best = max(report["layers"], key=lambda each: each["overlap"]["value"])
    top1 = (
        "; top-1 is unknown, because rank order is"
        if whole["top1"] is None
        else f"; top-1 agrees in {with_interval(whole['top1'])}"
    )
    if len(report["layers"]) == 1:
        return [
            (
                f"{with_interval(whole['all_layers'])} of the tokens have the same experts in"
                f" layer {worst['layer']}; {fine_percent(worst['overlap']['value'])} of a token's"
                f" experts are the same{top1}."
            )
        ]
    return [
        (
            f"{with_interval(whole['all_layers'])} of the tokens have the same experts in all"
            f" {len(report['layers'])} {compared}layers. In a layer"
            f" {fine_percent(worst['overlap']['value'])} (layer {worst['layer']}) to"
            f" {fine_percent(best['overlap']['value'])} (layer {best['layer']}) of a token's"
            f" experts are the same{top1}."
        )
    ]


def _stability(report: ComparisonReport) -> list[str]:
    """What the sides make of their own tokens, seen again: closer no two sides can be asked for."""
    parts = []
    for name, side in _sides(report):
        again = side["stability"]
        if again is not None:
            top1 = again["top1_stability"]
            parts.append(
                f"{name}: jaccard_stability {with_interval(again['jaccard_stability'])}, "
                + ("" if top1 is None else f"top1_stability {with_interval(top1)}, ")
                + f"of {counted(again['tokens'], 'token')}"
            )
    return [f"Seen again on the same side: {'; '.join(parts)}."] if parts else []


def _counts(report: ComparisonReport) -> list[str]:
    largest = max(report["layers"], key=lambda each: each["js_divergence"])
    told = (
        f"The counts of the same tokens differ by a Jensen–Shannon divergence of at most"
        f" {figure(largest['js_divergence'])} (layer {largest['layer']})"
    )
    if report["overall"]["all_layers"]["value"] == 1.0:
        return [f"{told}."]
    is_hidden = all(each["js_divergence"] < each["noise_floor"] for each in report["layers"])
    seen = "no count metric shows" if is_hidden else "count metrics show, too,"
    chance = f"chance alone gives {figure(largest['noise_floor'])} for as many tokens"
    return [f"{told}, where {chance}: {seen} that the routes differ."]


def _margins(report: ComparisonReport) -> list[str]:
    buckets = report["by_margin"]
    if buckets is None or not any(each["differing"] for each in buckets):
        return []
    reached = next(each for each in buckets if (each["differing_so_far"] or 0.0) >= _MOST_OF_THEM)
    differing = sum(each["differing"] for each in buckets)
    if reached["below"] is None:
        return [f"The {counted(differing, 'difference')} go up to the largest margins."]
    return [
        (
            f"{fine_percent(reached['differing_so_far'])} of the"
            f" {counted(differing, 'difference')} lie where A's choice was close, at a margin"
            f" under {figure(reached['below'])}."
        )
    ]


def _engines(report: ComparisonReport) -> str:
    """Which engines the logs name: two kernels of one engine agree as two engines do not."""
    named = [f"{name} {some_of(side['engines'])}" for name, side in _sides(report)]
    return f"Engine: {', '.join(named)}."


def _what_was_left_out(report: ComparisonReport) -> list[str]:
    parts = []
    for name, side in _sides(report):
        kinds = (
            (side["unmatched"], "seen once" if report["b"] is None else "without a partner"),
            (side["duplicates"], "seen again"),
            (side["faulty_rows"], "faulty"),
            (side["keyless_rows"], "without a content key"),
            (side["unreadable_records"], "unreadable records"),
        )
        told = ", ".join(f"{count(number)} {what}" for number, what in kinds if number)
        if told:
            parts.append(f"{name}: {told}")
    if report["other_content"]:
        parts.append(f"{count(report['other_content'])} pairs hold other tokens")
    return [f"Left out: {'; '.join(parts)}."] if parts else []


def _limit(limit: LimitReport) -> str:
    verdict = "Met" if limit["met"] else "Not met"
    chance = "; more requests are needed to be sure" if limit["within_chance"] else ""
    return (
        f"{verdict}: {limit['name']}, {fine_percent(limit['value'])} where at least"
        f" {fine_percent(limit['limit'])} is asked for{chance}."
    )
