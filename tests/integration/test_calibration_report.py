from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest
from support.plain_calibration import write_activation
from support.report_store import HOSTILE, LAYERS, WINDOWS, report_store

from moescope.core.errors import InputError
from moescope.jobs.reports import ReportFiles, calibration_report, summary_lines
from moescope.jobs.reports.build import build_report

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.sample_store import SampleStore

LARGEST = 2_000_000
FETCHING = {"src", "href", "srcset", "action", "data", "poster", "background", "xlink:href"}


class Page(HTMLParser):
    """Tags, addresses and visible text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_data(self, data: str) -> None:
        """Note text that a reader sees."""
        if self._inside not in {"script", "style"}:
            self.text += data


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SampleStore]:
    """A store whose producers chose hostile names."""
    made = report_store(tmp_path_factory.mktemp("report-store"))
    yield made
    made.connection.close()


@pytest.fixture(scope="module")
def files(store: SampleStore, tmp_path_factory: pytest.TempPathFactory) -> ReportFiles:
    """The report of the draft."""
    return calibration_report(store.cursor(), "t-2", tmp_path_factory.mktemp("reports") / "new")


@pytest.fixture(scope="module")
def page(files: ReportFiles) -> Page:
    """Its page, parsed."""
    return Page(files.html.read_text(encoding="utf-8"))


def test_page_needs_nothing_from_elsewhere(files: ReportFiles, page: Page) -> None:
    """A report is mailed and archived: it has to open without a network, and stay small."""
    for _, attributes in page.tags:
        for name in FETCHING & attributes.keys():
            assert (attributes[name] or "").startswith(("#", "data:"))
    assert not any(tag in {"link", "iframe", "object", "base"} for tag, attributes in page.tags
                   if attributes.get("rel") != "icon")  # fmt: skip
    style = re.findall(r"<style>(.*?)</style>", files.html.read_text(encoding="utf-8"), re.DOTALL)
    assert not re.search(r"url\(|@import", "".join(style))
    policies = [a["content"] or "" for tag, a in page.tags if "http-equiv" in a and "content" in a]
    assert len(policies) == 1
    assert policies[0].startswith("default-src 'none'")
    assert "script-src 'sha256-" in policies[0]
    assert files.html.stat().st_size <= LARGEST


def test_names_of_producers_stay_text(page: Page) -> None:
    """A model or scene called like a tag must not run in the browser of who reads the report."""
    assert HOSTILE in page.text
    assert not [tag for tag, attributes in page.tags if tag == "img" or "onerror" in attributes]
    scripts = [a for tag, a in page.tags if tag == "script"]
    data = [a for a in scripts if a.get("type") == "application/json"]
    assert len(scripts) == len(data) + 2


def test_page_says_what_a_reader_asks(page: Page) -> None:
    """Somebody who knows nothing finds what lines are, how sure they are, and what would fire."""
    for words in (
        "Line", "Warn, P90", "Red, P99", "Interval", "provisional", "Worst layer",
        "It is a draft: no window is judged by it until somebody activates it.",
        "moescope threshold activate t-2", "moescope threshold diff t-1 t-2",
        "What was left out, and why", "No run has enough units for a line.",
        "Gini coefficient", "4–7 requests with 512–1,023 tokens",
        "4 % (of 1 %)", "chance allows 0.2 % … 2 %", "unknown: baseline too short",
        "more than 1.5 spreads past red in 2 of 3 slots of 5 s",
    ):  # fmt: skip
        assert words in page.text


def test_twin_holds_the_same_report(files: ReportFiles) -> None:
    """Programs read the JSON file; it is the report that the page was made from."""
    assert json.loads(files.json.read_text(encoding="utf-8")) == files.report
    assert files.report["schema_version"] == 1
    assert sorted(path.name for path in files.html.parent.iterdir()) == [
        "calibration-t-2.html",
        "calibration-t-2.json",
    ]


def test_same_rows_give_the_same_page(
    store: SampleStore, files: ReportFiles, tmp_path: Path
) -> None:
    """Reports can be compared and cached: nothing but the tables goes in."""
    again = calibration_report(store.cursor(), "t-2", tmp_path)
    assert again.html.read_bytes() == files.html.read_bytes()
    assert again.json.read_bytes() == files.json.read_bytes()


def test_rates_and_distributions_are_those_of_the_windows(
    store: SampleStore, files: ReportFiles
) -> None:
    """What would have fired is counted, not assumed."""
    fired: dict[str, list[float]] = {}
    lines = store.cursor().execute(
        "SELECT metric, layer, warn_low, warn_high, red_low, red_high FROM thresholds"
        " WHERE version = 't-2'"
    )
    for metric, layer, *ends in lines.fetchall():
        rows = store.cursor().execute(
            f"SELECT {metric} FROM windows WHERE layer = ?",
            [layer],
        )
        counts = fired.setdefault(metric, [0, 0])
        for (value,) in rows.fetchall():
            for level, (low, high) in enumerate((ends[:2], ends[2:])):
                past = (high is not None and value > high) or (low is not None and value < low)
                counts[level] += past / (WINDOWS * len(LAYERS))
    assert set(fired) >= {"gini", "js_uniform", "top1_switches"}
    told = {rate["metric"]: rate for rate in files.report["fired"]["baseline"]}
    for name, (warn, red) in fired.items():
        assert told[name]["windows"] == WINDOWS * len(LAYERS)
        assert told[name]["warn"] == pytest.approx(warn, rel=1e-5)
        assert told[name]["red"] == pytest.approx(red, rel=1e-5)
    gini = next(each for each in files.report["distributions"] if each["metric"] == "gini")
    found = store.cursor().execute(
        "SELECT gini FROM windows WHERE layer = ? ORDER BY 1", [gini["layer"]]
    )
    ordered = [value for (value,) in found.fetchall()]
    for value, share in zip(gini["values"], gini["shares"], strict=True):
        below = sum(each <= value + 1e-6 for each in ordered) / len(ordered)
        assert below == pytest.approx(share, abs=0.01)


def test_changes_are_against_the_version_in_force(files: ReportFiles) -> None:
    """Who activates has to see what moves, and whether chance explains it."""
    changes = files.report["changes"]
    assert changes["against"] == "t-1"
    assert changes["compared"] > 0
    moves = [change["in_spreads"] for change in changes["largest"]]
    assert moves == sorted(moves, reverse=True)
    assert any(change["before"] != change["after"] for change in changes["largest"])


def test_terminal_summary_cannot_be_hijacked(files: ReportFiles) -> None:
    """Control characters in names would move the cursor of whoever runs the command."""
    report = json.loads(json.dumps(files.report))
    report["summary"][0] += "\x1b[2J\u202e"
    lines = summary_lines(report)
    assert lines[0] == "Calibration t-2 (draft)"
    assert any("moescope threshold activate t-2" in line for line in lines)
    assert all(line.isprintable() for line in lines)
    assert any("\\x1b[2J" in line for line in lines)


def test_unknown_version_is_named_with_those_that_exist(store: SampleStore, tmp_path: Path) -> None:
    """A typing error ends in an error that helps, and in no file."""
    with pytest.raises(InputError, match="t-9") as caught:
        calibration_report(store.cursor(), "t-9", tmp_path / "none")
    assert "t-1" in str(caught.value)
    assert not (tmp_path / "none").exists()


def test_json_fields_are_documented(files: ReportFiles, repository_root: Path) -> None:
    """The twin is an interface: a field that nobody described cannot be relied on."""
    described = (repository_root / "docs" / "explanation" / "reports.md").read_text("utf-8")
    words = set(re.findall(r"`([a-z_]+)`", described))
    assert sorted(_fields(files.report) - words) == []


def _fields(value: object) -> set[str]:
    if isinstance(value, dict):
        own = {name for name in value if name not in {"summary", "selection"}}
        return own.union(*(_fields(value[name]) for name in own)) | (value.keys() - own)
    if isinstance(value, list):
        return set().union(*map(_fields, value[:3]))
    return set()


def test_report_of_the_version_in_force_says_what_a_rollback_does(tmp_path: Path) -> None:
    """A first version has none before it: taking it back switches judging off."""
    store = report_store(tmp_path, name="m")
    store.connection.execute("UPDATE threshold_versions SET status = 'active'")
    first = _rollback_step(store, "t-1")
    write_activation(store.connection, 2, "t-2", 0)
    second = _rollback_step(store, "t-2")
    store.connection.close()
    assert "switches judging off" in first
    assert second == "lets t-1 judge again"


def _rollback_step(store: SampleStore, version: str) -> str:
    (step,) = [
        step
        for step in build_report(store.cursor(), version)["next_steps"]
        if step["command"] == "moescope threshold rollback"
    ]
    return step["what"]
