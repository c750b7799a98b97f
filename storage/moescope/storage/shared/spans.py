"""Names for windows that are planned, before anything is summed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from moescope.core.vocabulary import WindowKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moescope.core.emission import LaneKey, SharedDelta
    from moescope.core.vocabulary import ScopeKind

SECOND_US = 1_000_000
LATENESS_US = 2 * SECOND_US
"""A time window closes this long after its end."""
RETENTION_US = 600 * SECOND_US
"""How long past closing late deltas still change a shared window."""

Shape = tuple[int, int]
"""(size, stride) of declared windows."""


class Series(NamedTuple):
    """What windows that can share panes have in common."""

    lane: LaneKey
    phase: str
    kind: WindowKind
    scope_kind: ScopeKind
    scope_value: str
    task: str = ""

    @classmethod
    def of(cls, delta: SharedDelta) -> Series:
        """The series that a delta belongs to."""
        return cls(
            delta.lane,
            delta.phase,
            delta.kind,
            delta.scope_kind,
            delta.scope_value,
            delta.task if delta.kind is WindowKind.TASK else "",
        )


class WindowSpan(NamedTuple):
    """One shared window, as the panes that it is made of: `low` ≤ pane < `high`."""

    series: Series
    size: int
    stride: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class WindowShapes:
    """Declared windows.

    Attributes:
        time: (size, slide) in µs, whole seconds, each size a multiple of its slide.
        step: (size, stride) in steps, each size a multiple of its stride.
    """

    time: tuple[Shape, ...]
    step: tuple[Shape, ...]

    def of(self, kind: WindowKind) -> tuple[Shape, ...]:
        """Shapes of a kind; task windows have none."""
        if kind is WindowKind.TIME:
            return self.time
        return self.step if kind is WindowKind.STEP else ()

    def last_end(self, kind: WindowKind, pane: int) -> int:
        """End of the last window that a pane is part of; the pane itself without windows."""
        return max([pane - pane % stride + size for size, stride in self.of(kind)], default=pane)


def starts_around(pane: int, size: int, stride: int) -> Iterator[int]:
    """Starts of the windows of one shape that contain a pane, latest first."""
    latest = pane - pane % stride
    return iter(range(latest, pane - size, -stride))
