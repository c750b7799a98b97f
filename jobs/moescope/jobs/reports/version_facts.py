"""Who made a threshold version, of what, and from which baseline."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from moescope.core.errors import InputError
from moescope.jobs.calibration.lifecycle import standing_versions
from moescope.jobs.reports.rows import SCOPE, Head, fetch
from moescope.jobs.reports.schema import BaselineFacts, SceneShare, VersionFacts
from moescope.jobs.reports.words import moment

if TYPE_CHECKING:
    import duckdb

_NAMED = 20
_SAME_SCOPE = " AND ".join(f"{column} = ?" for column in SCOPE)


def read_head(cursor: duckdb.DuckDBPyConnection, version: str) -> Head:
    """The version's own row.

    Raises:
        InputError: There is no such version.
    """
    columns = ", ".join(Head._fields)
    rows = fetch(cursor, f"SELECT {columns} FROM threshold_versions WHERE version = ?", [version])
    if not rows:
        known = [
            name
            for (name,) in fetch(
                cursor, "SELECT version FROM threshold_versions ORDER BY created_at DESC, version"
            )
        ]
        raise InputError(
            f"There is no threshold version {version}.",
            why=f"The store has {', '.join(known[:_NAMED])}." if known else "The store has none.",
            next_step="moescope threshold list shows what there is."
            if known
            else "moescope calibrate makes one.",
        )
    return Head(*rows[0])


def version_facts(cursor: duckdb.DuckDBPyConnection, head: Head) -> VersionFacts:
    """The version as reported."""
    since = fetch(
        cursor,
        "SELECT max_by(version, activation), max_by(make_timestamp(effective_from_us), activation)"
        f" FROM threshold_activations WHERE {_SAME_SCOPE}",
        list(head.scope),
    )[0]
    return VersionFacts(
        version=head.version,
        status=head.status,
        model=head.model,
        revision=head.revision,
        origin=head.origin,
        fidelity=head.fidelity,
        sampling_ratio=head.sampling_ratio,
        experts=head.experts,
        top_k=head.top_k,
        layers=list(head.layers),
        created_at=moment(head.created_at) or "",
        author=head.author,
        reason=head.reason,
        summary=_object(head.summary_json),
        in_force_from=moment(since[1]) if since[0] == head.version else None,
    )


def baseline_facts(cursor: duckdb.DuckDBPyConnection, head: Head) -> BaselineFacts:
    """The baseline as reported; a baseline of which no row is left has its name alone."""
    rows = fetch(
        cursor,
        "SELECT created_at, author, reason, selection_json FROM baselines"
        " WHERE baseline = ? AND version = ?",
        [head.baseline, head.baseline_version],
    )
    created_at, author, reason, selection = rows[0] if rows else (None, "", "", "{}")
    return BaselineFacts(
        baseline=head.baseline,
        version=head.baseline_version,
        created_at=moment(created_at),
        author=author,
        reason=reason,
        selection=_object(selection),
        first_time=None,
        last_time=None,
        scenes=[
            SceneShare(phase=phase, scene=scene, tokens=tokens, share=share)
            for phase, scene, tokens, share in fetch(
                cursor,
                "SELECT phase, scene, tokens,"
                " tokens / greatest(sum(tokens) OVER (PARTITION BY phase), 1)"
                " FROM baseline_references WHERE version = ? ORDER BY phase, tokens DESC, scene",
                [head.version],
            )
        ],
    )


def version_before(cursor: duckdb.DuckDBPyConnection, head: Head) -> str | None:
    """The version of the same scope that was in force before this one (or is, for a draft)."""
    rows = fetch(
        cursor,
        "SELECT version FROM threshold_activations"
        f" WHERE {_SAME_SCOPE} AND version NOT IN ('', ?) AND activation < coalesce(("
        "  SELECT min(activation) FROM threshold_activations WHERE version = ?"
        " ), 9223372036854775807) ORDER BY activation DESC LIMIT 1",
        [*head.scope, head.version, head.version],
    )
    return rows[0][0] if rows else None


def rolls_back_to(cursor: duckdb.DuckDBPyConnection, head: Head) -> str:
    """The version that a rollback of this one returns to; empty: none, or it does not judge."""
    standing = standing_versions(
        fetch(
            cursor,
            "SELECT action, version FROM threshold_activations"
            f" WHERE {_SAME_SCOPE} ORDER BY activation",
            list(head.scope),
        )
    )
    return standing[-2] if len(standing) > 1 and standing[-1] == head.version else ""


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text or "{}")
    return value if isinstance(value, dict) else {"value": value}
