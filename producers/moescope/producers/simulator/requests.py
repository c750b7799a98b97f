"""Every request of a simulation, as growing columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COLUMNS: dict[str, tuple[type[np.generic], int | float]] = {
    "content_seed": (np.uint64, 0),
    "pull_seed": (np.uint64, 0),
    "prefix_seed": (np.uint64, 0),
    "prefix_tokens": (np.int64, 0),
    "prefix_domain": (np.int64, 0),
    "prompt_tokens": (np.int64, 0),
    "last_position": (np.int64, 0),
    "cached_tokens": (np.int64, 0),
    "domain": (np.int64, 0),
    "second_domain": (np.int64, 0),
    "second_share": (np.float64, 0),
    "loop_start": (np.int64, 0),
    "loop_period": (np.int64, 0),
    "pulse_half_period": (np.int64, 0),
    "pulse_domain": (np.int64, 0),
    "forced_pull": (np.float64, 0),
    "first_phase": (np.int64, 0),
    "flags": (np.int64, 0),
    "last_of_task": (np.bool_, 0),
}


@dataclass(slots=True, kw_only=True)
class RequestPlan:
    """One request before it is served.

    Attributes:
        prompt_tokens: At least 1. output_tokens: At least 1; the last one is never computed.
        content_seed: Seed of what is said after the prefix; shared by the turns of a task.
        pull_seed: Seed of the favourite experts after the prefix; None: the content's.
        prefix_seed, prefix_tokens, prefix_domain: A beginning shared with other requests.
        loop_start, loop_period: From that position on the generation repeats itself.
        pulse_half_period, pulse_domain: Generated text alternates between two domains.
        forced_pull: Share of (token, layer) pairs pulled to a favourite; 0: the seed decides.
        first_phase: `Phase` of positions below `prompt_tokens`.
        flags: `RowFlag` bits of every row.
        turns_left: Further turns of the task.
        incidents: Names of the incidents that shaped it.
    """

    id: str
    task: str
    scene: str
    prompt_tokens: int
    output_tokens: int
    content_seed: int
    domain: int
    second_domain: int = 0
    second_share: float = 0.0
    pull_seed: int | None = None
    prefix_seed: int = 0
    prefix_tokens: int = 0
    prefix_domain: int = 0
    loop_start: int = 0
    loop_period: int = 0
    pulse_half_period: int = 0
    pulse_domain: int = 0
    forced_pull: float = 0.0
    first_phase: int = 0
    flags: int = 0
    turns_left: int = 0
    incidents: tuple[str, ...] = ()

    @property
    def last_position(self) -> int:
        """Position of the last token that is computed."""
        return self.prompt_tokens + self.output_tokens - 2


class RequestTable:
    """Columns over all requests; the index of a request never changes."""

    def __init__(self) -> None:
        self.plans: list[RequestPlan] = []
        self._columns: dict[str, NDArray[Any]] = {
            name: np.full(256, default, dtype) for name, (dtype, default) in _COLUMNS.items()
        }

    def __len__(self) -> int:
        """Number of requests."""
        return len(self.plans)

    def add(self, plan: RequestPlan) -> int:
        """Take in a request and return its index."""
        index = len(self.plans)
        if index == len(self._columns["domain"]):
            for name, old in self._columns.items():
                self._columns[name] = np.concatenate([old, np.full_like(old, _COLUMNS[name][1])])
        self.plans.append(plan)
        for name, column in self._columns.items():
            if name == "cached_tokens":
                continue
            if name == "pull_seed":
                value = plan.content_seed if plan.pull_seed is None else plan.pull_seed
            elif name == "last_of_task":
                value = plan.turns_left == 0
            else:
                value = getattr(plan, name)
            column[index] = value
        return index

    def column(self, name: str) -> NDArray[Any]:
        """One column, to be indexed with request indices."""
        return self._columns[name]

    def set_cached(self, index: int, tokens: int) -> None:
        """Note how many leading tokens of a request came from a prefix cache."""
        self._columns["cached_tokens"][index] = tokens
