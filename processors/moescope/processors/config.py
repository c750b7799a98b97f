"""Which windows a processor forms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moescope.core.errors import SettingsError
from moescope.core.router_sums import SIMILARITY_REQUESTS, SIMILARITY_TOKENS

if TYPE_CHECKING:
    from moescope.core.settings import Settings

LONGEST_TOKEN_WINDOW = 32_768
"""Counts of an open token window are 16 bits wide."""

MOST_ACCUMULATORS = 32

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowConfig:
    """Declared windows: (size, stride) in positions, µs and steps.

    `lag_ratio` is the share of requests whose last rows are kept for the lag overlap;
    `similarity_requests` and `similarity_tokens` say which requests of a pane are compared, and
    have to be the same wherever results are compared. `dead_letters_kept` is how many dead letters
    are kept whole per partition and minute.

    Raises:
        SettingsError: A window that cannot be formed.
    """

    token: Pairs = ((128, 128), (256, 256), (512, 512))
    time: Pairs = ((1_000_000, 1_000_000), (5_000_000, 5_000_000), (60_000_000, 60_000_000))
    task: bool = True
    step: Pairs = ((50, 50),)
    node_scope: bool = True
    scene_scope: bool = True
    scope_limit: int = 256
    row_budget: int = 600_000
    lag_ratio: float = 0.01
    similarity_requests: int = SIMILARITY_REQUESTS
    similarity_tokens: int = SIMILARITY_TOKENS
    dead_letters_kept: int = 60

    def __post_init__(self) -> None:
        """Refuse what the counters cannot hold."""
        longest = max((size for size, _ in self.token), default=0)
        if longest > LONGEST_TOKEN_WINDOW:
            raise SettingsError(
                f"A token window of {longest} positions is too long.",
                why=f"Token windows hold at most {LONGEST_TOKEN_WINDOW} positions.",
                next_step="Use a task window, or a smaller size in windows.token.",
            )
        overlaps = sum(size // stride for size, stride in self.token)
        if overlaps > MOST_ACCUMULATORS:
            raise SettingsError(
                f"The token windows overlap {overlaps} times at one position.",
                why=f"At most {MOST_ACCUMULATORS} token windows can be open at once per request.",
                next_step="Use larger strides in windows.token.",
            )

    @classmethod
    def from_settings(cls, settings: Settings) -> WindowConfig:
        """The window settings."""
        return cls(
            token=settings["windows.token"],
            time=settings["windows.time"],
            task=settings["windows.task"],
            step=settings["windows.step"],
            node_scope=settings["scopes.node"],
            scene_scope=settings["scopes.scene"],
            scope_limit=settings["scopes.limit"],
            row_budget=settings["store.token_row_budget"],
            lag_ratio=settings["profiles.lag_ratio"],
            dead_letters_kept=settings["dead_letters.kept_per_minute"],
        )

    @property
    def border(self) -> int:
        """Positions between two borders of any token window."""
        return math.gcd(*(value for pair in self.token for value in pair)) or 1

    @property
    def gap_limit(self) -> int:
        """Panes of the longest time window."""
        return max((size for size, _ in self.time), default=0) // 1_000_000

    @property
    def step_gap_limit(self) -> int:
        """Steps of the longest step window."""
        return max((size for size, _ in self.step), default=0)

    @property
    def step_pane(self) -> int:
        """Steps of a step pane; 0 when there are no step windows."""
        return math.gcd(*(value for pair in self.step for value in pair)) if self.step else 0
