"""What came of each incident: windows, patterns, pages and delays, read from the store."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from moescope.console.demo.plan import MINUTE_US, SECOND_US
from moescope.console.demo.rows import rows_of
from moescope.core.exceedance import SLOT_US
from moescope.core.patterns import PATTERN_BY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import duckdb

    from moescope.console.demo.incidents import Stretch

WINDOW_KINDS: Final = (("token", 128), ("time", 5 * SECOND_US), ("time", MINUTE_US))
"""Kinds and sizes of windows that the scorecard shows."""

DECIDED_US: Final = SLOT_US + 2 * SECOND_US
"""From the begin of a slot, which `fired_at` names, until the slot can be judged."""

_WINDOWS = """
    SELECT window_kind, size,
        min(CASE WHEN window_kind = 'time' THEN start ELSE epoch_us(first_time) END) AS began,
        max(epoch_us(close_time)) AS closed,
        count(*) AS layers, count(*) FILTER (level = 'red') AS red,
        count(*) FILTER (level <> 'insufficient') AS judged,
        flatten(list(red_metrics) FILTER (level = 'red')) AS metrics
    FROM windows
    WHERE model = $model AND stride = size AND (complete OR window_kind = 'time')
        AND threshold_version IS NOT NULL
        AND first_time >= make_timestamp($begin) AND last_time < make_timestamp($end)
        AND (window_kind = 'token' AND (len($nodes) = 0 OR list_contains($nodes, node))
            OR window_kind = 'time'
                AND (len($nodes) = 0 AND scope_kind = $scope OR list_contains($nodes, scope_value)))
    GROUP BY window_kind, size, start, scope_kind, scope_value, request, task, phase, lane
"""

_FINDINGS = """
    SELECT pattern, pages, epoch_us(began_at) AS began, epoch_us(ended_at) AS ended
    FROM patterns LEFT JOIN lanes USING (lane)
    WHERE coalesce(model, json_extract_string(evidence_json, '$.model')) = $model
        AND ended_at > make_timestamp($begin) AND began_at < make_timestamp($end)
        AND (len($nodes) = 0 OR scope_kind <> 'node' OR list_contains($nodes, scope_value))
"""

_PAGES = """
    SELECT alert, family, window_kind, size, scope_kind, scope_value, epoch_us(began_at) AS began,
        epoch_us(fired_at) AS fired, caused_by
    FROM alerts JOIN lanes USING (lane)
    WHERE model = $model AND fired_at IS NOT NULL
    ORDER BY fired, alert
"""

_COVERED = """
    SELECT count(*) FILTER (level = 'insufficient' AND level_reason LIKE 'coverage%') AS uncovered,
        count(DISTINCT (start, scope_value)) AS windows
    FROM windows
    WHERE model = $model AND window_kind = 'time' AND size = 5000000 AND scope_kind = 'node'
        AND list_contains($nodes, scope_value) AND start >= $begin AND start < $end
"""


@dataclass(frozen=True, slots=True)
class Shown:
    """Windows of one kind during a stretch.

    Attributes:
        windows: Judged windows.
        red: Of these, red in at least half of the layers.
        blocks: Minutes with at least one judged window.
        red_blocks: Of these, with at least one red window.
        pointwise: Share of judged (window, layer) pairs that are red.
        delay_s: Median over red minutes from their begin to the close of the first red window.
        metric: Red metric seen most often, or "".
    """

    windows: int
    red: int
    blocks: int
    red_blocks: int
    pointwise: float
    delay_s: float | None
    metric: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one stretch.

    Attributes:
        shown: By `kind:size`.
        named_blocks: Pattern → minutes that a finding of it overlaps.
        pages: Pages of alerts that began in it; those sent with an open page are not pages.
        joined: Whether an alert began in it that had the same cause as an open page.
        page_delay_s: From its begin until the first page could be sent, in event time.
        uncovered_s: Seconds without data, or whose coverage was too low for a verdict.
        pulled: Whether the comparison with the twin shows the paired pattern.
    """

    stretch: Stretch
    shown: dict[str, Shown]
    named_blocks: dict[str, int]
    pages: tuple[str, ...]
    page_delay_s: float | None
    uncovered_s: int
    joined: bool = False
    pulled: bool = False

    @property
    def named(self) -> int:
        """Minutes in which the expected pattern was named."""
        return self.named_blocks.get(self.stretch.expected.pattern, 0)

    @property
    def other_names(self) -> dict[str, int]:
        """Patterns that were named besides the expected one, with their minutes."""
        expected = self.stretch.expected.pattern
        return {name: blocks for name, blocks in self.named_blocks.items() if name != expected}

    @property
    def false_names(self) -> dict[str, int]:
        """Of these, patterns that may page and do not come with the expected one."""
        return {
            name: blocks
            for name, blocks in self.other_names.items()
            if PATTERN_BY_NAME[name].pages and name not in self.stretch.expected.companions
        }


def outcomes(cursor: duckdb.DuckDBPyConnection, stretches: Iterable[Stretch]) -> list[Outcome]:
    """What came of each stretch, from one read of the store each."""
    listed = list(stretches)
    pages = {
        model: rows_of(cursor, _PAGES, model=model) for model in {each.model for each in listed}
    }
    return [_outcome(cursor, stretch, pages[stretch.model]) for stretch in listed]


def _outcome(
    cursor: duckdb.DuckDBPyConnection,
    stretch: Stretch,
    pages: Sequence[dict[str, Any]],
) -> Outcome:
    span: dict[str, Any] = {
        "model": stretch.model,
        "begin": stretch.start_us,
        "end": stretch.end_us,
        "nodes": list(stretch.nodes),
    }
    windows = rows_of(cursor, _WINDOWS, scope="node" if stretch.nodes else "all", **span)
    began = [page for page in pages if _began_in(page, stretch)]
    sent = [page for page in began if not page["caused_by"]]
    return Outcome(
        stretch=stretch,
        shown={
            f"{kind}:{size}": _shown(
                [w for w in windows if (w["window_kind"], w["size"]) == (kind, size)],
                stretch.start_us,
            )
            for kind, size in WINDOW_KINDS
        },
        named_blocks=_named(rows_of(cursor, _FINDINGS, **span), stretch),
        pages=tuple(f"{page['family']} in {page['window_kind']} windows" for page in sent),
        joined=len(began) > len(sent),
        page_delay_s=min(
            ((page["fired"] + DECIDED_US - stretch.start_us) / SECOND_US for page in sent),
            default=None,
        ),
        uncovered_s=_uncovered(cursor, stretch, span),
    )


def _began_in(page: dict[str, Any], stretch: Stretch) -> bool:
    """Whether a page is because of a stretch: its first slot over the line ends in it."""
    if stretch.nodes:
        if page["scope_kind"] == "node" and page["scope_value"] not in stretch.nodes:
            return False
        if page["scope_kind"] != "node" and stretch.expected.coverage:
            return False
    return bool(stretch.start_us - SLOT_US < page["began"] < stretch.end_us)


def _shown(windows: Sequence[dict[str, Any]], start_us: int) -> Shown:
    judged = [window for window in windows if window["judged"]]
    red = [window for window in judged if 2 * window["red"] >= window["layers"]]
    first: dict[int, int] = {}
    for window in sorted(red, key=lambda each: int(each["closed"])):
        block = (window["began"] - start_us) // MINUTE_US
        first.setdefault(block, window["closed"] - (start_us + block * MINUTE_US))
    pairs = sum(window["judged"] for window in judged)
    metrics = Counter(name for window in red for name in window["metrics"] or ())
    return Shown(
        windows=len(judged),
        red=len(red),
        blocks=len({(window["began"] - start_us) // MINUTE_US for window in judged}),
        red_blocks=len(first),
        pointwise=sum(window["red"] for window in judged) / pairs if pairs else 0.0,
        delay_s=median(first.values()) / SECOND_US if first else None,
        metric=min(metrics, key=lambda name: (-metrics[name], name), default=""),
    )


def _named(findings: Sequence[dict[str, Any]], stretch: Stretch) -> dict[str, int]:
    named: dict[str, set[int]] = {}
    for finding in findings:
        begin = max(finding["began"], stretch.start_us)
        end = min(finding["ended"], stretch.end_us)
        blocks = range(
            (begin - stretch.start_us) // MINUTE_US,
            -((stretch.start_us - end) // MINUTE_US),
        )
        named.setdefault(finding["pattern"], set()).update(blocks)
    return {name: len(blocks) for name, blocks in sorted(named.items())}


def _uncovered(cursor: duckdb.DuckDBPyConnection, stretch: Stretch, span: dict[str, Any]) -> int:
    """Node seconds of a stretch that moescope did not judge for want of data."""
    if not stretch.nodes:
        return 0
    (row,) = rows_of(cursor, _COVERED, **span)
    (layers,) = rows_of(
        cursor,
        "SELECT max(len(layers)) AS layers FROM lanes WHERE model = $model",
        model=stretch.model,
    )
    windows = len(stretch.nodes) * (stretch.end_us - stretch.start_us) // (5 * SECOND_US)
    low = row["uncovered"] // max(layers["layers"] or 1, 1)
    return 5 * (max(0, windows - int(row["windows"])) + int(low))
