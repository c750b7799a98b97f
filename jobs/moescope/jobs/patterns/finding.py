"""One finding, and how it becomes a row of `patterns`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from moescope.core.patterns import PATTERN_BY_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A named stretch of windows.

    Attributes:
        pattern: Name in `moescope.core.patterns`.
        lane: Id of the lane; empty where the finding is about a producer.
        phase, scope_kind, scope_value, window_kind, size: The windows that show it.
        began_us, ended_us: Event time.
        confidence: 0 … 1.
        evidence: What was seen, for people and programs.
        known_as: Its stored id, once it has one: a stretch that grows keeps it.
    """

    pattern: str
    lane: str
    phase: str
    scope_kind: str
    scope_value: str
    window_kind: str
    size: int
    began_us: int
    ended_us: int
    confidence: float
    evidence: Mapping[str, Any] = field(default_factory=dict)
    known_as: str = ""

    @property
    def series(self) -> tuple[str, ...]:
        """What findings of one stretch have in common, however often they are found."""
        return (
            self.pattern,
            self.lane,
            self.phase,
            self.scope_kind,
            self.scope_value,
            self.window_kind,
            str(self.size),
        )

    @property
    def name(self) -> str:
        """Id: a digest of series and of the begin as first seen."""
        if self.known_as:
            return self.known_as
        text = "\0".join((*self.series, str(self.began_us)))
        return "p-" + blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()

    def extended(self, earlier: Finding) -> Finding:
        """The same stretch, found again: it keeps the begin, and what was strongest."""
        stronger = max(earlier, self, key=lambda each: (each.confidence, -each.began_us))
        return replace(
            self,
            began_us=min(self.began_us, earlier.began_us),
            ended_us=max(self.ended_us, earlier.ended_us),
            confidence=stronger.confidence,
            evidence=stronger.evidence,
            known_as=earlier.name,
        )

    def row(self) -> dict[str, Any]:
        """A row of `patterns`; times in µs."""
        declared = PATTERN_BY_NAME[self.pattern]
        return {
            "finding": self.name,
            "pattern": self.pattern,
            "lane": self.lane,
            "phase": self.phase,
            "scope_kind": self.scope_kind,
            "scope_value": self.scope_value,
            "window_kind": self.window_kind,
            "size": self.size,
            "began_at": self.began_us,
            "ended_at": self.ended_us,
            "confidence": self.confidence,
            "pages": declared.pages,
            "evidence_json": json.dumps(dict(self.evidence), sort_keys=True),
            "likely_cause": declared.likely_cause,
            "next_step": declared.next_step,
        }
