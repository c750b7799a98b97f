"""The remembered requests of a lane: slots, their open token windows and tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moescope.core.router_sums import ROUTER_SUMS
from moescope.processors.kernels.records import NONE, SLOT, SPEC, WINDOW
from moescope.processors.kernels.transitions import forget
from moescope.processors.lags import NO_RING, LagRings
from moescope.processors.row_sampling import keep_hash
from moescope.processors.similarity import similarity_hash

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from moescope.processors.config import WindowConfig

FIRST_CAPACITY = 64
FIRST_COUNTS = 2**22
"""A lane of many layers and experts starts with fewer slots."""
MEMORY = (
    "last_position", "last_time", "last_offset", "last_pane", "last_step_pane", "last_task_minute",
    "phase", "scene", "task",
)  # fmt: skip
"""What later rows of a request depend on, when nothing of it is open."""


class RequestSlots:
    """Slots by request id, growing by doubling.

    Attributes:
        slots: records [capacity]; windows: records [capacity, accumulators].
        specs: declared token windows. rings: last rows of sampled requests.
        window_counts: uint16 [capacity, accumulators, L·E]; task_counts: uint32 [capacity, L·E];
    XX with L instead of L·E.
        names: request id per slot.
    """

    def __init__(
        self, layers: int, experts: int, config: WindowConfig, *, with_router: bool
    ) -> None:
        self._width = layers * experts
        self._with_tasks = config.task
        self.specs = np.zeros(len(config.token), SPEC)
        base = 0
        for spec, (size, stride) in enumerate(config.token):
            self.specs[spec] = (size, stride, base, size // stride)
            base += size // stride
        self._accumulators = base
        self.rings = LagRings(
            layers, experts, config.lag_ratio if with_router and config.time else 0.0
        )
        self._slot_of: dict[str, int] = {}
        self._free: list[int] = []
        self.names: list[str] = []
        self.slots = np.zeros(0, SLOT)
        self.windows = np.zeros((0, base), WINDOW)
        self.window_counts = np.zeros((0, base, self._width), np.uint16)
        self.window_dropped = np.zeros((0, base, layers), np.uint64)
        sums = layers * ROUTER_SUMS if with_router else 0
        self.window_router = np.zeros((0, base, sums), np.int64)
        self.task_counts = np.zeros((0, self._width if config.task else 0), np.uint32)
        self.task_dropped = np.zeros((0, layers if config.task else 0), np.uint64)
        self.task_router = np.zeros((0, sums if config.task else 0), np.int64)

    def __len__(self) -> int:
        """Remembered requests."""
        return len(self._slot_of)

    def _grow(self, wanted: int) -> None:
        used = len(self.slots)
        roomy = FIRST_COUNTS // max(self._width, 1)
        capacity = max(1, min(FIRST_CAPACITY, roomy), used)
        while capacity < wanted:
            capacity *= 2
        for name in (
            "slots", "windows", "window_counts", "window_dropped", "window_router",
            "task_counts", "task_dropped", "task_router",
        ):  # fmt: skip
            old = getattr(self, name)
            new = np.zeros((capacity, *old.shape[1:]), old.dtype)
            new[:used] = old
            setattr(self, name, new)
        self.names += [""] * (capacity - used)
        self._free += range(capacity - 1, used - 1, -1)
        for slot in range(used, capacity):
            forget(self.slots, self.windows, slot)

    def find(self, request: str) -> int | None:
        """Slot of a request, or None."""
        return self._slot_of.get(request)

    def claim(self, requests: Sequence[str]) -> NDArray[np.int64]:
        """Slots of these requests, new ones for those not remembered."""
        slot_of = self._slot_of
        found = [slot_of.get(request, NONE) for request in requests]
        missing = found.count(NONE)
        if missing > len(self._free):
            self._grow(len(self.slots) + missing - len(self._free))
        if missing:
            for index, slot in enumerate(found):
                if slot == NONE:
                    # Two rows of the request table may name one request.
                    found[index] = self._claim_one(requests[index])
        return np.array(found, np.int64)

    def _claim_one(self, request: str) -> int:
        known = self._slot_of.get(request)
        if known is not None:
            return known
        slot = self._free.pop()
        self._slot_of[request] = slot
        self.names[slot] = request
        self.slots[slot]["live"] = 1
        self.slots[slot]["request_hash"] = keep_hash(request)
        self.slots[slot]["similarity_hash"] = similarity_hash(request)
        self.slots[slot]["ring"] = self.rings.take(request)
        return slot

    def release(self, slots: NDArray[np.int64]) -> None:
        """Give back the slots of requests that are forgotten (and hold nothing open)."""
        for slot in slots.tolist():
            if not self.slots[slot]["live"]:
                continue
            del self._slot_of[self.names[slot]]
            forget(self.slots, self.windows, slot)
            self.rings.give_back(int(self.slots[slot]["ring"]))
            self.slots[slot]["live"] = 0
            self.names[slot] = ""
            self._free.append(slot)

    def live(self) -> NDArray[np.int64]:
        """Slots in use."""
        return np.flatnonzero(self.slots["live"])

    def lowest_open_offset(self) -> int | None:
        """Lowest record offset that an open window, a task piece or a kept row still needs."""
        offsets = []
        open_windows = self.windows["open"] != 0
        if open_windows.any():
            offsets.append(int(self.windows["offset"][open_windows].min()))
        if self._with_tasks:
            open_tasks = self.slots["task_seen"] > 0
            if open_tasks.any():
                offsets.append(int(self.slots["task_offset"][open_tasks].min()))
        sampled = (self.slots["live"] != 0) & (self.slots["ring"] != NO_RING)
        if sampled.any():
            slots = self.slots[sampled]
            kept = self.rings.lowest_offset(slots["ring"], slots["contiguous"])
            if kept is not None:
                offsets.append(kept)
        return min(offsets, default=None)

    def idle(self, replay_from: int) -> tuple[list[str], NDArray[np.int64]]:
        """Requests that no record from `replay_from` on brings back, and their memory.

        Returns:
            Names, and int64 [n, len(MEMORY)].
        """
        slots = self.live()
        slots = slots[self.slots["last_offset"][slots] < replay_from]
        memory = np.stack([self.slots[name][slots] for name in MEMORY], axis=1)
        return [self.names[slot] for slot in slots.tolist()], memory

    def remember(self, names: Sequence[str], memory: NDArray[np.int64]) -> NDArray[np.int64]:
        """Take over what `idle` told; gives the slots."""
        slots = self.claim(names)
        for column, name in enumerate(MEMORY):
            self.slots[name][slots] = memory[:, column]
        return slots

    def open_pieces(self) -> tuple[list[str], NDArray[np.int64]]:
        """Requests with an open task piece, and the minutes since the piece before."""
        slots = np.flatnonzero(self.slots["task_seen"] > 0)
        return [self.names[slot] for slot in slots.tolist()], self.slots["task_gap"][slots]

    def drop_open(self, slot: int, accumulator: int) -> None:
        """Throw away an open window's counts (only when replay has rebuilt a closed one)."""
        self.windows[slot, accumulator]["open"] = 0
        self.window_counts[slot, accumulator] = 0
        self.window_dropped[slot, accumulator] = 0
        self.window_router[slot, accumulator] = 0
