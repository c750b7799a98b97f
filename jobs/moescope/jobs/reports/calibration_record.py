"""What calibration wrote down about itself (`threshold_versions.summary_json`), as reported."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from moescope.core.metrics import BY_NAME, Side
from moescope.jobs.calibration import FEW_UNITS
from moescope.jobs.reports.rows import rounded
from moescope.jobs.reports.schema import LeftOut, Rate, WindowsKey
from moescope.jobs.reports.words import count, counted, moment, spoken_moment, windows_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from moescope.core.metrics import Metric

NOMINAL_WARN, NOMINAL_RED = 0.10, 0.01


def nominal(metric: Metric, level: str) -> float:
    """What a perfect line gives: both ends count where both are bad."""
    share = NOMINAL_RED if level == "red" else NOMINAL_WARN
    return share * (2 if metric.side is Side.BOTH else 1)


def held_out_rates(summary: Mapping[str, Any]) -> list[Rate]:
    """Rates of the held-out check, by kind of windows and metric; none where it was not made."""
    found: dict[tuple[Any, ...], Rate] = {}
    for row in (summary.get("held_out") or {}).get("rates", []):
        key = _key(row)
        rate = found.setdefault(
            (*key.values(), row["metric"]),
            Rate(
                key=key,
                metric=row["metric"],
                windows=row["windows"],
                warn=0.0,
                red=0.0,
                warn_nominal=nominal(BY_NAME[row["metric"]], "warn"),
                red_nominal=nominal(BY_NAME[row["metric"]], "red"),
                warn_band=None,
                red_band=None,
            ),
        )
        band = [rounded(row["low"]) or 0.0, rounded(row["high"]) or 0.0]
        if row["line"] == "red":
            rate["red"], rate["red_band"] = rounded(row["rate"]) or 0.0, band
        else:
            rate["warn"], rate["warn_band"] = rounded(row["rate"]) or 0.0, band
    return list(found.values())


def what_was_left_out(summary: Mapping[str, Any]) -> list[LeftOut]:
    """Traffic, kinds of windows and paging rules that calibration did not use or could not make."""
    left_out = summary.get("left_out") or {}
    return [
        *_phases(left_out),
        *_alerts(left_out),
        *_suspects(left_out),
        *_kinds(summary),
        *_paging(summary),
        *_not_tried(summary.get("held_out") or {}),
    ]


def _phases(left_out: Mapping[str, Any]) -> Iterator[LeftOut]:
    for phase in left_out.get("phases", []):
        yield LeftOut(what=f"Phase {phase}", why=_sentence(left_out.get("phases_why", "")))


def _alerts(left_out: Mapping[str, Any]) -> Iterator[LeftOut]:
    for begin, end in left_out.get("alert_spans", []):
        yield LeftOut(
            what=f"Windows from {_time(begin)} to {_time(end)}",
            why="An alert was firing: its windows are not known to be healthy.",
        )


def _suspects(left_out: Mapping[str, Any]) -> Iterator[LeftOut]:
    for row in left_out.get("suspect_units", []):
        units = row["units"] if isinstance(row["units"], int) else len(row["units"])
        yield LeftOut(
            what=f"{_windows(row)}: {counted(units, 'unit')} far from all others",
            why="They were left out."
            if row["trimmed"]
            else "They are too many to be chance, so they were kept: look at them before you"
            " activate these lines.",
        )


def _kinds(summary: Mapping[str, Any]) -> Iterator[LeftOut]:
    minimum = summary.get("minimum_units", 0)
    for row in summary.get("kinds", []):
        without = row["keys"] - row["keys_with_lines"]
        if without:
            yield LeftOut(
                what=f"{_windows(row)}: {count(without)} of"
                f" {counted(row['keys'], 'combination')} of scene and volume",
                why=f"Fewer than {counted(minimum, row['unit'])} of each: no honest line.",
            )


def _paging(summary: Mapping[str, Any]) -> Iterator[LeftOut]:
    for row in summary.get("paging_missing", []):
        yield LeftOut(
            what=f"Paging of family {row['family']} by {_lower(_windows(row))}",
            why=_sentence(row["why"]),
        )


def _not_tried(held_out: Mapping[str, Any]) -> Iterator[LeftOut]:
    """Kinds of windows and metrics of the held-out check that have no rate, by reason."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in held_out.get("left_out", []):
        groups.setdefault((_windows(row), row["why"]), []).append(row)
    for (windows, why), rows in groups.items():
        metrics = ", ".join(row["metric"] for row in rows if row["metric"])
        units = max(row["units"] for row in rows)
        few = why == FEW_UNITS
        yield LeftOut(
            what=f"Held-out check of {_lower(windows)}" + (f": {metrics}" if metrics else ""),
            why=f"{counted(units, 'unit')} at most: a rate needs {held_out['minimum_units']}."
            if few
            else "No line judges these windows.",
        )


def _windows(row: Mapping[str, Any]) -> str:
    words = windows_words(row["window_kind"], row["size"], row.get("stride", row["size"]))
    scope = "" if row["scope_kind"] == "all" else f", per {row['scope_kind']}"
    return f"{row['phase'].capitalize()}: {_lower(words)}{scope}"


def _lower(words: str) -> str:
    return words[:1].lower() + words[1:]


def _sentence(words: str) -> str:
    capitalised = words[:1].upper() + words[1:]
    return capitalised if capitalised.endswith((".", "!", "?")) else f"{capitalised}."


def _time(time_us: int) -> str:
    at = datetime.fromtimestamp(time_us // 1_000_000, UTC).replace(tzinfo=None)
    return spoken_moment(moment(at))


def _key(row: Mapping[str, Any]) -> WindowsKey:
    return WindowsKey(
        phase=row["phase"],
        window_kind=row["window_kind"],
        size=row["size"],
        stride=row["stride"],
        scope_kind=row["scope_kind"],
        scene="",
        band="",
    )
