"""The demo's screen."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from moescope.console.output import print_pairs, print_table


def print_report(result: dict[str, Any]) -> None:
    """Print totals, what was planted, and the worst windows."""
    _totals(result)
    start_us = result["start_us"]
    print(
        "\nPlanted, and the window that stood out most meanwhile. JS: Jensen-Shannon distance from"
        "\nuniform, 0 to 1; x P99: over that layer's 99th percentile before the first incident;"
        "\nhot load: share of the load on experts above twice the mean; seconds: s of event time.\n"
    )
    print_table(
        ("incident", "from s", "to s", "nodes", "seen in", "at s", "layer", "JS", "x P99",
         "hot load", "coverage"),
        [
            _planted_row(planted, shown, start_us)
            for planted, shown in zip(result["planted"], result["shown"], strict=True)
        ],
    )  # fmt: skip
    for name, windows in result["worst"].items():
        print(f"\nWorst {name}, by distance from uniform over what chance gives:\n")
        print_table(
            ("from s", "phase", "node", "layer", "tokens", "JS", "x chance", "hot load", "during"),
            [
                (
                    (_us(row["start_time"] or row["close_time"]) - start_us) // 1_000_000,
                    row["phase"],
                    row["node"],
                    row["layer"],
                    row["tokens"],
                    row["js_uniform"],
                    f"{row['times_floor']:.1f}",
                    row["hot_load_share"],
                    _incidents_at(result["planted"], row),
                )
                for row in windows
            ],
        )
    print("\nLeast covered minutes of a node:\n")
    print_table(
        ("node", "from s", "tokens", "lost", "coverage"),
        [
            (
                row["node"],
                (_us(row["start_time"]) - start_us) // 1_000_000,
                row["tokens"],
                row["lost"],
                row["coverage"],
            )
            for row in result["least_covered"]
        ],
    )
    print("\nNot counted, and why (batches with such rows):\n")
    print_table(
        ("reason", "batches", "token x layer", "lost rows"),
        [
            (row["reason"], row["batches"], row["suspicious_pairs"], row["lost_rows"])
            for row in result["reasons"]
        ],
    )
    print("\nLevels are `insufficient` until thresholds are calibrated from a healthy baseline.")
    print(f"Go on: .venv/bin/moescope sql --data {result['data']} 'from coverage limit 5'")


def _planted_row(planted: dict[str, Any], shown: dict[str, Any], start_us: int) -> tuple[Any, ...]:
    begin, end = planted["start_us"], planted["end_us"]
    window = shown["window"]
    nodes = planted["nodes"]
    silent = (end - begin) // 1_000_000 - shown["seconds"]
    coverage = "" if shown["coverage"] is None else f"{shown['coverage']:.2f} at least"
    if silent > 0 and len(nodes) == 1:
        coverage = f"{silent} s without data"
    where = ("", "", "", "", "", "")
    if window is not None:
        where = (
            f"{window['window_kind']} {window['phase']}",
            str((_us(window["began"]) - start_us) // 1_000_000),
            str(window["layer"]),
            f"{window['js_uniform']:.3f}",
            f"{window['times_p99']:.1f}",
            f"{window['hot_load_share']:.2f}",
        )
    return (
        planted["name"],
        (begin - start_us) // 1_000_000,
        (end - start_us) // 1_000_000,
        "all" if len(nodes) > 3 else ", ".join(nodes),  # noqa: PLR2004
        *where,
        coverage,
    )


def _totals(result: dict[str, Any]) -> None:
    simulated, counted = result["simulated"], result["counted"]
    print("\nTotals\n")
    print_pairs(
        {
            "nodes": len(simulated["nodes"]),
            "event time": f"{simulated['seconds'] / 60:.0f} min in {result['seconds']:.0f} s",
            "requests": simulated["requests"],
            "tokens sent": simulated["tokens"],
            "tokens seen in 1 s windows": int(counted["rows"]),
            "tokens lost on purpose, besides": (
                f"{simulated['lost_rows']:,} ({int(counted['lost']):,} noticed)"
            ),
            "assignments": simulated["assignments"],
            "bytes on the wire": (
                f"{simulated['wire_bytes']:,} (JSON lines: about "
                f"{simulated['jsonl_equivalent_bytes'] / max(simulated['wire_bytes'], 1):.0f} x)"
            ),
            "dead letters": result["processed"]["dead_letters"],
            **{
                f"{row['window_kind']} window rows": (
                    f"{row['rows']:,} ({row['complete_rows']:,} complete)"
                )
                for row in result["windows"]
            },
        }
    )


def _us(moment: datetime) -> int:
    return int(moment.replace(tzinfo=UTC).timestamp() * 1e6)


def _incidents_at(planted: list[dict[str, Any]], row: dict[str, Any]) -> str:
    time = _us(row["start_time"] or row["close_time"])
    names = [
        incident["name"]
        for incident in planted
        if incident["start_us"] <= time < incident["end_us"]
        and (not row["node"] or row["node"] in incident["nodes"])
    ]
    return ", ".join(names) or "no incident"
