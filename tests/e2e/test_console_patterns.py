from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.command_line import moescope
from support.declared_rows import add_rows
from typer.testing import CliRunner

from moescope.console.app import app
from moescope.core.patterns import PATTERN_BY_NAME
from moescope.jobs.patterns import Finding
from moescope.processors.finish import WindowFinisher
from moescope.storage.places import store_file
from moescope.storage.shared import WindowShapes
from moescope.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import duckdb

MINUTE_US = 60_000_000
NOW_US = 1_800_000_000_000_000
LAYERS = (1, 3, 4)
QUESTIONS = 12


def finding(pattern: str, lane: str, ended_us: int, evidence: dict[str, Any]) -> Finding:
    """A finding over one minute."""
    return Finding(
        pattern=pattern, lane=lane, phase="prefill", scope_kind="node", scope_value="n\x1b[2J",
        window_kind="time", size=MINUTE_US, began_us=ended_us - MINUTE_US, ended_us=ended_us,
        confidence=0.75, evidence=evidence,
    )  # fmt: skip


OLD = finding("fixed_prefix", "a", NOW_US - 100 * MINUTE_US, {"layers": 3})
OPEN = finding("mix_shift", "b", NOW_US - 10 * MINUTE_US, {"layers": 2})
FAULT = finding("engine_fault", "", NOW_US - 50 * MINUTE_US, {"model": "A", "revision": "r"})


def windows(prefix: str, lane: str, pull: float) -> Iterator[dict[str, Any]]:
    """Two token windows per question; only the later ones share a part of their load."""
    draw = np.random.default_rng(7)
    common = draw.dirichlet(np.full(16, 0.3))
    for question in range(QUESTIONS):
        for start, part in ((0, 0.9), (128, pull)):
            own = draw.dirichlet(np.full(16, 0.5))
            for layer in LAYERS:
                counts = draw.multinomial(512, part * common + (1 - part) * own)
                yield {
                    "lane": lane, "phase": "prefill", "window_kind": "token", "size": 128,
                    "stride": 128, "start": start, "layer": layer, "counts": counts.tolist(),
                    "request": f"{prefix}{question}",
                }  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with three findings and two sets of requests, and an export beside it."""
    folder = tmp_path_factory.mktemp("patterns")

    def plant(connection: duckdb.DuckDBPyConnection, _: int) -> None:
        lanes = [
            {"lane": name.lower(), "model": name, "revision": "r", "domain": "live"}
            for name in "AB"
        ]
        add_rows(connection, "lanes", lanes)
        add_rows(connection, "domains", [{"domain": "live", "watermark_us": NOW_US}])
        add_rows(connection, "patterns", [each.row() for each in (OLD, OPEN, FAULT)])
        for prefix, lane, pull in (
            ("with/", "a", 0.6), ("without/", "a", 0.0), ("also/", "a", 0.0), ("also/", "b", 0.0),
        ):  # fmt: skip
            add_rows(connection, "windows", list(windows(prefix, lane, pull)))

    (folder / "data").mkdir()
    with Store(store_file(folder / "data"), WindowFinisher(), WindowShapes((), ())) as store:
        store.change(plant, author="test", action="plant")
    moescope("store", "export", "copy", "--data", "data", folder=folder)
    return folder / "data"


def told(*words: str, data: Path) -> Any:
    """What `moescope pattern` prints as JSON."""
    words = ("pattern", *words, "--data", str(data), "--json")
    return json.loads(moescope(*words, folder=data.parent).stdout)


def test_findings_are_listed_open_ones_first(data: Path) -> None:
    """What may still grow comes first, a fault of a producer has its model, and models filter."""
    found = told("list", data=data)
    assert [(row["finding"], row["model"], row["open"]) for row in found] == [
        (OPEN.name, "B", True),
        (FAULT.name, "A", False),
        (OLD.name, "A", False),
    ]
    of_a = told("list", "--model", "A", data=data.parent / "copy")
    assert [row["finding"] for row in of_a] == [FAULT.name, OLD.name]
    text = CliRunner().invoke(app, ["pattern", "list", "--data", str(data)]).stdout
    assert all(name in text for name in (OPEN.name, "mix_shift", "time 60s", r"n\x1b[2J"))
    assert "\x1b" not in text


def test_a_finding_is_shown_with_what_was_seen(data: Path) -> None:
    """Evidence, cause and next step, found by the beginning of an id; a wrong id is refused."""
    row = told("show", OLD.name[:8], data=data)
    assert row["evidence"] == {"layers": 3}
    assert row["next_step"] == PATTERN_BY_NAME["fixed_prefix"].next_step
    words = ["pattern", "show", FAULT.name, "--data", str(data)]
    assert PATTERN_BY_NAME["engine_fault"].likely_cause in CliRunner().invoke(app, words).stdout
    refused = moescope(
        "pattern", "show", "nonsense", "--data", data, folder=data.parent, expect=2
    ).stderr
    assert "No finding" in refused
    assert "fixed_prefix" in refused


def test_a_pattern_is_explained_without_any_data(tmp_path: Path) -> None:
    """What a name means can be read before anything was recorded."""
    for name, pattern in PATTERN_BY_NAME.items():
        text = CliRunner().invoke(app, ["pattern", "show", name, "--data", str(tmp_path)]).stdout
        assert pattern.evidence in text
        assert pattern.next_step in text
        assert pattern.found_by in text


@pytest.mark.parametrize("place", ["data", "copy"])
def test_pairs_are_compared_in_a_store_and_in_an_export(data: Path, place: str) -> None:
    """Only the last windows decide, and the answer does not depend on where they are read."""
    pull = told(
        "pair", "few_shot_pull", "--with-prefix", "with/", "--without-prefix", "without/",
        data=data.parent / place,
    )  # fmt: skip
    assert (pull["pulled"], pull["questions"], pull["layers"]) == (True, QUESTIONS, list(LAYERS))
    assert all(each > 0 for each in pull["difference"])
    assert all(each <= 0.01 for each in pull["p_value"])


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("few_shot_pull", "with/", "nobody/"), 4, "Only 0 questions"),
        (("few_shot_pull", "with/", "also/"), 2, "Several models"),
        (("few_shot_pull", "with/", "with/"), 2, "same prefix"),
        (("fixed_prefix", "with/", "without/"), 2, "few_shot_pull"),
        (("framework_skew", "with/", "without/"), 2, "Choose from few_shot_pull."),
    ],
)
def test_what_cannot_be_paired_is_refused(
    data: Path, words: tuple[str, str, str], code: int, says: str
) -> None:
    """Too few pairs, mixed models, one set twice, and patterns that are found otherwise."""
    pattern, one, other = words
    outcome = moescope(
        "pattern", "pair", pattern, "--with-prefix", one, "--without-prefix", other,
        "--data", data, folder=data.parent, expect=code,
    )  # fmt: skip
    assert says in outcome.stderr
