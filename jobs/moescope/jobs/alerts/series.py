"""What an alert is about."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from moescope.storage.lanes import lane_id

if TYPE_CHECKING:
    from moescope.core.emission import LaneKey
    from moescope.core.exceedance import ExceedanceKey
    from moescope.core.thresholds import PagingRule


class RuleKey(NamedTuple):
    """Which rule a series follows; the fields are those of `PagingRule`."""

    phase: str
    kind: str
    size: int
    stride: int
    scope_kind: str
    family: str

    @classmethod
    def of(cls, rule: PagingRule) -> RuleKey:
        """The key of a rule."""
        return cls(rule.phase, rule.kind, rule.size, rule.stride, rule.scope_kind, rule.family)


class Model(NamedTuple):
    """Alerts of one model share their causes, whatever lane they come from."""

    domain: str
    model: str
    revision: str


class AlertSeries(NamedTuple):
    """One paging statistic: an `ExceedanceKey` without slot and version."""

    lane: LaneKey
    phase: str
    kind: str
    size: int
    stride: int
    scope_kind: str
    scope_value: str
    family: str

    @classmethod
    def of(cls, key: ExceedanceKey) -> AlertSeries:
        """The series that a slot belongs to."""
        return cls._make(key[:8])

    @property
    def rule_key(self) -> RuleKey:
        """Which rule it follows."""
        return RuleKey(self.phase, self.kind, self.size, self.stride, self.scope_kind, self.family)

    @property
    def model(self) -> Model:
        """Whose alert it is."""
        return Model(self.lane.domain, self.lane.model, self.lane.revision)

    def columns(self) -> dict[str, object]:
        """Values of the columns that name it."""
        return {
            "lane": lane_id(self.lane),
            "phase": str(self.phase),
            "window_kind": str(self.kind),
            "size": self.size,
            "stride": self.stride,
            "scope_kind": str(self.scope_kind),
            "scope_value": self.scope_value,
            "family": str(self.family),
        }

    @property
    def order(self) -> tuple[object, ...]:
        """A total order that is the same on every machine."""
        return tuple(self.columns().values())


def alert_id(series: AlertSeries, began_us: int) -> str:
    """The id of the alert of a series that began in a slot: 16 hexadecimal digits."""
    text = "\x1f".join(str(value) for value in (*series.columns().values(), began_us))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
