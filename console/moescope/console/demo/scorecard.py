"""What came of each incident: windows, patterns, pages and delays, read from the store."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from moescope.console.demo.plan import MINUTE_US, SECOND_US
from moescope.core.patterns import PATTERN_BY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import duckdb

    from moescope.console.demo.incidents import Stretch

WINDOW_KINDS: Final = (("token", 128), ("time", 5 * SECOND_US), ("time", MINUTE_US))
"""Kinds and sizes of windows that the scorecard shows."""

AFTERGLOW_US: Final = 90 * SECOND_US
"""A page fired so soon after an incident still belongs to it: `for` and lateness take time."""

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
        pages: Pages that fired in it, one per cause.
        page_delay_s: From its begin to the first of them.
        uncovered_s: Seconds without data, or whose coverage was too low for a verdict.
        pulled: Whether the comparison with the twin shows the paired pattern.
    """

    stretch: Stretch
    shown: dict[str, Shown]
    named_blocks: dict[str, int]
    pages: tuple[str, ...]
    page_delay_s: float | None
    uncovered_s: int
    pulled: bool = False

    @property
    def named(self) -> int:
        """Minutes in which the expected pattern was named."""
        return self.named_blocks.get(self.stretch.expected.pattern, 0)

    @property
    def false_names(self) -> dict[str, int]:
        """Patterns that may page and were named although another one, or none, was expected."""
        return {
            name: blocks
            for name, blocks in self.named_blocks.items()
            if name != self.stretch.expected.pattern
            and PATTERN_BY_NAME[name].pages
            and not self.stretch.expected.pattern
        }


def outcomes(cursor: duckdb.DuckDBPyConnection, stretches: Iterable[Stretch]) -> list[Outcome]:
    """What came of each stretch, from one read of the store each."""
    listed = list(stretches)
    pages = {model: _rows(cursor, _PAGES, model=model) for model in {each.model for each in listed}}
    return [_outcome(cursor, stretch, listed, pages[stretch.model]) for stretch in listed]


def _outcome(
    cursor: duckdb.DuckDBPyConnection,
    stretch: Stretch,
    stretches: Sequence[Stretch],
    pages: Sequence[dict[str, Any]],
) -> Outcome:
    span: dict[str, Any] = {
        "model": stretch.model,
        "begin": stretch.start_us,
        "end": stretch.end_us,
        "nodes": list(stretch.nodes),
    }
    windows = _rows(cursor, _WINDOWS, scope="node" if stretch.nodes else "all", **span)
    fired = [page for page in pages if _belongs(page, stretch, stretches)]
    return Outcome(
        stretch=stretch,
        shown={
            f"{kind}:{size}": _shown(
                [w for w in windows if (w["window_kind"], w["size"]) == (kind, size)],
                stretch.start_us,
            )
            for kind, size in WINDOW_KINDS
        },
        named_blocks=_named(_rows(cursor, _FINDINGS, **span), stretch),
        pages=tuple(
            f"{page['family']} in {page['window_kind']} windows"
            for page in fired
            if not page["caused_by"]
        ),
        page_delay_s=min(
            ((page["fired"] - stretch.start_us) / SECOND_US for page in fired), default=None
        ),
        uncovered_s=_uncovered(cursor, stretch, span),
    )


def _belongs(page: dict[str, Any], stretch: Stretch, stretches: Sequence[Stretch]) -> bool:
    """Whether a page is because of a stretch: it began in it, or else fired in it."""
    same = [
        each
        for each in stretches
        if each.model == stretch.model
        and (not each.nodes or page["scope_kind"] != "node" or page["scope_value"] in each.nodes)
    ]
    began = [
        each
        for each in same
        if each.start_us <= page["began"] < each.end_us
        and page["fired"] < each.end_us + AFTERGLOW_US
        and _is_incident(each)
    ]
    fired = [each for each in same if each.start_us <= page["fired"] < each.end_us]
    return stretch in (began or fired)


def _is_incident(stretch: Stretch) -> bool:
    return bool(stretch.expected.pattern or stretch.expected.token or stretch.expected.time)


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
    (row,) = _rows(cursor, _COVERED, **span)
    (layers,) = _rows(
        cursor,
        "SELECT max(len(layers)) AS layers FROM lanes WHERE model = $model",
        model=stretch.model,
    )
    windows = len(stretch.nodes) * (stretch.end_us - stretch.start_us) // (5 * SECOND_US)
    low = row["uncovered"] // max(layers["layers"] or 1, 1)
    return 5 * (max(0, windows - int(row["windows"])) + int(low))


def _rows(
    cursor: duckdb.DuckDBPyConnection, query: str, **parameters: object
) -> list[dict[str, Any]]:
    answer = cursor.execute(query, parameters)
    names = [column[0] for column in answer.description or ()]
    return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]
