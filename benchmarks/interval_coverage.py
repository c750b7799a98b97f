"""How often 95 % intervals of warn and red lines hold the true quantile, on synthetic baselines.

`python -m benchmarks.interval_coverage` writes the table of docs/explanation/calibration.md.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.machine import ROOT, describe
from moescope.jobs.statistics import cluster_quantiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

PAGE = ROOT / "docs" / "explanation" / "calibration.md"
BEGIN, END = "<!-- results: coverage -->", "<!-- end of results -->"
DESIGNS = 20
RESAMPLES = 400


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of synthetic baseline.

    Attributes:
        name: For people.
        sizes: (units, generator) → windows of each unit.
        correlation: Of the normal scores of two windows of a unit.
        value: Normal score → value; not decreasing.
    """

    name: str
    sizes: Callable[[int, np.random.Generator], NDArray[np.int64]]
    correlation: float
    value: Callable[[NDArray[np.float64]], NDArray[np.float64]]


def _four(units: int, _: np.random.Generator) -> NDArray[np.int64]:
    return np.full(units, 4)


def _one(units: int, _: np.random.Generator) -> NDArray[np.int64]:
    return np.ones(units, np.int64)


def _unequal(units: int, rng: np.random.Generator) -> NDArray[np.int64]:
    return np.minimum(rng.geometric(0.35, units), 12)


def _heavy(units: int, rng: np.random.Generator) -> NDArray[np.int64]:
    return np.clip(rng.lognormal(1.0, 0.9, units).astype(np.int64), 1, 40)


def _blocks(units: int, rng: np.random.Generator) -> NDArray[np.int64]:
    return rng.integers(10, 30, units)


def _lognormal(z: NDArray[np.float64]) -> NDArray[np.float64]:
    value: NDArray[np.float64] = np.exp(0.5 * z)
    return value


def _exponential(z: NDArray[np.float64]) -> NDArray[np.float64]:
    tail = np.array([NormalDist().cdf(-each) for each in z.ravel()], np.float64)
    value: NDArray[np.float64] = -np.log(tail).reshape(z.shape)
    return value


def _discrete(z: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.floor(8.0 * np.exp(0.5 * z))


SHAPES = (
    Shape("one window per unit, log-normal", _one, 0.0, _lognormal),
    Shape("4 windows, correlated 0.4, log-normal", _four, 0.4, _lognormal),
    Shape("4 windows, correlated 0.4, exponential", _four, 0.4, _exponential),
    Shape("1 … 12 windows, correlated 0.4, log-normal", _unequal, 0.4, _lognormal),
    Shape("1 … 40 windows, correlated 0.5, log-normal", _heavy, 0.5, _lognormal),
    Shape("10 … 29 windows, correlated 0.3, log-normal", _blocks, 0.3, _lognormal),
    Shape("1 … 12 windows, correlated 0.4, discrete", _unequal, 0.4, _discrete),
)
CASES = ((0.9, 60), (0.9, 150), (0.9, 300), (0.9, 1000), (0.99, 300), (0.99, 400), (0.99, 1000))


def baselines(
    shape: Shape, units: int, number: int, rng: np.random.Generator, designs: int = DESIGNS
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64]]]:
    """Values [N, number / designs] and units [N]; the columns are independent baselines."""
    for _ in range(designs):
        unit = np.repeat(np.arange(units), shape.sizes(units, rng))
        common = rng.standard_normal((units, number // designs))[unit]
        own = rng.standard_normal(common.shape)
        score = np.sqrt(shape.correlation) * common + np.sqrt(1.0 - shape.correlation) * own
        yield shape.value(score), unit


def coverage(shape: Shape, p: float, units: int, number: int, seed: int) -> tuple[float, float]:
    """Share of intervals that hold the true quantile, and share without an upper end."""
    rng = np.random.default_rng(seed)
    truth = float(shape.value(np.array([NormalDist().inv_cdf(p)]))[0])
    held, unbounded, tried = 0, 0, 0
    for values, unit in baselines(shape, units, number, rng):
        found = cluster_quantiles(values, np.ones(len(unit)), unit, p)
        held += int(((found.low <= truth) & (truth <= found.high)).sum())
        unbounded += int(np.isinf(found.high).sum())
        tried += values.shape[1]
    return held / tried, unbounded / tried


def naive_coverage(shape: Shape, p: float, units: int, number: int, seed: int) -> float:
    """The same if every window were a unit of its own."""
    rng = np.random.default_rng(seed)
    truth = float(shape.value(np.array([NormalDist().inv_cdf(p)]))[0])
    held, tried = 0, 0
    for values, unit in baselines(shape, units, number, rng):
        found = cluster_quantiles(values, np.ones(len(unit)), np.arange(len(unit)), p)
        held += int(((found.low <= truth) & (truth <= found.high)).sum())
        tried += values.shape[1]
    return held / tried


def percentile_coverage(shape: Shape, p: float, units: int, number: int, seed: int) -> float:
    """The same with the percentile cluster bootstrap."""
    rng = np.random.default_rng(seed)
    truth = float(shape.value(np.array([NormalDist().inv_cdf(p)]))[0])
    held, tried = 0, 0
    for values, unit in baselines(shape, units, number, rng):
        drawn = rng.multinomial(units, np.full(units, 1.0 / units), RESAMPLES).astype(np.float32)
        for column in values.T:
            order = np.argsort(column, kind="stable")
            below = np.cumsum(drawn[:, unit[order]], axis=1)
            rank = (below < p * below[:, -1:] - 1e-3).sum(axis=1)
            low, high = np.quantile(column[order][rank], [0.025, 0.975])
            held += int(low <= truth <= high)
            tried += 1
    return held / tried


def table(number: int, slow: int, seed: int) -> str:
    """The page's table."""
    lines = [
        "| baseline | units | line | windows as units | cluster percentile | **stored** | open |",
        "|---|---|---|---|---|---|---|",
    ]
    for shape in SHAPES:
        for p, units in CASES:
            held, unbounded = coverage(shape, p, units, number, seed)
            naive = naive_coverage(shape, p, units, number, seed)
            boot = "–"
            if slow and units <= 300:  # noqa: PLR2004 (larger ones take minutes each)
                boot = f"{percentile_coverage(shape, p, units, slow, seed):.1%}"
            lines.append(
                f"| {shape.name} | {units} | P{100 * p:.0f} | {naive:.1%} | {boot} |"
                f" **{held:.1%}** | {unbounded:.1%} |"
            )
            print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--baselines", type=int, default=1000)
    parser.add_argument("--bootstrapped", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="replace the table in the page")
    options = parser.parse_args()
    found = table(options.baselines, options.bootstrapped, options.seed)
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        _, _, after = rest.partition(END)
        machine = describe()
        head = (
            f"{machine['time']}, commit {machine['commit']}, Python {machine['python']}, numpy"
            f" {machine['packages']['numpy']}, seed {options.seed}; {options.baselines} baselines"
            f" per row, {options.bootstrapped} for the percentile bootstrap."
        )
        PAGE.write_text(f"{before}{BEGIN}\n\n{head}\n\n{found}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
