"""The demo's screen."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any

from moescope.console.demo.incidents import TINY_MOE
from moescope.console.demo.scorecard import WINDOW_KINDS
from moescope.console.demo.verdicts import AS_EXPECTED, verdict
from moescope.console.output import print_pairs, print_table

if TYPE_CHECKING:
    from moescope.console.demo.running import DemoResult
    from moescope.console.demo.scorecard import Outcome, Shown

_KIND_NAMES = ("token 128", "5 s", "60 s")


def print_report(result: DemoResult) -> None:
    """Print the totals, the scorecard, false alarms, and where to go on."""
    _totals(result)
    recorded = [each for each in result.outcomes if each.stretch.model == TINY_MOE]
    incidents = [each for each in recorded if not each.stretch.held_out]
    if incidents:
        print("\nReal routing of a small trained model. What the columns say:\n")
        print_pairs(
            {
                "from, min": "begin in event time (UTC), and length in minutes",
                "red": "share of windows past a red line in at least half of the layers",
                "mostly": "the metric that is red most often in them",
                "named": "minutes in which the expected pattern was named; then other names",
                "delay s": "median, from a red minute's begin to its first red window's close",
                "page": "from the begin until the first page of its own could be sent, in s",
            }
        )
        print()
        _scorecard(incidents)
        if any(
            page.startswith("routing")
            for each in incidents
            if each.stretch.name.endswith("_cached")
            for page in each.pages
        ):
            print(
                "\nBehind a cached prefix nothing of it is computed, and no fault is named. But"
                "\nJSON that follows other text is routed differently, and the family `routing`"
                "\npages for that (docs/decisions/0013-context-moves-routing.md)."
            )
        _paired(result)
    _health(recorded, result)
    simulated = [each for each in result.outcomes if each.stretch.model != TINY_MOE]
    print("\nA simulated fleet: incidents planted on some nodes, or on all.\n")
    _scorecard(simulated)
    tried = [*incidents, *simulated]
    expected = sum(verdict(each) == AS_EXPECTED for each in tried)
    print(
        f"\n{expected} of {len(tried)} incidents and healthy twins came out as expected; the others"
        " are shown as they are\n(docs/how-to/read-the-scorecard.md, docs/decisions/0014)."
    )
    print(f"\nCalibration report: {', '.join(_report_files(result)) or 'none'}")
    print(
        "Go on: .venv/bin/moescope alert list --data "
        f"{result.data}; .venv/bin/moescope pattern list --data {result.data}"
    )
    print(f"The demo's settings are in {result.data}/moescope.toml (--config).")


def as_document(result: DemoResult) -> dict[str, Any]:
    """Everything as JSON values; the scorecard with its verdicts."""
    document = asdict(result)
    document["facts"]["checked"] = result.facts.checked and result.facts.checked.to_json()
    document["outcomes"] = [
        {
            **asdict(outcome),
            "verdict": verdict(outcome),
            "named": outcome.named,
            "false_names": outcome.false_names,
        }
        for outcome in result.outcomes
    ]
    return document


def _totals(result: DemoResult) -> None:
    facts = result.facts
    simulated = result.simulated
    replayed = result.replayed
    print("\nTotals\n")
    print_pairs(
        {
            **(
                {}
                if replayed is None
                else {
                    "recorded tokens played": replayed["rows"],
                    "recorded assignments": replayed["assignments"],
                    "recorded bytes on the wire": replayed["wire_bytes"],
                }
            ),
            "simulated nodes": len(simulated["nodes"]),
            "simulated requests": simulated["requests"],
            "simulated tokens": simulated["tokens"],
            "simulated assignments": simulated["assignments"],
            "simulated bytes on the wire": (
                f"{simulated['wire_bytes']:,} (JSON lines: about "
                f"{simulated['jsonl_equivalent_bytes'] / max(simulated['wire_bytes'], 1):.0f} x)"
            ),
            "event time": f"{facts.event_minutes:,} min",
            "wall clock": f"{result.seconds:.0f} s",
            "dead letters": result.processed["dead_letters"],
            "window rows": facts.window_rows,
            "threshold lines": facts.lines,
        }
    )
    print("\nThresholds, calibrated from the healthy part by the job `calibrate`:\n")
    print_table(
        ("version", "model", "windows", "units", "lines", "firm", "provisional"),
        [tuple(row.values()) for row in facts.thresholds],
    )


def _scorecard(found: list[Outcome]) -> None:
    print_table(
        (
            "incident", "from", "min", *(f"red {name}" for name in _KIND_NAMES), "mostly",
            "expected", "named", "also named", "delay s", "page", "verdict",
        ),
        [_row(outcome) for outcome in found],
    )  # fmt: skip


def _row(outcome: Outcome) -> tuple[Any, ...]:
    shown = [outcome.shown[f"{kind}:{size}"] for kind, size in WINDOW_KINDS]
    delays = [each.delay_s for each in shown if each.delay_s is not None]
    expected = outcome.stretch.expected
    named = "" if not expected.pattern or expected.paired else f"{outcome.named}"
    if expected.coverage:
        named = f"{outcome.uncovered_s} s unseen"
    return (
        outcome.stretch.name,
        _clock(outcome.stretch.start_us),
        outcome.stretch.blocks,
        *(_percent(each) for each in shown),
        max(shown, key=lambda each: each.red).metric,
        expected.pattern or ("coverage" if expected.coverage else _or_red(outcome)),
        named,
        ", ".join(f"{name} {blocks}" for name, blocks in outcome.other_names.items()),
        f"{min(delays):.0f}" if delays else "",
        "" if outcome.page_delay_s is None else f"{outcome.page_delay_s:.0f}",
        verdict(outcome),
    )


def _or_red(outcome: Outcome) -> str:
    expected = outcome.stretch.expected
    if expected.pages:
        return "a page"
    return "red windows" if expected.token or expected.time else "nothing"


def _clock(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%H:%M:%S")


def _percent(shown: Shown) -> str:
    return f"{100 * shown.red / shown.windows:.0f} %" if shown.windows else "-"


def _paired(result: DemoResult) -> None:
    pull = result.facts.few_shot
    if pull is None:
        return
    print(
        f"\nPaired, {pull['questions']} questions with and without examples (few_shot_pull):"
        f" similarity {pull['with']:.3f} with, {pull['without']:.3f} without;"
        f" {pull['layers']} of {pull['of_layers']} layers with p <= 1 %:"
        f" {'pulled' if pull['pulled'] else 'not shown'}."
    )


def _health(recorded: list[Outcome], result: DemoResult) -> None:
    held_out = [each for each in recorded if each.stretch.held_out]
    if not held_out:
        return
    facts = result.facts
    print(
        f"\nHeld-out health: {sum(each.stretch.blocks for each in held_out)} min,"
        f" {sum(len(each.pages) for each in held_out)} pages. Pointwise false alarms of the red"
        " lines\n(nominal 1 %, 2 % where both ends are bad), and how many rates lie in the band"
        " that health\nalone would give, the lines' own error included (two-sample cluster"
        f" bootstrap, 95 %):\n{facts.held_out_inside} of {facts.held_out_all} rates inside.\n"
    )
    print_table(
        ("windows", "metrics", "inside", "median rate", "outside: rate (band)"),
        [_kind_of_health(kind, facts.held_out) for kind in dict.fromkeys(
            rate["windows"] for rate in facts.held_out
        )],
    )  # fmt: skip


def _kind_of_health(kind: str, rates: list[dict[str, Any]]) -> tuple[Any, ...]:
    own = [rate for rate in rates if rate["windows"] == kind]
    outside = [
        f"{rate['metric']} {_points(rate['rate'])} ({_points(rate['low'])}-{_points(rate['high'])})"
        for rate in own
        if not rate["inside"]
    ]
    return (
        kind,
        len(own),
        sum(rate["inside"] for rate in own),
        f"{_points(median(rate['rate'] for rate in own))} %",
        ", ".join(outside),
    )


def _points(share: float) -> str:
    return f"{100 * share:.1f}"


def _report_files(result: DemoResult) -> list[str]:
    reports = result.reported.get("report", {}).get("written", ())
    return [str(report) for report in reports]
