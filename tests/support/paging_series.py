"""Healthy paging statistics with clustered exceedances, and a plain count of pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moescope.jobs.paging import PagingSeries

if TYPE_CHECKING:
    from numpy.typing import NDArray

SLOTS = 120
"""Of 5 s in a block of 10 minutes."""


def clustered_blocks(
    random: np.random.Generator, blocks: int, *, correlation: float = 0.8, gaps: float = 0.05
) -> list[NDArray[np.float64]]:
    """AR(1) noise with exponential bursts: excursions last several slots, some slots are empty."""
    noise = random.normal(size=(blocks, SLOTS))
    values = np.empty_like(noise)
    values[:, 0] = noise[:, 0]
    for slot in range(1, SLOTS):
        values[:, slot] = (
            correlation * values[:, slot - 1] + (1 - correlation**2) ** 0.5 * noise[:, slot]
        )
    values -= 3.0
    for block in np.flatnonzero(random.random(blocks) < 0.1):
        start, length = random.integers(0, SLOTS), random.integers(2, 12)
        values[block, start : start + length] += random.exponential(1.0)
    values[random.random(values.shape) < gaps] = np.nan
    return list(values)


def series_of(blocks: list[NDArray[np.float64]], *, scopes: int = 1) -> PagingSeries:
    """Load of 128-token decode windows in blocks of 10 minutes."""
    return PagingSeries(
        phase="decode",
        kind="token",
        size=128,
        stride=128,
        scope_kind="all" if scopes == 1 else "node",
        family="load",
        blocks=blocks,
        block_seconds=600.0,
        scopes=scopes,
    )


def plainly_paging(values: NDArray[np.float64], line: float, needed: int, of: int) -> bool:
    """Whether any slot's last `of` slots with data hold `needed` over the line."""
    data = [value for value in values.tolist() if value == value and value != -np.inf]  # noqa: PLR0124 - NaN is not
    return any(
        sum(value > line for value in data[max(0, end - of) : end]) >= needed
        for end in range(1, len(data) + 1)
    )
