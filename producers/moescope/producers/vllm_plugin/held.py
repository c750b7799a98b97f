"""Decode passes that wait for each other: recording sixteen costs little more than recording two.

Between two passes a model computes for milliseconds and fills the processor's caches, so each
operation on a pass's few rows costs many times what it costs in a loop (decision 24). Passes that
follow each other closely, and have one row each of the same requests, are copied and recorded in
one call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from moescope.producers.vllm_plugin.host import HostRows
from moescope.producers.waiting import CLOSE_SECONDS, HELD_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from moescope.producers.vllm_plugin.seen import SeenPass

HELD_BYTES: Final = 1 << 20
"""Of ids and weights that wait: with more of them, recording costs what each row costs."""

_ENTRY_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class JointRows:
    """The rows of several passes [T], by request, and of each request by pass.

    Attributes:
        ids: int32 [T, L, k].
        weights: float32 [T, L, k]; None where none were captured.
        positions: int64 [T].
        numbers: int64 [T], of the passes.
        token_ids: Integers [T], if they were asked for.
        rows_per_request: int64 [R].
    """

    ids: NDArray[Any]
    weights: NDArray[Any] | None
    positions: NDArray[np.int64]
    numbers: NDArray[np.int64]
    token_ids: NDArray[Any] | None
    rows_per_request: NDArray[np.int64]


class HeldPasses:
    """The passes that wait.

    Args:
        layers: L.
        top_k: k.
        limit: The most passes that wait for each other; 1: none waits.

    Attributes:
        passes: They, in their order.
    """

    def __init__(self, layers: int, top_k: int, limit: int) -> None:
        self.passes: list[SeenPass] = []
        self._limit = limit
        self._most_rows = HELD_BYTES // (layers * top_k * _ENTRY_BYTES) if limit > 1 else 0
        self._ids = np.zeros((self._most_rows, layers, top_k), np.int32)
        self._weights = np.zeros((self._most_rows, layers, top_k), np.float32)
        self._tokens: list[NDArray[Any] | None] = []
        self._rows = 0
        self._since = self._latest = -math.inf

    def __len__(self) -> int:
        """How many wait."""
        return len(self.passes)

    @property
    def rows(self) -> int:
        """Rows of all that wait."""
        return self._rows

    def takes(self, seen: SeenPass) -> bool:
        """Whether a pass may wait at all: one row of each of some known requests."""
        step = seen.step
        return (
            step.is_single_rows
            and 2 * step.rows <= self._most_rows
            and seen.requests.are_known is None
            and step.positions is None
        )

    def go_with(self, seen: SeenPass) -> bool:
        """Whether a pass that may wait can be recorded together with those that do."""
        if not self.passes:
            return True
        first = self.passes[0]
        return (
            seen.requests is first.requests
            and seen.experts is first.experts
            and seen.has_weights == first.has_weights
            and self._rows + seen.step.rows <= self._most_rows
        )

    def add(self, seen: SeenPass, rows: HostRows, now: float) -> None:
        """Keep a pass's rows.

        Args:
            seen: A pass that may wait with the others.
            rows: Its rows.
            now: Monotonic seconds.
        """
        end = self._rows + seen.step.rows
        self._ids[self._rows : end] = rows.ids
        if seen.has_weights:
            self._weights[self._rows : end] = rows.weights
        self._tokens.append(None if rows.token_ids is None else rows.token_ids.copy())
        self._rows = end
        if not self.passes:
            self._since = now
        self.passes.append(seen)
        if now - self._latest > CLOSE_SECONDS:
            self._since = -math.inf
        self._latest = now

    def is_due(self, now: float) -> bool:
        """Whether all that wait are to be recorded now."""
        return (
            len(self.passes) >= self._limit
            or self._rows + self.passes[0].step.rows > self._most_rows
            or now - self._since > HELD_SECONDS
        )

    def are_left(self, now: float) -> bool:
        """Whether no further pass has come for as long as passes wait."""
        return bool(self.passes) and now - self._latest > HELD_SECONDS

    def are_sound(self) -> bool:
        """Whether no row has to be left out, and no pass; False, too, where that is not certain."""
        shape = (len(self.passes), -1, *self._ids.shape[1:])
        ids = self._ids[: self._rows].reshape(shape)
        if ids.shape[-1] > 1 and (ids[:, 0, :, 0] == ids[:, 0, :, 1]).any():
            return False
        if not self.passes[0].has_weights:
            return True
        with np.errstate(invalid="ignore"):  # of two infinities
            return math.isfinite(self._weights[: self._rows].sum())

    def joint(self) -> JointRows:
        """All of them as one."""
        passes, requests = len(self.passes), self.passes[0].step.rows
        positions = np.array([seen.step.first for seen in self.passes]).T
        tokens = [each for each in self._tokens if each is not None]
        return JointRows(
            self._by_request(self._ids),
            self._by_request(self._weights) if self.passes[0].has_weights else None,
            positions.reshape(-1),
            np.tile([seen.number for seen in self.passes], requests),
            np.array(tokens).T.reshape(-1) if len(tokens) == passes else None,
            np.full(requests, passes),
        )

    def _by_request(self, kept: NDArray[Any]) -> NDArray[Any]:
        """[H × R, L, k] as [R × H, L, k], contiguous; may be changed."""
        shape = (len(self.passes), -1, *kept.shape[1:])
        by_request = kept[: self._rows].reshape(shape).transpose(1, 0, 2, 3)
        return by_request.reshape(self._rows, *kept.shape[1:])

    def one_by_one(self) -> Iterator[tuple[SeenPass, HostRows]]:
        """Each pass with its rows."""
        at = 0
        for seen, tokens in zip(self.passes, self._tokens, strict=True):
            part = slice(at, at + seen.step.rows)
            at = part.stop
            yield seen, HostRows(self._ids[part], self._weights[part], (), None, tokens)

    def forget(self) -> None:
        """Wait for nothing any more."""
        self.passes, self._tokens, self._rows = [], [], 0
