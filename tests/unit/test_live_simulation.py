"""Simulated traffic that keeps step with the clock, and may be started again and again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.decoded_logs import log_of
from support.small_fleet import SMALL_MODEL, SMALL_ROUTER, SMALL_TRAFFIC, rows_of
from typer.testing import CliRunner

from moescope.console.app import app
from moescope.console.live_simulation import LivePace, refuse_training
from moescope.core.batchlog import list_partitions
from moescope.core.clock import ManualClock
from moescope.core.errors import InputError
from moescope.producers.simulator import SCENARIOS, simulate

if TYPE_CHECKING:
    from pathlib import Path

SECOND_US = 1_000_000
BEGIN_US = 1_800_000_000 * SECOND_US + 250_000


def simulate_live(root: Path, clock: ManualClock, seconds: int, byte_cap: int | None) -> list[int]:
    """Run a small fleet at a clock; the times at which its seconds were written."""
    small = replace(
        SCENARIOS["healthy_uncached"],
        model=SMALL_MODEL,
        router=SMALL_ROUTER,
        traffic=replace(SMALL_TRAFFIC, tasks_per_second=4.0),
    )
    pace = LivePace.beginning_now(clock)
    written: list[int] = []

    def after_second(second: int, _: object) -> None:
        written.append(clock.now_us())
        pace.wait_for(second)

    simulate(
        small,
        root,
        duration_s=seconds,
        nodes=1,
        start_us=pace.start_us,
        node_prefix=f"sim-{pace.run_name}",
        request_prefix=f"{pace.run_name}-",
        byte_cap=byte_cap,
        progress=after_second,
    )
    return written


def test_a_second_is_written_when_it_is_over(tmp_path: Path) -> None:
    """Event time ahead of the clock would be a skewed clock; far behind it, a late node."""
    clock = ManualClock(BEGIN_US)
    written = simulate_live(tmp_path, clock, 5, None)
    first_end = 1_800_000_000 * SECOND_US
    assert written == [BEGIN_US, *(first_end + second * SECOND_US for second in range(1, 5))]
    (logged,) = log_of(tmp_path).values()
    times = [row.time_us for row in rows_of(logged)]
    assert times
    assert first_end - SECOND_US <= min(times) < max(times) < first_end + 4 * SECOND_US


def test_a_slow_machine_catches_up_without_waiting() -> None:
    """A second that took long must not move all that follow."""
    clock = ManualClock(BEGIN_US)
    pace = LivePace.beginning_now(clock)
    clock.set_us(BEGIN_US + 10 * SECOND_US)
    pace.wait_for(3)
    assert clock.now_us() == BEGIN_US + 10 * SECOND_US


def test_a_second_run_repeats_no_name(tmp_path: Path) -> None:
    """A request that exists already would be dropped as a duplicate by the store."""
    clock = ManualClock(BEGIN_US)
    for _ in range(2):
        simulate_live(tmp_path, clock, 8, None)
    logs = log_of(tmp_path)
    assert len(logs) == 2
    first, second = (
        {name for batch, _ in logged for name in (*batch.requests.ids, *batch.requests.tasks)}
        for logged in logs.values()
    )
    assert first
    assert second
    assert not first & second


def test_the_log_of_a_live_node_stays_below_its_cap(tmp_path: Path) -> None:
    """A simulator that runs for weeks must not fill the disk."""
    simulate_live(tmp_path / "free", ManualClock(BEGIN_US), 60, None)
    simulate_live(tmp_path / "capped", ManualClock(BEGIN_US), 60, 16 << 10)

    def size(root: Path) -> int:
        return sum(path.stat().st_size for path in root.rglob("*.seg"))

    assert size(tmp_path / "free") > 32 << 10
    assert size(tmp_path / "capped") <= 16 << 10


def test_live_traffic_of_the_command_is_shipped(tmp_path: Path) -> None:
    """Agents ship the domain `live` and nothing else."""
    run = CliRunner().invoke(
        app,
        [
            "simulate",
            "healthy",
            "--live",
            "--nodes",
            "1",
            "--duration",
            "1",
            "--data",
            str(tmp_path),
        ],
    )
    assert run.exit_code == 0, run.output
    (partition,) = list_partitions(tmp_path / "log")
    assert partition.domain == "live"


def test_what_cannot_be_live_is_refused(tmp_path: Path) -> None:
    """Steps that begin again at 0, and a start that is not now, would be quietly wrong."""
    with pytest.raises(InputError, match="cannot run live"):
        refuse_training(SCENARIOS["training"])
    run = CliRunner().invoke(
        app,
        ["simulate", "healthy", "--live", "--start", "2027-01-02T00:00", "--data", str(tmp_path)],
    )
    assert isinstance(run.exception, InputError)
    assert not list((tmp_path / "log").rglob("*.seg"))
