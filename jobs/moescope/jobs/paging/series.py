"""What a paging rule is solved from: the statistic of one series in healthy blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

SECONDS_PER_DAY = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PagingSeries:
    """Exceedances of one family in one kind of window, slot by slot, in blocks of a baseline.

    Attributes:
        phase, kind, size, stride, scope_kind: As in `windows`.
        family: Of `moescope.core.metrics.Family`.
        blocks: Per block float64 [slots in order], in spreads past the red line; NaN or −inf
            where nothing was judged. For scope `node` or `scene` a block of each node or scene.
        block_seconds: Length of a block in event time.
        scopes: How many nodes or scenes the blocks come from. One rule holds for all of them,
            and they share its budget; 1 for scope `all`.
    """

    phase: str
    kind: str
    size: int
    stride: int
    scope_kind: str
    family: str
    blocks: Sequence[NDArray[np.float64]]
    block_seconds: float
    scopes: int = 1

    def observed(self) -> list[NDArray[np.float64]]:
        """The judged slots of each block that has any, in order."""
        judged = [np.asarray(block, np.float64) for block in self.blocks]
        judged = [block[~(np.isnan(block) | np.isneginf(block))] for block in judged]
        return [block for block in judged if len(block)]

    @property
    def block_days(self) -> float:
        """Days of the model's life that one block stands for."""
        return self.block_seconds / SECONDS_PER_DAY / self.scopes
