"""A report as the template wants it: sections with rows, and places for charts."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from moescope.core.metrics import BY_NAME
from moescope.jobs.reports.names import report_name
from moescope.jobs.reports.pictures import (
    distribution_of,
    distribution_picture,
    heat_picture,
    layers_picture,
    rates_picture,
    timeline_picture,
)
from moescope.jobs.reports.schema import Rate
from moescope.jobs.reports.sections import by_kind, kind_of, main_keys
from moescope.jobs.reports.sentences import main_line, unit_name
from moescope.jobs.reports.table_view import (
    ChangeRow,
    MetricRow,
    PagingRow,
    RateRow,
    change_row,
    kind_title,
    metric_row,
    paging_row,
    rate_row,
)
from moescope.jobs.reports.tiles import Tile, tiles
from moescope.jobs.reports.words import counted, key_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from moescope.jobs.reports.pictures import Picture
    from moescope.jobs.reports.schema import CalibrationReport, KeyLines, WindowsKey


@dataclass(frozen=True, slots=True)
class OtherKey:
    """Windows of a kind that differ in scene or volume alone from those shown in full."""

    words: str
    metrics: int
    units: str
    standing: str
    lead_red: str


@dataclass(frozen=True, slots=True)
class Section:
    """One kind of windows.

    Attributes:
        anchor: Id within the page.
        phase, title, words: Heading, and which of the windows are shown in full.
        rows: Metrics.
        lead, lead_title: Metric whose charts come first.
        basis: How much evidence its lines rest on.
        more: Titles of the other metrics, by the name of their charts.
        others: Other scenes and volumes.
    """

    anchor: str
    phase: str
    title: str
    words: str
    rows: list[MetricRow]
    lead: str
    lead_title: str
    basis: str
    more: dict[str, str]
    others: list[OtherKey]


@dataclass(frozen=True, slots=True)
class RateGroup:
    """Rates of one kind of windows."""

    anchor: str
    title: str
    rows: list[RateRow]
    charted: bool = False


@dataclass(slots=True)
class PageView:
    """Everything but the report's own plain fields.

    Attributes:
        json_name: File beside the page.
        tiles: The few numbers at the top.
        sections: Kinds of windows.
        held_out, baseline: Rates.
        paging, changes: Rows of their tables.
        selection_text, summary_text: What calibration stored, as it stands.
        pictures: How to make each chart, most important first.
    """

    json_name: str
    tiles: list[Tile]
    sections: list[Section]
    held_out: list[RateGroup]
    baseline: list[RateGroup]
    paging: list[PagingRow]
    timelines: list[str]
    changes: list[ChangeRow]
    selection_text: str
    summary_text: str
    pictures: dict[str, Callable[[], Picture | None]] = field(default_factory=dict)


def page_view(report: CalibrationReport) -> PageView:
    """Word and order a report."""
    layers = report["version"]["layers"]
    groups = by_kind(report["judged"])
    shown = main_keys(report["judged"])
    sections = [
        _section(number, each, groups[kind_of(each["key"])], layers)
        for number, each in enumerate(shown, 1)
    ]
    view = PageView(
        json_name=report_name(report["version"]["version"], "json"),
        tiles=tiles(report),
        selection_text=_text(report["baseline"]["selection"]),
        summary_text=_text(report["version"]["summary"]),
        sections=sections,
        held_out=list(_rate_groups(report["fired"]["held_out"], "held", charted=True)),
        baseline=list(_rate_groups(_pooled(report["fired"]["baseline"]), "base")),
        paging=[paging_row(rule) for rule in report["fired"]["paging"]],
        timelines=[f"timeline-{number}" for number in range(len(report["fired"]["timelines"]))],
        changes=[
            change_row(
                change,
                f"{_kind_words(change['key'])}, {key_words(change['key'])}",
            )
            for change in report["changes"]["largest"]
        ],
    )
    _plan_pictures(view, report, shown)
    return view


def _kind_words(key: WindowsKey) -> str:
    return f"{key['phase'].capitalize()}: {kind_title(key)}"


def _text(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _section(
    number: int, main: KeyLines, group: Sequence[KeyLines], layers: Sequence[int]
) -> Section:
    key = main["key"]
    lead = main_line(main["lines"])
    anchor = f"windows-{number}"
    return Section(
        anchor=anchor,
        phase=key["phase"],
        title=kind_title(key),
        words=main["words"],
        rows=[metric_row(key, line, layers) for line in main["lines"]],
        lead=lead["metric"],
        lead_title=lead["title"],
        basis=f"{lead['standing']}, {counted(lead['units'], unit_name(key['window_kind']))}",
        more={
            f"{anchor}-{line['metric']}": line["title"]
            for line in main["lines"]
            if line is not lead
        },
        others=[_other(each, layers) for each in group if each is not main],
    )


def _other(each: KeyLines, layers: Sequence[int]) -> OtherKey:
    lead = metric_row(each["key"], main_line(each["lines"]), layers)
    red = ", ".join(f"{line.side} {line.value}" for line in lead.red)
    return OtherKey(
        words=each["words"],
        metrics=len(each["lines"]),
        units=lead.units,
        standing=lead.standing,
        lead_red=f"{lead.title}: {red}" if red else "",
    )


def _rate_groups(
    rates: Sequence[Rate], prefix: str, *, charted: bool = False
) -> Iterator[RateGroup]:
    """Rates by the windows that they are of."""
    for number, (title, group) in enumerate(_by_title(rates).items(), 1):
        yield RateGroup(
            anchor=f"{prefix}-{number}",
            title=title,
            rows=[rate_row(rate, BY_NAME[rate["metric"]].title) for rate in group],
            charted=charted,
        )


def _by_title(rates: Sequence[Rate]) -> dict[str, list[Rate]]:
    groups: dict[str, list[Rate]] = {}
    for rate in rates:
        key = rate["key"]
        title = _kind_words(key)
        if key["scene"] or key["band"]:
            title += f", {key_words(key)}"
        groups.setdefault(title, []).append(rate)
    return groups


def _pooled(rates: Sequence[Rate]) -> list[Rate]:
    """Over scenes and volumes: each window is judged by its own lines."""
    groups: dict[tuple[object, ...], list[Rate]] = {}
    for rate in rates:
        groups.setdefault((kind_of(rate["key"]), rate["metric"]), []).append(rate)
    pooled = []
    for group in groups.values():
        windows = sum(rate["windows"] for rate in group)
        pooled.append(
            Rate(
                key={**group[0]["key"], "scene": "", "band": ""},
                metric=group[0]["metric"],
                windows=windows,
                warn=sum(rate["warn"] * rate["windows"] for rate in group) / windows,
                red=sum(rate["red"] * rate["windows"] for rate in group) / windows,
                warn_nominal=group[0]["warn_nominal"],
                red_nominal=group[0]["red_nominal"],
                warn_band=None,
                red_band=None,
            )
        )
    return sorted(pooled, key=lambda rate: _reading_place(rate["key"]))


def _reading_place(key: WindowsKey) -> tuple[object, ...]:
    phases, kinds = ("prefill", "decode", "eval", "train"), ("token", "time", "task", "step")
    return (
        phases.index(key["phase"]) if key["phase"] in phases else len(phases),
        kinds.index(key["window_kind"]) if key["window_kind"] in kinds else len(kinds),
        key["size"],
        key["stride"],
        key["scope_kind"],
    )


def _plan_pictures(view: PageView, report: CalibrationReport, shown: Sequence[KeyLines]) -> None:
    layers = report["version"]["layers"]
    fired = report["fired"]
    later: dict[str, Callable[[], Picture | None]] = {}
    heats = {kind_of(heat["key"]): heat for heat in report["heat"]}
    for section, each in zip(view.sections, shown, strict=True):
        for line in each["lines"]:
            place = view.pictures if line["metric"] == section.lead else later
            name = f"{section.anchor}-{line['metric']}"
            place[f"{name}-layers"] = partial(layers_picture, each, line, layers)
            values = distribution_of(report, each, line)
            if values is not None:
                place[f"{name}-values"] = partial(distribution_picture, values, line, layers)
        heat = heats.get(kind_of(each["key"]))
        if heat is not None:
            view.pictures[f"{section.anchor}-heat"] = partial(
                heat_picture, heat, BY_NAME[heat["metric"]].title, layers
            )
    for group, rates in zip(view.held_out, _by_title(fired["held_out"]).values(), strict=True):
        for level in ("red", "warn"):
            view.pictures[f"{group.anchor}-{level}"] = partial(rates_picture, rates, level)
    for name, timeline in zip(view.timelines, fired["timelines"], strict=True):
        view.pictures[name] = partial(timeline_picture, timeline, fired["paging"])
    view.pictures.update(later)
