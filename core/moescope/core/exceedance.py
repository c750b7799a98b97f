"""What paging reads: per 5 s of event time the worst exceedance of all windows, kept or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from moescope.core.vocabulary import WindowKind

if TYPE_CHECKING:
    from moescope.core.emission import LaneKey

SLOT_US = 5_000_000
"""Length of a slot of the paging statistic."""

LEAST_RED_SHARE = 0.25
"""Of token windows so many have to be red before their worst one may page.

A token window belongs to one request. The worst of many windows is decided by the oddest request
of the moment, and an odd request is no fault of the model; a fault of the model shows in many.
"""

FEWEST_RED = 3
"""And at least so many: of a few windows a quarter is one request again."""


def are_few(windows: int, red_windows: int) -> bool:
    """Whether so few token windows are red that their worst one must not page."""
    return red_windows < max(FEWEST_RED, LEAST_RED_SHARE * windows)


class ExceedanceKey(NamedTuple):
    """One slot of one paging statistic.

    Attributes:
        lane, phase, kind, size, stride, scope_kind, scope_value: As in `WindowGroup`.
        family: Of `moescope.core.metrics.Family`.
        slot_us: ⌊logical close time / SLOT_US⌋ · SLOT_US.
        version: Threshold version that judged.
    """

    lane: LaneKey
    phase: str
    kind: str
    size: int
    stride: int
    scope_kind: str
    scope_value: str
    family: str
    slot_us: int
    version: str


@dataclass(frozen=True, slots=True)
class Exceedance:
    """The worst of a slot's judged windows. Merging (`worse_of`) commutes.

    Attributes:
        value: max over windows, layers and the family's metrics of (v − red_high) / spread or
            (red_low − v) / spread; −inf when nothing was judged.
        metric, layer, start, request: Where that was; `layer` is the decoder layer's index.
        windows: Judged windows.
        red_windows: Of these, windows with a red metric of the family at any layer.
        mixed_windows: Judged windows whose `mix_shift` was red at any layer; outside of family
            `routing` they do not enter `value`, since the traffic explains them.
    """

    value: float
    metric: str
    layer: int
    start: int
    request: str
    windows: int
    red_windows: int
    mixed_windows: int

    def paging_value(self, kind: str) -> float:
        """What paging compares with its line: at most 0 where only a few token windows are red.

        Args:
            kind: Kind of the windows.
        """
        few = kind == WindowKind.TOKEN and are_few(self.windows, self.red_windows)
        return min(self.value, 0.0) if few else self.value

    def merged(self, other: Exceedance) -> Exceedance:
        """Both together; ties go to the earliest window, so that order never matters."""
        worst = min(
            (self, other),
            key=lambda each: (-each.value, each.start, each.request, each.layer, each.metric),
        )
        return Exceedance(
            worst.value,
            worst.metric,
            worst.layer,
            worst.start,
            worst.request,
            self.windows + other.windows,
            self.red_windows + other.red_windows,
            self.mixed_windows + other.mixed_windows,
        )


Exceedances = dict[ExceedanceKey, Exceedance]
"""Per slot; two of the same key merge."""
