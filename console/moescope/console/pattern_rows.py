"""Rows behind `moescope pattern list | show | pair`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from moescope.core.errors import InputError
from moescope.core.patterns import PAIRING, PATTERN_BY_NAME
from moescope.jobs.patterns import LOOK_BACK_US, paired_pull

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moescope.console.reading import Reader
    from moescope.core.patterns import Pattern
    from moescope.jobs.patterns import PairedPull

_FINDINGS: Final = """
    SELECT p.* EXCLUDE (commit_id, evidence_json), p.size AS stride,
        json(p.evidence_json) AS evidence,
        coalesce(l.model, p.evidence_json ->> '$.model', '') AS model,
        coalesce(l.revision, p.evidence_json ->> '$.revision', '') AS revision,
        epoch_us(p.ended_at) + $look_back
            >= coalesce(d.watermark_us, (SELECT max(watermark_us) FROM domains), 0) AS open
    FROM patterns p LEFT JOIN lanes l USING (lane) LEFT JOIN domains d USING (domain)
"""


def finding_rows(reader: Reader, *, model: str) -> list[dict[str, Any]]:
    """Findings, those that may still grow first, then the newest."""
    found = reader.rows(
        f"FROM ({_FINDINGS}) WHERE $model IN ('', model)"
        " ORDER BY open DESC, ended_at DESC, finding",
        {"look_back": LOOK_BACK_US, "model": model},
    )
    return [_with_evidence(row) for row in found]


def finding_document(reader: Reader, start_of_id: str) -> dict[str, Any]:
    """One finding, with what its pattern means.

    Raises:
        InputError: No finding, or several, have such an id.
    """
    found = reader.rows(
        f"FROM ({_FINDINGS}) WHERE starts_with(finding, $start)",
        {"look_back": LOOK_BACK_US, "start": start_of_id},
    )
    if len(found) != 1:
        raise InputError(
            f"{'Several findings' if found else 'No finding'} with an id that begins"
            f" {start_of_id!r}, and no pattern of that name.",
            next_step="`moescope pattern list` shows the ids; patterns are "
            f"{', '.join(PATTERN_BY_NAME)}.",
        )
    return _with_evidence(found[0])


def paired_pattern(name: str) -> Pattern:
    """A declared pattern that is found by pairing.

    Raises:
        InputError: There is none of that name.
    """
    pattern = PATTERN_BY_NAME.get(name)
    if pattern is None or pattern.found_by != PAIRING:
        paired = [each.name for each in PATTERN_BY_NAME.values() if each.found_by == PAIRING]
        raise InputError(
            f"{name!r} is not found by pairing.", next_step=f"Choose from {', '.join(paired)}."
        )
    return pattern


def pull_document(
    reader: Reader, *, with_prefix: str, without_prefix: str, size: int, phase: str
) -> dict[str, Any]:
    """What pairing two sets of requests shows, layer by layer.

    Raises:
        InputError: The prefixes cannot be compared.
        InsufficientDataError: Too few questions are in both sets.
    """
    pull = paired_pull(
        _Queries(reader),
        with_prefix=with_prefix,
        without_prefix=without_prefix,
        size=size,
        phase=phase,
    )
    return _pull_as_json(pull)


class _Queries:
    """A reader, as what jobs ask a cursor for."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def execute(self, query: str, parameters: Mapping[str, Any], /) -> _Answer:
        return _Answer([tuple(row.values()) for row in self._reader.rows(query, parameters)])


class _Answer:
    def __init__(self, rows: list[tuple[Any, ...]]) -> None:
        self._rows = rows

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._rows


def _with_evidence(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "evidence": json.loads(row["evidence"])}


def _pull_as_json(pull: PairedPull) -> dict[str, Any]:
    values = {
        name: value if isinstance(value, int) else value.tolist()
        for name, value in asdict(pull).items()
    }
    return {"pulled": pull.pulled, **values}
