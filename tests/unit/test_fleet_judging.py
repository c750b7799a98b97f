"""What the fault runs take for good, and what they do not."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from support.fleet_holes import Holes
from support.fleet_outage import Calls, Clause, Latencies, Outage
from support.fleet_processes import FleetError, wait_for
from support.fleet_rows import EngineWindows, largest_burst


def _calls(p999: float) -> Calls:
    found = Latencies(p50=20, p99=60, p999=p999, worst=300)
    return Calls(1_000, found, found)


QUICK, SLOW = _calls(99), _calls(101)
TABLE = EngineWindows(
    windows=64,
    lost=0,
    twice=0,
    holes=(Holes(1, 60, 5, 0, 1, 0), Holes(5, 12, 2, 0, 0, 0)),
    empty=3,
    empty_with_row=0,
    producer_losses=1_280,
    batch_losses=1_280,
)
FINE = Outage(
    up=QUICK,
    frozen=QUICK,
    gone=QUICK,
    written=100,
    delivered=62,
    dropped=40,
    told=41,
    strange=0,
    stranded=0,
    burst=2,
    rows=3_200,
    delivered_rows=1_984,
    told_rows=1_280,
    rejected_rows=0,
    log_bytes=900,
    byte_cap=1_000,
    ring_bytes=100,
    ring_cap=100,
    agent_cpu=0.1,
    agent_bytes=1 << 26,
    agent_resident_bytes=1 << 27,
    delivered_s=3.0,
    table=TABLE,
)


def test_good_outage_has_no_faults() -> None:
    """Nothing is held against a run in which everything is as promised."""
    assert FINE.faults == []
    assert FINE.record_clause is Clause.HOLDS


@pytest.mark.parametrize(
    "spoilt",
    [
        {"strange": 1},
        {"stranded": 1},
        {"burst": 1},
        {"delivered": 59},
        {"told": 37},
        {"delivered_rows": 1_919},
        {"rejected_rows": 1},
        {"log_bytes": 1_001},
        {"ring_bytes": 101},
        {"table": replace(TABLE, lost=1)},
        {"table": replace(TABLE, twice=1)},
        {"table": replace(TABLE, holes=(*TABLE.holes, Holes(60, 2, 1, 1, 0, 0)))},
        {"table": replace(TABLE, holes=(Holes(1, 60, 5, 0, 1, 1),))},
        {"table": replace(TABLE, empty_with_row=1)},
        {"table": replace(TABLE, producer_losses=1_279)},
        {"table": replace(TABLE, batch_losses=1_279)},
    ],
    ids=str,
)
def test_one_number_off_is_a_fault(spoilt: dict[str, int]) -> None:
    """Each batch is delivered, dropped or, as far as a cursor may lag, both; all else fails."""
    assert len(replace(FINE, **spoilt).faults) == 1  # type: ignore[arg-type]  # any field


@pytest.mark.parametrize("phase", ["frozen", "gone"])
@pytest.mark.parametrize(
    ("with_broker", "without", "expected"),
    [
        (99, 100, Clause.HOLDS),
        (500, 100, Clause.HOLDS),
        (99, 101, Clause.BROKEN),
        (101, 126, Clause.OVER_ANYWAY),
        (101, 127, Clause.BROKEN),
        (1_000, 1_251, Clause.BROKEN),
        (1_000, 101, Clause.OVER_ANYWAY),
    ],
)
def test_slow_record_never_passes_for_a_promise_that_is_met(
    phase: str, with_broker: float, without: float, expected: Clause
) -> None:
    """Slower without a broker than with one is broken; over the limit with both is not met."""
    found = replace(FINE, up=_calls(with_broker), **{phase: _calls(without)})  # type: ignore[arg-type]  # `phase` names a field
    assert found.record_clause is expected


def test_recovery_counts_from_the_fault() -> None:
    """What is so only a minute after the fault fails, although the last wait was short."""
    assert wait_for("all", lambda: True, 60, start=time.monotonic() - 30) < 60
    with pytest.raises(FleetError, match="Not within 60 s, but after"):
        wait_for("all", lambda: True, 60, start=time.monotonic() - 61)


def test_burst_is_the_most_within_half_a_second() -> None:
    """Counted over every half second, whatever the order of the partitions."""
    assert largest_burst([]) == 0
    assert largest_burst([1_500_000, 0, 500_001, 500_002, 1_000_001]) == 3
