"""What the fault runs take for good, and what they do not."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from support.fleet_outage import Clause, Latencies, Outage
from support.fleet_processes import FleetError, wait_for
from support.fleet_rows import largest_burst

QUICK = Latencies(calls=1_000, p50=20, p99=60, p999=99, worst=300)
SLOW = QUICK._replace(p999=101)
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
    delivered_s=3.0,
    windows=64,
    lost=0,
    twice=0,
    holes=5,
    unmarked=0,
    blamed=0,
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
        {"lost": 1},
        {"twice": 1},
        {"unmarked": 1},
    ],
    ids=str,
)
def test_one_number_off_is_a_fault(spoilt: dict[str, int]) -> None:
    """Each batch is delivered, dropped or, as far as a cursor may lag, both; all else fails."""
    assert len(replace(FINE, **spoilt).faults) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("slow", ["frozen", "gone"])
def test_slow_record_is_held_against_a_run_whose_machine_is_quick(slow: str) -> None:
    """Slower without a broker than with one: the promise is broken; slow always: not decided."""
    found = replace(FINE, **{slow: SLOW})  # type: ignore[arg-type]
    assert found.record_clause is Clause.BROKEN
    assert replace(found, up=SLOW).record_clause is Clause.NOT_DECIDED


def test_recovery_counts_from_the_fault() -> None:
    """What is so only a minute after the fault fails, although the last wait was short."""
    assert wait_for("all", lambda: True, 60, start=time.monotonic() - 30) < 60
    with pytest.raises(FleetError, match="Not within 60 s, but after"):
        wait_for("all", lambda: True, 60, start=time.monotonic() - 61)


def test_burst_is_the_most_within_half_a_second() -> None:
    """Counted over every half second, whatever the order of the partitions."""
    assert largest_burst([]) == 0
    assert largest_burst([1_500_000, 0, 500_001, 500_002, 1_000_001]) == 3
