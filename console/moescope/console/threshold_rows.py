"""Rows behind `moescope threshold list | show | diff`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from moescope.console.reading import window_words
from moescope.console.times import shown
from moescope.core.errors import InputError
from moescope.core.metrics import METRIC_NAMES
from moescope.core.thresholds import ThresholdScope

if TYPE_CHECKING:
    from moescope.console.reading import Reader

VERSIONS_SQL: Final = """
    WITH sizes AS (
        SELECT version, count(*) AS lines, count(*) FILTER (standing = 'firm') AS firm
        FROM thresholds GROUP BY version
    ), judging AS (
        SELECT version, arg_max(effective_from_us, activation) AS effective_from_us
        FROM threshold_activations GROUP BY version
    )
    SELECT v.version, v.model, v.revision, v.origin, v.fidelity, v.sampling_ratio, v.status,
        v.baseline, v.baseline_version, v.created_at, v.author, v.reason,
        coalesce(s.lines, 0) AS lines, coalesce(s.firm, 0) AS firm, j.effective_from_us
    FROM threshold_versions v LEFT JOIN sizes s USING (version) LEFT JOIN judging j USING (version)
    ORDER BY v.created_at, v.version
"""

_WINDOWS: Final = "phase, window_kind, size, stride, scope_kind"

_SUMMARY_SQL: Final = """
    SELECT phase, window_kind, size, stride, scope_kind, metric, count(*) AS lines,
        count(DISTINCT layer) AS layers, count(DISTINCT scene) AS scenes,
        count(DISTINCT band) AS bands, count(*) FILTER (standing = 'firm') AS firm,
        min(units) AS fewest_units
    FROM thresholds WHERE version = ? GROUP BY ALL ORDER BY ALL
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFilter:
    """Which lines to show; empty: any."""

    metric: str = ""
    layer: int | None = None
    kind: str = ""

    @property
    def is_set(self) -> bool:
        """Whether it leaves any line out."""
        return bool(self.metric or self.kind or self.layer is not None)


def version_document(reader: Reader, version: str, lines: LineFilter) -> dict[str, Any]:
    """A version with its summary or, filtered, its lines; its paging rules and activations.

    Raises:
        InputError: There is no such version, or the filter names no metric.
    """
    _check_metric(lines.metric)
    row = reader.one(
        "SELECT * EXCLUDE (commit_id) FROM threshold_versions WHERE version = ?",
        [version],
        f"There is no threshold version {version!r}.",
    )
    head = {
        **{name: value for name, value in row.items() if not name.endswith("_json")},
        "created_at": shown(row["created_at"]),
        "layers": len(row["layers"]),
    }
    document: dict[str, Any] = {
        "head": head,
        "layers": row["layers"],
        "calibration": json.loads(row["summary_json"]),
        "paging": reader.rows(
            "SELECT * EXCLUDE (version, commit_id) FROM paging_rules WHERE version = ?"
            " ORDER BY ALL",
            [version],
        ),
        "activations": reader.rows(
            "SELECT activation, effective_from_us, activated_at, action, author, reason"
            " FROM threshold_activations WHERE version = ? ORDER BY activation",
            [version],
        ),
    }
    if lines.is_set:
        document["lines"] = _lines(reader, version, lines)
    else:
        document["summary"] = reader.rows(
            _SUMMARY_SQL,
            [version],
        )
    return document


def _check_metric(name: str) -> None:
    if not name or name in METRIC_NAMES:
        return
    near = [each for each in METRIC_NAMES if name in each]
    near += [each for each in get_close_matches(name, METRIC_NAMES) if each not in near]
    raise InputError(
        f"There is no metric {name!r}.",
        why=f"Near to it are: {', '.join(near)}." if near else "",
        next_step="`moescope threshold show VERSION` without --metric lists those with lines.",
    )


def _lines(reader: Reader, version: str, lines: LineFilter) -> list[dict[str, Any]]:
    return reader.rows(
        "SELECT * EXCLUDE (version, commit_id) FROM thresholds WHERE version = ?"
        " AND ? IN ('', metric) AND ? IN ('', window_kind) AND coalesce(layer = ?, true)"
        " ORDER BY ALL",
        [version, lines.metric, lines.kind, lines.layer],
    )


SUMMARY_HEAD: Final = (
    "phase", "window", "scope", "metric", "lines", "layers", "scenes", "bands", "firm",
    "fewest units",
)  # fmt: skip

LINE_HEAD: Final = (
    "phase", "window", "scope", "scene", "band", "metric", "layer", "red low", "warn low",
    "centre", "warn high", "red high", "units", "standing", "taken from",
)  # fmt: skip


def summary_cells(row: dict[str, Any]) -> tuple[object, ...]:
    """A row of the summary."""
    return (
        row["phase"], window_words(row), row["scope_kind"], row["metric"], row["lines"],
        row["layers"], row["scenes"], row["bands"], row["firm"], row["fewest_units"],
    )  # fmt: skip


def line_cells(row: dict[str, Any]) -> tuple[object, ...]:
    """A row of the lines."""
    return (
        row["phase"], window_words(row), row["scope_kind"], row["scene"], row["band"],
        row["metric"], row["layer"], row["red_low"], row["warn_low"], row["centre"],
        row["warn_high"], row["red_high"], row["units"], row["standing"], row["source"],
    )  # fmt: skip


def diff_rows(reader: Reader, old: str, new: str) -> list[dict[str, Any]]:
    """Per kind of window and metric: lines in both or one, and the farthest moves.

    Raises:
        InputError: One of the versions does not exist, or they are for different windows.
    """
    _check_same_scope(reader, old, new)
    return reader.rows(
        f"""
        WITH pairs AS (
            SELECT {_WINDOWS}, scene, band, metric, layer, a.version IS NOT NULL AS in_old,
                b.version IS NOT NULL AS in_new,
                coalesce(b.warn_high - a.warn_high, b.warn_low - a.warn_low) / a.spread AS warn,
                coalesce(b.red_high - a.red_high, b.red_low - a.red_low) / a.spread AS red
            FROM (SELECT * FROM thresholds WHERE version = ?) a
            FULL JOIN (SELECT * FROM thresholds WHERE version = ?) b
            USING ({_WINDOWS}, scene, band, metric, layer)
        )
        SELECT {_WINDOWS}, metric, count(*) FILTER (in_old AND in_new) AS both,
            count(*) FILTER (NOT in_new) AS only_old, count(*) FILTER (NOT in_old) AS only_new,
            arg_max(warn, abs(warn)) AS warn_move, arg_max(red, abs(red)) AS red_move,
            arg_max(layer, abs(red)) AS layer
        FROM pairs GROUP BY ALL ORDER BY max(abs(red)) DESC NULLS LAST, {_WINDOWS}, metric
        """,  # noqa: S608 (column names)
        [old, new],
    )


def _check_same_scope(reader: Reader, old: str, new: str) -> None:
    fields = ThresholdScope._fields
    scopes = [
        reader.one(
            f"SELECT {', '.join(fields)} FROM threshold_versions WHERE version = ?",  # noqa: S608 - names of our own
            [version],
            f"There is no threshold version {version!r}.",
        )
        for version in (old, new)
    ]
    before, after = scopes
    differing = [name for name in fields if before[name] != after[name]]
    if differing:
        told = (
            f"{version} is for {', '.join(f'{name} {scope[name]}' for name in differing)}"
            for version, scope in zip((old, new), scopes, strict=True)
        )
        raise InputError(
            "The two versions are for different windows and cannot be compared.",
            why=f"{'; '.join(told)}.",
            next_step="`moescope threshold list` shows which versions belong together.",
        )


def rollback_question(reader: Reader, model: str, revision: str) -> str:
    """What to ask before a rollback: it says which version judges afterwards, if any."""
    from moescope.jobs.calibration import standing_versions

    fields = ", ".join(ThresholdScope._fields)
    rows = reader.rows(
        f"SELECT {fields}, action, version FROM threshold_activations"  # noqa: S608 (field names)
        " WHERE ? IN ('', model) AND ? IN ('', revision) ORDER BY activation",
        [model, revision],
    )
    scopes = {tuple(row[name] for name in ThresholdScope._fields) for row in rows}
    standing = (
        standing_versions((row["action"], row["version"]) for row in rows)
        if len(scopes) == 1
        else []
    )
    if not standing:
        return "Take the newest activation back?"
    newest, before = standing[-1], standing[-2] if len(standing) > 1 else ""
    if before:
        return f"Take {newest} back, and let {before} judge again?"
    return (
        f"Take {newest} back? No version was in force before it: judging goes OFF, windows become"
        " insufficient, and nothing pages any more."
    )
