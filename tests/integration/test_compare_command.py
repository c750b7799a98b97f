from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.comparison_logs import Batch, Row, write_log
from typer.testing import CliRunner

from moescope.console.app import app
from moescope.core.errors import InputError
from moescope.core.vocabulary import Phase
from moescope.jobs.reports.comparison import ComparisonReport, compare, find_side
from moescope.jobs.reports.comparison.page import comparison_html
from moescope.jobs.reports.comparison.pictures import (
    counts_picture,
    layers_picture,
    margins_picture,
    positions_picture,
)

if TYPE_CHECKING:
    from pathlib import Path

PAGE = "docs/how-to/compare-two-runs.md"
SAME = tuple(Row("r", number, ((0, 1, 2), (3, 4, 5)), key=number + 1) for number in range(24))
HALF_OTHER = tuple(
    replace(row, ids=((0, 1, 2), (3, 4, 6))) if row.position % 2 else row for row in SAME
)


@pytest.fixture(scope="module")
def page(repository_root: Path) -> str:
    """The how-to's text."""
    return (repository_root / PAGE).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(page: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page's program was run."""
    folder = tmp_path_factory.mktemp("how-to")
    (program,) = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    subprocess.run([sys.executable, "-c", program], cwd=folder, check=True, timeout=100)
    # One log that holds both sides: each prompt is in it twice.
    for name in ("fleet", "canaries"):
        for side in ("before", "after"):
            for partition in (folder / side / "log").iterdir():
                shutil.copytree(partition, folder / name / "log" / partition.name)
    # What was generated in one log, and the trainer's pass over the same tokens in another.
    tokens = tuple(replace(row, position=at, key=at + 1) for at, row in enumerate(SAME * 5))
    for name, phase in (("rollout", Phase.DECODE), ("training", Phase.TRAIN)):
        rows = tuple(replace(row, phase=phase) for row in tokens)
        write_log(folder / name / "log", [Batch(rows)])
    return folder


def test_the_commands_work_as_written(
    page: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever follows the page gets reports, and a gate that is passed."""
    monkeypatch.chdir(folder)
    commands = re.findall(r"^\$ moescope (.*)$", page, re.MULTILINE)
    assert len(commands) == 5
    for command in commands:
        outcome = CliRunner().invoke(app, command.split())
        assert outcome.exit_code == 0, (command, outcome.output, outcome.exception)
    assert (folder / "comparison.html").exists()


def test_the_program_shows_what_the_page_says(folder: Path) -> None:
    """Every token is paired, and noise flips close choices only."""
    report = compare(find_side(folder / "before"), find_side(folder / "after"))
    assert report["tokens"] == 20 * 64
    assert report["overall"]["all_layers"]["value"] < 1.0
    assert report["by_margin"] is not None
    assert report["by_margin"][-1]["differing"] == 0


def test_every_field_of_the_json_file_is_explained(page: str) -> None:
    """A program that reads the file knows what it finds."""
    section = page.partition("## The JSON file")[2]
    for name in ComparisonReport.__annotations__:
        assert f"`{name}`" in section, name


def test_the_page_shows_names_as_text_and_has_all_charts(tmp_path: Path) -> None:
    """Names come from producers: none becomes a tag. Charts satisfy their schema."""
    bad = (("revision", "<script>alert(1)</script>"),)
    report = compare(
        find_side(write_log(tmp_path / "a", [Batch(SAME)])),
        find_side(write_log(tmp_path / "b", [Batch(HALF_OTHER, header=bad)])),
        fewest_pairs=1,
    )
    page = comparison_html(report, "c.json")
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    for name, picture in {
        "layers": layers_picture(report),
        "counts": counts_picture(report),
        "positions": positions_picture(report),
        "margins": margins_picture(report),
    }.items():
        assert picture is not None
        assert f'data-spec="spec-{name}"' in page
        assert picture.words
        picture.chart.to_dict()


@pytest.mark.parametrize(
    ("out", "why"),
    [
        ("file/c.html", "Not a directory"),
        ("file/below/c.html", "Not a directory"),
        ("folder", "is a folder"),
        ("folder.html/", "is a folder"),
        ("taken.html", "is a folder"),
        ("x" * 300, "name too long"),
        ("x" * 250 + ".html", "name too long"),  # as it is written before it takes its place
        ("/proc/none/c.html", "No such file"),
        ("~no-such-user/c.html", "home directory"),
        ("/dev/full", "ends with .html"),
        ("report-1.2", "ends with .html"),
        ("c.json", "ends with .html"),
    ],
)
def test_a_page_that_cannot_be_written_is_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, why: str
) -> None:
    """Nobody waits for a comparison of hours that then has no place to go."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for name in ("folder", "folder.html", "taken.json"):
        (tmp_path / name).mkdir()
    before = sorted(tmp_path.rglob("*"))
    # There is no log: who reads first says so.
    outcome = CliRunner().invoke(app, ["report", "compare", "a", "b", "--out", out])
    assert isinstance(outcome.exception, InputError), outcome.output
    assert outcome.exception.what.endswith("cannot be written.")
    assert why in outcome.exception.why
    assert sorted(tmp_path.rglob("*")) == before


def test_a_page_that_can_be_written_leaves_nothing_before_it_is(tmp_path: Path) -> None:
    """Not even its folder, if the comparison then fails."""
    out = str(tmp_path / "new" / "c.html")
    outcome = CliRunner().invoke(app, ["report", "compare", "a", "b", "--out", out])
    assert isinstance(outcome.exception, InputError)
    assert outcome.exception.what.startswith("There is no batch log in ")
    assert list(tmp_path.iterdir()) == []


LIMITED = """
import resource, sys
from pathlib import Path
from moescope.jobs.reports.comparison import compare, find_side
from moescope.jobs.reports.comparison.page import write_comparison
from moescope.core.errors import MoescopeError

a, b, out = map(Path, sys.argv[1:])
report = compare(find_side(a), find_side(b), fewest_pairs=10)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_480, resource.RLIM_INFINITY))
try:
    write_comparison(report, out)
except MoescopeError as error:
    print(error.exit_code, error, sep="\\n")
"""
"""Room for the JSON file, and none for the page."""


def test_a_page_without_room_leaves_the_files_as_they_were(tmp_path: Path) -> None:
    """New numbers beside an old page would be believed to be its own."""
    for name, batch in (("a", Batch(SAME)), ("b", Batch(HALF_OTHER))):
        write_log(tmp_path / name, [batch])
    out = tmp_path / "pages" / "c.html"
    arguments = map(str, (tmp_path / "a", tmp_path / "b", out))
    command = [sys.executable, "-c", LIMITED, *arguments]
    for before in ([], [out, out.with_suffix(".json")]):
        for file in before:
            file.write_text("before")
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
        assert done.stdout.splitlines()[:3] == [
            "3", f"The file {out} cannot be written.", "Why: File too large",
        ]  # fmt: skip
        assert sorted(out.parent.iterdir()) == sorted(before)
        assert [file.read_text() for file in before] == ["before"] * len(before)


def test_the_command_writes_and_judges(tmp_path: Path) -> None:
    """Exit code 1 when a limit is not met, with the page and its JSON twin written all the same."""
    for name, batch in (("a", Batch(SAME)), ("b", Batch(HALF_OTHER))):
        write_log(tmp_path / name, [batch])
    arguments = [
        "report", "compare", str(tmp_path / "a"), str(tmp_path / "b"),
        "--fewest-pairs", "10", "--out", str(tmp_path / "pages" / "c.html"),
    ]  # fmt: skip
    for limit, code in (("0.4", 0), ("0.6", 1)):
        outcome = CliRunner().invoke(app, [*arguments, "--json", "--min-all-layers", limit])
        assert outcome.exit_code == code
        assert json.loads((tmp_path / "pages/c.json").read_text()) == json.loads(outcome.stdout)
    assert (tmp_path / "pages/c.html").read_text().startswith("<!DOCTYPE html>")
    text = CliRunner().invoke(app, arguments).stdout
    assert "margin 0.2–0.5: 12 of 48 sets differ" in text
    assert "same top-1" in text
