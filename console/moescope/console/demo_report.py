"""The demo's screen."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from moescope.console.output import print_pairs, print_table


def print_report(result: dict[str, Any]) -> None:
    """Print totals, what was planted, and the worst windows."""
    _totals(result)
    start_us = result["start_us"]
    print("\nPlanted in the traffic (seconds of event time since the start):\n")
    print_table(
        ("incident", "from s", "to s", "nodes"),
        [
            (
                planted["name"],
                (planted["start_us"] - start_us) // 1_000_000,
                (planted["end_us"] - start_us) // 1_000_000,
                "all" if len(planted["nodes"]) > 3 else ", ".join(planted["nodes"]),  # noqa: PLR2004
            )
            for planted in result["planted"]
        ],
    )
    for name, windows in result["worst"].items():
        print(f"\nWorst {name}, by distance from uniform over what chance gives:\n")
        print_table(
            ("from s", "phase", "node", "layer", "tokens", "JS", "x chance", "hot load", "inside"),
            [
                (
                    (_us(row["start_time"] or row["close_time"]) - start_us) // 1_000_000,
                    row["phase"],
                    row["node"],
                    row["layer"],
                    row["tokens"],
                    row["js_uniform"],
                    round(row["times_floor"], 1),
                    row["hot_load_share"],
                    _incidents_at(result["planted"], row),
                )
                for row in windows
            ],
        )
    print("\nHottest experts in 5 s windows (over twice the mean, windows in a row):\n")
    print_table(
        ("layer", "expert", "windows", "highest share"),
        [
            (row["layer"], row["expert"], row["windows_in_a_row"], row["highest_share"])
            for row in result["hottest"]
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
    print("\nKept out of health at the gates:\n")
    print_table(
        ("reason", "batches", "(row, layer) pairs", "lost rows"),
        [
            (row["reason"], row["batches"], row["suspicious_pairs"], row["lost_rows"])
            for row in result["reasons"]
        ],
    )
    print("\nLevels are `insufficient` until thresholds are calibrated from a healthy baseline.")
    print(f"Go on: moescope sql --data {result['data']} 'from worst_windows limit 5'")


def _totals(result: dict[str, Any]) -> None:
    simulated, counted = result["simulated"], result["counted"]
    print("\nTotals\n")
    print_pairs(
        {
            "nodes": len(simulated["nodes"]),
            "event time": f"{simulated['seconds'] / 60:.0f} min in {result['seconds']:.0f} s",
            "requests": simulated["requests"],
            "tokens simulated": simulated["tokens"],
            "tokens seen in 1 s windows": int(counted["rows"]),
            "rows lost on purpose": (
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
