"""From lines to tokens: which lines make up a token, and at which position it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moescope.producers.importers.errors import RejectedLineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTable:
    """T tokens in order of their first line.

    Attributes:
        cells: intp [T, L]: the line that holds each layer; [T, 1] when lines hold all layers.
        position: int32 [T].
    """

    cells: NDArray[np.intp]
    position: NDArray[np.int32]


def assemble_tokens(
    *,
    line: NDArray[np.int64],
    request: NDArray[np.int32],
    layer: NDArray[np.int32],
    position: NDArray[np.int32],
    reject: Callable[[int, RejectedLineError], None],
) -> TokenTable:
    """Group N lines to tokens.

    Without positions, the n-th line of a request (at a layer) is position n. A second line for
    the same token and layer is rejected, and so is a token without some layer.

    Args:
        line: Line numbers.
        request: Index of the request.
        layer: Index of the layer, −1 throughout when lines hold all layers.
        position: −1 throughout when the file has none.
        reject: Takes line numbers and reasons.
    """
    layers, layer_place = np.unique(layer, return_inverse=True)
    place = position.astype(np.int64)
    if len(place) and place[0] < 0:
        place = _occurrence(request.astype(np.int64) * len(layers) + layer_place)
    _, token = np.unique((request.astype(np.int64) << 32) | place, return_inverse=True)
    cell = token * len(layers) + layer_place
    _, first_of_cell = np.unique(cell, return_index=True)
    repeated = np.ones(len(line), np.bool_)
    repeated[first_of_cell] = False
    for row in np.flatnonzero(repeated).tolist():
        at = f"position {place[row]}" + (f", layer {layer[row]}" if layer[row] >= 0 else "")
        reject(int(line[row]), RejectedLineError("the same token again", at))
    cells = np.full((token.max(initial=-1) + 1, len(layers)), -1, np.intp)
    cells.reshape(-1)[cell[first_of_cell]] = first_of_cell
    complete = (cells >= 0).all(axis=1)
    for row in np.flatnonzero(~complete).tolist():
        held = cells[row][cells[row] >= 0]
        missing = layers[cells[row] < 0]
        for index in held.tolist():
            reject(
                int(line[index]),
                RejectedLineError("a token without all layers", f"no layer {missing[0]}"),
            )
    cells = cells[complete]
    cells = cells[np.argsort(cells.min(axis=1), kind="stable")] if len(cells) else cells
    return TokenTable(cells=cells, position=place[cells[:, 0]].astype(np.int32))


def _occurrence(key: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often each value occurred before it, int64 [N]."""
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    begins = np.append([True], ordered[1:] != ordered[:-1])
    start = np.maximum.accumulate(np.where(begins, np.arange(len(key)), 0))
    occurrence = np.empty(len(key), np.int64)
    occurrence[order] = np.arange(len(key)) - start
    return occurrence
