"""Row sampling where the clocks of a partition's nodes differ."""

from __future__ import annotations

import numpy as np

from moescope.processors.row_sampling import RowSampling

MINUTE_US = 60_000_000


def test_a_clock_an_hour_ahead_does_not_end_row_sampling() -> None:
    """Minutes of the other nodes keep their exponent, whatever minute is asked for in between."""
    sampling = RowSampling(10)
    sampling.count(np.full(40, 100 * MINUTE_US), 1)
    hashes = np.array([2**64 - 1], np.uint64)
    now, ahead = np.array([102 * MINUTE_US]), np.array([162 * MINUTE_US])
    assert sampling.weights(now, hashes).tolist() == [0.0]
    sampling.weights(ahead, hashes)
    assert sampling.weights(now, hashes).tolist() == [0.0]


def test_what_is_remembered_is_bounded() -> None:
    """A partition that reads years does not grow."""
    sampling = RowSampling(10)
    for minute in range(1_000):
        sampling.count(np.array([minute * MINUTE_US]), 1)
        sampling.exponent(minute)
    assert max(len(each) for each in sampling.state().values()) <= 128
