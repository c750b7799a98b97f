"""When a notification is tried again, and when no more."""

from __future__ import annotations

FIRST_WAIT_US = 5_000_000
LONGEST_WAIT_US = 600_000_000
GIVE_UP_AFTER_US = 86_400_000_000
"""A day after its creation a notification is news no more."""

_MOST_DOUBLINGS = 16


def next_try_us(attempts: int, now_us: int) -> int:
    """When to try again after so many failed attempts: 5 s later, then 10 s, … at most 10 min."""
    wait_us = FIRST_WAIT_US << min(max(attempts - 1, 0), _MOST_DOUBLINGS)
    return now_us + min(wait_us, LONGEST_WAIT_US)


def is_given_up(created_us: int, now_us: int) -> bool:
    """Whether a notification that failed just now is not tried again."""
    return now_us - created_us >= GIVE_UP_AFTER_US
