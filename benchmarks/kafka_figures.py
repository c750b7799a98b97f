"""Figures of the Kafka benchmark, from what its calls took."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from benchmarks.figures import Baseline, Figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.broker import Meter
    from benchmarks.fleet_rolling import FleetRolling
    from benchmarks.live_fleet import Latencies
    from benchmarks.logs import Log
    from moescope.core.settings import Settings
    from moescope.processors.config import WindowConfig

TARGET_LATENCY_S = 2.0


class Kind(NamedTuple):
    """A stream in a topic, and the windows that are rolled up of it."""

    what: str
    log: Log
    settings: Settings
    config: WindowConfig
    target: float


def _millions(log: Log, meter: Meter) -> list[float]:
    return [log.assignments / 1e6 / call.wall for call in meter.calls[1:]]


def speed(kind: Kind, meters: dict[str, Meter]) -> Figure:
    """One process that reads routing itself, beside the embedded batch log."""
    log = kind.log
    return Figure(
        what=kind.what,
        unit=f"M assignments/s, {os.cpu_count()} cores with the broker",
        values=_millions(log, meters[kind.what]),
        target=kind.target,
        baselines=[
            Baseline(
                name="embedded batch log, no broker at work",
                values=_millions(log, meters[f"embedded {kind.what}"]),
            )
        ],
        note=f"{log.assignments / 1e6:,.0f} M assignments in {log.records:,} records, "
        f"{log.wire_bytes / 1e6:,.0f} MB.",
    )


def group_speed(kind: Kind, meters: dict[str, Meter]) -> Figure:
    """A processor and the owner, beside one process."""
    return Figure(
        what=f"{kind.what}, one processor of a group and the owner",
        unit=f"M assignments/s, {os.cpu_count()} cores with the broker",
        values=_millions(kind.log, meters[f"group {kind.what}"]),
        target=kind.target,
        baselines=[
            Baseline(
                name="one process that reads routing itself",
                values=_millions(kind.log, meters[kind.what]),
            ),
            Baseline(
                name="embedded batch log, no broker at work",
                values=_millions(kind.log, meters[f"embedded {kind.what}"]),
            ),
        ],
    )


def processor_cost(kind: Kind, meters: dict[str, Meter], by_group: FleetRolling) -> list[Figure]:
    """Processor time of everybody who takes part."""
    per = kind.log.assignments / 1e9
    by_owner = meters[f"group {kind.what}"].calls[1:]
    over_kafka = meters[kind.what].calls[1:]
    embedded = meters[f"embedded {kind.what}"].calls[1:]
    return [
        Figure(
            what=f"{kind.what}: CPU of our process",
            unit="s per 10⁹ assignments",
            values=[call.own_cpu / per for call in over_kafka],
            better="lower",
            baselines=[
                Baseline(
                    name="embedded batch log", values=[call.own_cpu / per for call in embedded]
                )
            ],
        ),
        Figure(
            what=f"{kind.what}: CPU of the broker",
            unit="s per 10⁹ assignments",
            values=[call.broker_cpu / per for call in over_kafka],
            better="lower",
        ),
        *(
            Figure(
                what=f"{kind.what}, group and owner: CPU of the {whose}",
                unit="s per 10⁹ assignments",
                values=[cpu / per for cpu in spent],
                better="lower",
            )
            for whose, spent in (
                ("processor", by_group.processor_cpu[1:]),
                ("owner", [call.own_cpu for call in by_owner]),
                ("broker", [call.broker_cpu for call in by_owner]),
            )
        ),
    ]


def client_alone(dense: Log, fleet: Log, meters: dict[str, Meter]) -> list[Figure]:
    """What the client could do at most."""
    return [
        Figure(
            what=f"client alone, {name}",
            unit="M assignments/s",
            values=_millions(log, meters[f"read {key}"]),
            note=f"{log.wire_bytes / 1e6 / _median_wall(meters[f'read {key}']):,.0f} MB/s and "
            f"{log.records / _median_wall(meters[f'read {key}']):,.0f} records/s.",
        )
        for key, name, log in (
            ("dense", "dense stream", dense),
            ("fleet", "simulated fleet", fleet),
        )
    ]


def _median_wall(meter: Meter) -> float:
    return float(np.median([call.wall for call in meter.calls[1:]]))


def shipping(dense: Log, fleet: Log, meters: dict[str, Meter]) -> list[Figure]:
    """From the batch log to the broker."""
    figures = []
    for name, log in (("dense stream", dense), ("simulated fleet", fleet)):
        calls = meters[f"ship {name}"].calls[1:]
        figures += [
            Figure(
                what=f"shipping, {name}",
                unit="M assignments/s",
                values=_millions(log, meters[f"ship {name}"]),
                note=f"{log.wire_bytes / 1e6 / _median_wall(meters[f'ship {name}']):,.0f} MB/s, "
                f"{log.records / _median_wall(meters[f'ship {name}']):,.0f} records/s.",
            )
        ]
        if log is dense:
            per = log.wire_bytes / 1e9
            figures += [
                Figure(
                    what=f"shipping, {name}: CPU of {whose}",
                    unit="s per GB",
                    values=[cpu / per for cpu in spent],
                    better="lower",
                )
                for whose, spent in (
                    ("our process", [call.own_cpu for call in calls]),
                    ("the broker", [call.broker_cpu for call in calls]),
                )
            ]
    return figures


def latency_figures(live: Latencies) -> list[Figure]:
    """How late rows are."""

    def figures(what: str, seconds: Sequence[float], target: float | None) -> list[Figure]:
        return [
            Figure(
                what=f"{what}, {name}",
                unit="s",
                values=[float(np.quantile(seconds, level))],
                better="lower",
                target=target if name == "p99" else None,
                note=f"{len(seconds):,} of them." if name == "p50" else "",
            )
            for name, level in (("p50", 0.5), ("p99", 0.99))
        ]

    return [
        *figures(
            "latency: last token of a token window → its row committed",
            live.token.tolist(),
            TARGET_LATENCY_S,
        ),
        *figures(
            "latency: end of a time window and 2 s of lateness → its row committed",
            live.time.tolist(),
            TARGET_LATENCY_S,
        ),
        *figures("latency: batch in the batch log → committed", live.batch.tolist(), None),
    ]
