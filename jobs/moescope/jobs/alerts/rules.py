"""Which rules hold in a slot, and what they make of its exceedances."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from moescope.core.exceedance import SLOT_US
from moescope.jobs.alerts.series import RuleKey
from moescope.jobs.paging import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from moescope.core.emission import LaneKey
    from moescope.core.exceedance import Exceedance
    from moescope.core.thresholds import PagingRule, ThresholdBook, ThresholdVersion
    from moescope.jobs.alerts.series import AlertSeries

Rules = dict[RuleKey, "PagingRule"]


class Judged(NamedTuple):
    """What a slot says about a series.

    Attributes:
        verdict: As the rules say.
        rule: Of the newest version that judged.
        worst: The greatest exceedance, or None where the mix explains everything.
        version: Version that judged the worst.
    """

    verdict: Verdict
    rule: PagingRule
    worst: Exceedance | None
    version: str


class RulesInForce:
    """Rules by slot, read from the book of thresholds.

    A slot can lie across a change of versions: then both are in force in it, and each judges the
    windows that closed in its time.
    """

    def __init__(self, book: ThresholdBook) -> None:
        self._book = book
        self._edition = -1
        self._rules: dict[str, Rules] = {}
        self._slot_us: int | None = None
        self._in_slot: dict[LaneKey, dict[str, Rules]] = {}

    def for_lane(self, lane: LaneKey, slot_us: int) -> Mapping[str, Rules]:
        """Rules by name of version, the older version first."""
        if self._edition != self._book.edition:
            self._edition, self._rules, self._slot_us = self._book.edition, {}, None
        if self._slot_us != slot_us:
            self._slot_us, self._in_slot = slot_us, {}
        found = self._in_slot.get(lane)
        if found is None:
            found = {
                version.version: self._rules_of(version)
                for time_us in (slot_us, slot_us + SLOT_US - 1)
                if (version := self._book.at(lane, time_us)) is not None
            }
            self._in_slot[lane] = found
        return found

    def newest(self, series: AlertSeries, slot_us: int) -> PagingRule | None:
        """The rule of a series at the end of a slot, if it has one."""
        version = self._book.at(series.lane, slot_us + SLOT_US - 1)
        return None if version is None else self._rules_of(version).get(series.rule_key)

    def of_version(self, series: AlertSeries, version: str, slot_us: int) -> PagingRule | None:
        """The rule of a series in a version; the newest one if that is out of the book."""
        rules = self._rules.get(version, {})
        return rules.get(series.rule_key) or self.newest(series, slot_us)

    def judge(
        self, series: AlertSeries, slot_us: int, parts: Iterable[tuple[str, Exceedance]]
    ) -> Judged | None:
        """What a slot says about a series; None: no rule in force looks at it.

        Args:
            series: The series.
            slot_us: The slot.
            parts: Name of the version that judged, and its exceedance in the slot.
        """
        by_version = dict(parts)
        found: Judged | None = None
        for version, rules in self.for_lane(series.lane, slot_us).items():
            part, rule = by_version.get(version), rules.get(series.rule_key)
            if part is not None and rule is not None:
                found = _joined(found, _judged(part, rule, version))
        return found

    def _rules_of(self, version: ThresholdVersion) -> Rules:
        rules = self._rules.get(version.version)
        if rules is None:
            rules = {RuleKey.of(rule): rule for rule in version.paging}
            self._rules[version.version] = rules
        return rules


def _judged(part: Exceedance, rule: PagingRule, version: str) -> Judged:
    if not part.value > -math.inf:
        return Judged(Verdict.EXPLAINED, rule, None, version)
    verdict = Verdict.OVER if part.paging_value(rule.kind) > rule.line else Verdict.UNDER
    return Judged(verdict, rule, part, version)


_SAYS_MOST = (Verdict.EXPLAINED, Verdict.UNDER, Verdict.OVER)


def _joined(older: Judged | None, newer: Judged) -> Judged:
    if older is None:
        return newer
    verdict = max(older.verdict, newer.verdict, key=_SAYS_MOST.index)
    parts = [each for each in (older, newer) if each.worst is not None]
    worst = max(
        parts, key=lambda each: each.worst.value if each.worst else -math.inf, default=newer
    )
    return Judged(verdict, newer.rule, worst.worst, worst.version)
