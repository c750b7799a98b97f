"""Which values make each line, and which are judged by it, as the band of rates wants them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from moescope.core.thresholds import LineSource
from moescope.jobs.calibration.lines import layer_spans
from moescope.jobs.statistics import Pool

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from moescope.core.thresholds import MetricLines

_DIGITS = 9


class JudgedBy(NamedTuple):
    """Windows of both samples behind, and under, one key's lines of a metric.

    Attributes:
        lines: The lines.
        band: Volume band: keys of one band share their tail.
        values: float64 [N, L].
        weights: float64 [N].
        units: int64 [N].
    """

    lines: MetricLines
    band: str
    values: NDArray[np.float64]
    weights: NDArray[np.float64]
    units: NDArray[np.int64]


def pools_of(judged_by: Sequence[JudgedBy], sign: float) -> Iterator[Pool]:
    """A pool per line that is estimated on its own.

    Lines of their own windows: one per key and layer. Lines that borrow their tail: one per band
    and layer, of standardised values of all keys, and of as many layers as lent theirs.

    Args:
        judged_by: Keys with lines.
        sign: −1 turns low values into high ones.
    """
    sharing: dict[tuple[str, LineSource], list[JudgedBy]] = defaultdict(list)
    for each in judged_by:
        if each.lines.source is LineSource.OWN:
            for column in each.values.T:
                yield from _known(sign * column, each.weights, each.units)
        else:
            sharing[each.band, each.lines.source].append(each)
    for (_, source), group in sharing.items():
        # Values that are equal in the spreads of their scenes are equal to their common line.
        scaled = np.round(
            np.concatenate(
                [sign * (each.values - each.lines.centre) / each.lines.spread for each in group]
            ),
            _DIGITS,
        )
        weights = np.concatenate([each.weights for each in group])
        units = np.concatenate([each.units for each in group])
        spans = layer_spans(scaled.shape[1], source)
        for span in dict.fromkeys(spans):
            width = span[1] - span[0]
            part = scaled[:, slice(*span)]
            under = [layer - span[0] for layer, own in enumerate(spans) if own == span]
            judged = np.zeros(part.shape)
            judged[:, under] = weights[:, None]
            yield from _known(
                part.reshape(-1),
                np.repeat(weights, width),
                np.repeat(units, width),
                judged.reshape(-1),
            )


def _known(
    values: NDArray[np.float64],
    weights: NDArray[np.float64],
    units: NDArray[np.int64],
    judged: NDArray[np.float64] | None = None,
) -> Iterator[Pool]:
    known = ~np.isnan(values)
    if known.any():
        yield Pool(
            values[known], weights[known], units[known], None if judged is None else judged[known]
        )
