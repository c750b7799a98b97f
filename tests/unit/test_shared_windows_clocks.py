"""When a watermark domain lets windows close."""

from __future__ import annotations

import pytest

from moescope.core.accounts import PartitionProgress
from moescope.core.clock import END_OF_TIME, NO_TIME
from moescope.storage.shared import DomainClock, advance_clock

SECOND = 1_000_000


def partition(
    watermark_us: int, *, sealed: bool = False, step_low: int = END_OF_TIME, domain: str = "live"
) -> PartitionProgress:
    """Progress of some partition."""
    return PartitionProgress(
        partition=f"p{watermark_us}", domain=domain, emitted_to=1, replay_from=0, state=b"",
        watermark_us=watermark_us, step_low=step_low, sealed=sealed,
    )  # fmt: skip


def test_the_slowest_partition_decides() -> None:
    """A window closes when no partition can add to it."""
    clock = advance_clock(DomainClock(), "live", [partition(30), partition(20), partition(25)])
    assert clock.watermark_us == 20


@pytest.mark.parametrize(("behind", "expected"), [(10 * SECOND, 0), (10 * SECOND + 1, 30)])
def test_a_live_partition_far_behind_is_set_aside(behind: int, expected: int) -> None:
    """Exactly 10 s is still waited for."""
    fast = behind + 0
    clock = advance_clock(DomainClock(), "live", [partition(0), partition(fast)])
    assert clock.watermark_us == (0 if expected == 0 else fast)


@pytest.mark.parametrize(("unread", "expected"), [("p0", 0), ("p7", 60 * SECOND)])
def test_a_partition_that_nobody_read_yet_is_waited_for(unread: str, expected: int) -> None:
    """Late because of a slow reader is not silent: its windows must not close without it."""
    parts = [partition(0), partition(7), partition(60 * SECOND)]
    if unread == "p7":
        parts[1] = partition(7, sealed=True)
    clock = advance_clock(DomainClock(), "live", parts, {unread})
    assert clock.watermark_us == expected


def test_a_partition_that_has_shown_nothing_holds_the_clock() -> None:
    """Records wait in it, so how far the domain is cannot be known."""
    before = DomainClock(reached_us=30, step_reached=4)
    parts = [partition(50, step_low=9)]
    held = advance_clock(before, "live", parts, {"p50", "never seen"})
    assert (held.watermark_us, held.step_low) == (30, 4)
    freed = advance_clock(held, "live", parts, {"p50"})
    assert (freed.watermark_us, freed.step_low) == (50, 9)
    imported = [partition(50, domain="i")]
    assert advance_clock(before, "i", imported, {"never seen"}).watermark_us == 50


def test_an_import_waits_for_all_of_its_partitions() -> None:
    """An import is complete or it is nothing: no partition of it can be gone."""
    parts = [partition(NO_TIME, domain="i"), partition(10**15, domain="i")]
    assert advance_clock(DomainClock(), "i", parts).watermark_us == NO_TIME


def test_the_clock_never_goes_back() -> None:
    """A partition that catches up again, or a new one, reopens nothing."""
    before = advance_clock(DomainClock(), "live", [partition(50)])
    assert advance_clock(before, "live", [partition(50), partition(20)]).watermark_us == 50


def test_a_sealed_partition_holds_nobody_back() -> None:
    """It was read to its end; the others go on."""
    parts = [partition(5, sealed=True), partition(40)]
    clock = advance_clock(DomainClock(), "live", parts)
    assert (clock.watermark_us, clock.sealed) == (40, False)


@pytest.mark.parametrize("final", [70, END_OF_TIME])
def test_a_sealed_domain_is_over(final: int) -> None:
    """Everything closes; what was really reached stays known where the partition tells it."""
    clock = advance_clock(DomainClock(reached_us=60), "live", [partition(final, sealed=True)])
    assert (clock.watermark_us, clock.step_low) == (END_OF_TIME, END_OF_TIME)
    assert clock.reached_us == (70 if final == 70 else 60)


def test_a_domain_that_was_sealed_goes_on_with_a_new_partition() -> None:
    """A node that restarts writes a new log: its windows close by its own watermark."""
    over = advance_clock(DomainClock(), "live", [partition(60, sealed=True)])
    again = advance_clock(over, "live", [partition(60, sealed=True), partition(80)])
    assert (again.watermark_us, again.sealed) == (80, False)


def test_the_slowest_trainer_decides_about_steps() -> None:
    """Partitions where nobody trains do not count."""
    parts = [partition(1), partition(2, step_low=7), partition(3, step_low=9)]
    clock = advance_clock(DomainClock(), "live", parts)
    assert clock.step_low == 7
    ended = advance_clock(clock, "live", [partition(4), partition(5)])
    assert (ended.step_low, ended.step_reached) == (END_OF_TIME, 7)
