"""The paging statistic of baseline blocks: what paging rules are solved from."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from moescope.core.clock import NO_TIME
from moescope.core.exceedance import SLOT_US, are_few
from moescope.core.metrics import FAMILIES, Family
from moescope.core.vocabulary import WindowKind
from moescope.jobs.paging import PagingSeries
from moescope.processors.metrics import exceedance

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from moescope.core.thresholds import MetricLines, ThresholdVersion
    from moescope.jobs.calibration.sample import Sample


def paging_series(
    samples: Sequence[Sample], version: ThresholdVersion, block_us: int
) -> list[PagingSeries]:
    """Worst standardised exceedance per slot of 5 s, by block, family and kind of window.

    As window closing does it: lines by scene and band, the worst over layers and metrics of the
    family, windows with a red mix shift outside of every family but routing, at most 0 where only
    a few token windows are red (`Exceedance.paging_value`). The lines are those of the same
    baseline.

    Args:
        samples: Baseline windows.
        version: Their lines.
        block_us: Length of a block; a slot belongs to the block that it starts in.
    """
    found = []
    for sample in samples:
        worst, seen = _worst_of_windows(sample, version)
        for family in Family:
            if np.isnan(worst[family]).all():
                continue
            blocks, scopes = _blocks(sample, worst[family], seen[family], block_us)
            if blocks:
                w = sample.windows
                found.append(
                    PagingSeries(
                        phase=w.phase,
                        kind=w.kind,
                        size=w.size,
                        stride=w.stride,
                        scope_kind=w.scope_kind,
                        family=family,
                        blocks=blocks,
                        block_seconds=block_us / 1e6,
                        scopes=scopes,
                    )
                )
    return found


def _worst_of_windows(
    sample: Sample, version: ThresholdVersion
) -> tuple[dict[Family, NDArray[np.float64]], dict[Family, NDArray[np.float64]]]:
    """By family float64 [W], NaN where nothing is judged: what enters paging, and what was seen.

    The two differ in windows that a mix shift explains.
    """
    seen = {family: np.full(len(sample.windows), np.nan) for family in Family}
    worst = {family: np.full(len(sample.windows), np.nan) for family in Family}
    for member, lines in _judging(sample, version):
        mixed: NDArray[np.bool_] = np.zeros(int(member.sum()), np.bool_)
        if "mix_shift" in lines:
            past = exceedance(sample.values["mix_shift"][member], lines["mix_shift"])
            mixed = np.asarray((past > 0).any(axis=1))
        for family, metrics in FAMILIES.items():
            highest = np.full(len(mixed), np.nan)
            for metric in metrics:
                if metric.name in lines and metric.name in sample.values:
                    past = exceedance(sample.values[metric.name][member], lines[metric.name])
                    highest = np.fmax(highest, np.fmax.reduce(past, axis=1))
            seen[family][member] = highest
            if family is not Family.ROUTING:
                highest[mixed] = np.nan
            worst[family][member] = highest
    return worst, seen


def _judging(
    sample: Sample, version: ThresholdVersion
) -> Iterator[tuple[NDArray[np.bool_], Mapping[str, MetricLines]]]:
    """Windows that one set of lines judges, bool [W]."""
    places: dict[tuple[str, str], list[int]] = defaultdict(list)
    pairs = zip(sample.scenes.tolist(), sample.windows.band.tolist(), strict=True)
    for window, pair in enumerate(pairs):
        places[pair].append(window)
    for (scene, band), windows in sorted(places.items()):
        lines = version.lines_for(sample.key(scene, band))
        if lines:
            member = np.zeros(len(sample.windows), np.bool_)
            member[windows] = True
            yield member, lines


def _blocks(
    sample: Sample, worst: NDArray[np.float64], seen: NDArray[np.float64], block_us: int
) -> tuple[list[NDArray[np.float64]], int]:
    """Slots of each block and scope value in order, and the number of scope values."""
    w = sample.windows
    slots: dict[tuple[str, int], NDArray[np.float64]] = {}
    judged: dict[tuple[str, int], NDArray[np.int64]] = {}
    timed = w.close_us != NO_TIME
    length = max(-(-block_us // SLOT_US), 1)
    for window in np.flatnonzero(timed):
        slot_us = int(w.close_us[window]) // SLOT_US * SLOT_US
        block = slot_us // block_us
        place = (slot_us - block * block_us) // SLOT_US
        key = (w.scope_value[window], block)
        values = slots.setdefault(key, np.full(length, np.nan))
        values[place] = np.fmax(values[place], worst[window])
        counted = judged.setdefault(key, np.zeros((length, 2), np.int64))
        counted[place] += (not np.isnan(seen[window]), seen[window] > 0)
    if w.kind == WindowKind.TOKEN:
        for key, values in slots.items():
            few = [are_few(windows, red) for windows, red in judged[key].tolist()]
            values[few] = np.minimum(values[few], 0.0)
    return [slots[key] for key in sorted(slots)], max(len({value for value, _ in slots}), 1)
