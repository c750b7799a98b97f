"""Runs the detectors over a span of event time, and stores what they find."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from moescope.jobs.patterns.engine_faults import engine_fault_findings
from moescope.jobs.patterns.finding import Finding
from moescope.jobs.patterns.generations import late_convergence_findings
from moescope.jobs.patterns.naming import name_alerts, unnamed_alerts
from moescope.jobs.patterns.pulse import periodic_pulse_findings
from moescope.jobs.patterns.time_windows import time_window_findings
from moescope.jobs.patterns.training import training_findings
from moescope.storage.control import replace_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import duckdb

    from moescope.storage.store import Store

    Detector = Callable[[duckdb.DuckDBPyConnection, int, int], Iterator[Finding]]

LOOK_BACK_US: Final = 900_000_000
"""How far a run looks back, so that stretches which began before it are found whole."""

DETECTORS: Final[Mapping[Detector, tuple[str, ...]]] = MappingProxyType(
    {
        time_window_findings: ("fixed_prefix", "concurrency_collision", "mix_shift"),
        late_convergence_findings: ("late_convergence",),
        engine_fault_findings: ("engine_fault",),
        periodic_pulse_findings: ("periodic_pulse",),
        training_findings: ("data_order_drift", "expert_collapse"),
    }
)
"""Detectors, and the patterns that each can name."""


@dataclass(frozen=True, slots=True)
class Detection:
    """What one run found.

    Attributes:
        found: New findings.
        extended: Known findings that go on, or are stronger than known.
    """

    found: tuple[Finding, ...]
    extended: tuple[Finding, ...]


def detect(store: Store, from_us: int, to_us: int) -> Detection:
    """Look for patterns in windows that closed in [from, to), store them, and name alerts by them.

    A run looks 15 minutes further back; what it finds again is known by its series and its
    time, and only changes when it has grown. So runs may overlap or be repeated.

    Args:
        store: The owner's.
        from_us: Where the run before it ended.
        to_us: First close time that is left out.

    Raises:
        StoreWriteError: The findings could not be stored.
    """
    cursor = store.cursor()
    try:
        known = list(_stored(cursor, from_us - 2 * LOOK_BACK_US, to_us))
        seen = [
            finding
            for detector in DETECTORS
            for finding in detector(cursor, from_us - LOOK_BACK_US, to_us)
        ]
    finally:
        cursor.close()
    fresh, grown = _merged(seen, known)
    with store.cursor() as cursor:
        nameless = bool(unnamed_alerts(cursor))
    if fresh or grown or nameless:

        def write(connection: duckdb.DuckDBPyConnection, commit_id: int) -> None:
            rows = [finding.row() for finding in (*fresh, *grown)]
            replace_rows(connection, "patterns", rows, commit_id)
            name_alerts(connection, commit_id)

        store.change(write, author="job:patterns", action="detect", audit=False)
    return Detection(tuple(fresh), tuple(grown))


def _merged(
    seen: Iterable[Finding], known: Iterable[Finding]
) -> tuple[list[Finding], list[Finding]]:
    """What is new, and what has grown, of what was seen."""
    by_series: dict[tuple[str, ...], list[Finding]] = {}
    for finding in known:
        by_series.setdefault(finding.series, []).append(finding)
    fresh, grown = [], []
    for finding in seen:
        earlier = next(
            (
                each
                for each in by_series.get(finding.series, [])
                if each.began_us <= finding.ended_us and finding.began_us <= each.ended_us
            ),
            None,
        )
        if earlier is None:
            fresh.append(finding)
            continue
        extended = finding.extended(earlier)
        if extended.row() != earlier.row():
            grown.append(extended)
    return fresh, grown


def _stored(cursor: duckdb.DuckDBPyConnection, from_us: int, to_us: int) -> Iterator[Finding]:
    rows = cursor.execute(
        """
        SELECT finding, pattern, lane, phase, scope_kind, scope_value, window_kind, size,
            epoch_us(began_at), epoch_us(ended_at), confidence, evidence_json
        FROM patterns
        WHERE ended_at >= make_timestamp(?) AND began_at < make_timestamp(?)
        ORDER BY began_at, finding
        """,
        [from_us, to_us],
    ).fetchall()
    for known_as, pattern, lane, phase, scope, value, kind, size, began, ended, sure, text in rows:
        yield Finding(
            pattern=pattern,
            lane=lane,
            phase=phase,
            scope_kind=scope,
            scope_value=value,
            window_kind=kind,
            size=size,
            began_us=began,
            ended_us=ended,
            confidence=sure,
            evidence=json.loads(text),
            known_as=known_as,
        )
