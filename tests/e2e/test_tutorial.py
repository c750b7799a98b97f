"""The tutorial, step by step as it stands, and the queries of how-to guides on its data."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from support.command_line import environment, moescope

from moescope.storage import connect

if TYPE_CHECKING:
    from pathlib import Path

BLOCK = re.compile(r"^```(sh|python|sql|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of a page's blocks, in order."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def commands(text: str) -> list[list[str]]:
    """Words of each command of a shell block."""
    return [shlex.split(line) for line in text.splitlines() if line.strip()]


def rows_of(data: Path, query: str) -> list[dict[str, Any]]:
    """Rows of a query, as `moescope sql` finds them."""
    with connect(data) as connection:
        return connection.sql(query).to_dicts()


@pytest.fixture(scope="module")
def tutorial(
    repository_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[list[dict[str, Any]]]]:
    """The data directory after the last step, and what each of the tutorial's queries found."""
    folder = tmp_path_factory.mktemp("tutorial")
    answers = []
    for language, text in blocks(repository_root / "docs/tutorial/first-windows.md"):
        if language == "python":
            told = subprocess.run(
                [sys.executable, "-W", "error", "-c", text],
                cwd=folder,
                env=environment(),
                check=True,
                capture_output=True,
                text=True,
            )
            assert "recorded_rows=150" in told.stdout
            continue
        for program, *words in commands(text):
            assert program == "moescope"
            if words[0] == "sql":
                assert words[1:3] == ["--data", "first"]
                answers.append(rows_of(folder / "first", words[3]))
            else:
                moescope(*words, folder=folder)
    return folder / "first", answers


def test_the_tutorial_shows_what_it_says(
    tutorial: tuple[Path, list[list[dict[str, Any]]]],
) -> None:
    """The planted expert is found where the text says, and the reader's own request at the end."""
    _, (kinds, hottest, by_minute, newest, own) = tutorial
    assert {row["window_kind"] for row in kinds} == {"token", "time", "task"}
    assert (hottest[0]["layer"], hottest[0]["expert"]) == (5, 3)
    before, after = (row["share_of_expert_3"] for row in by_minute)
    assert after > 2 * before
    assert {row["level"] for row in newest} == {"insufficient"}
    assert {row["level_reason"] for row in newest} == {"no calibrated threshold"}
    assert all(row["js"] > row["floor"] for row in newest)
    assert [
        (row["phase"], row["start"], row["seen"], row["complete"], row["close_reason"])
        for row in own
    ] == [("prefill", 0, 100, False, "phase_end"), ("decode", 100, 50, False, "request_end")]


@pytest.mark.parametrize(
    "name",
    [
        "how-to/read-a-window.md",
        "how-to/run-on-one-machine.md",
        "how-to/operate-jobs.md",
        "how-to/respond-to-an-alert.md",
        "how-to/watch-training.md",
        "explanation/path-of-a-token.md",
    ],
)
def test_queries_of_other_pages_run(
    name: str, tutorial: tuple[Path, list[list[dict[str, Any]]]], repository_root: Path
) -> None:
    """Columns and views that pages use in SQL exist."""
    data, _ = tutorial
    queries = []
    for language, text in blocks(repository_root / "docs" / name):
        if language == "sql":
            queries.append(text)
        elif language == "sh":
            queries += [words[-1] for words in commands(text) if words[:2] == ["moescope", "sql"]]
    assert queries
    for query in queries:
        rows_of(data, query)


@pytest.fixture(scope="module")
def alerted(
    repository_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[tuple[str, ...], str]]:
    """The folder after the second tutorial, and what each command printed."""
    folder = tmp_path_factory.mktemp("alerted")
    printed = {}
    for language, text in blocks(repository_root / "docs/tutorial/first-alert.md"):
        if language == "toml":
            (folder / "small.toml").write_text(text, encoding="utf-8")
            continue
        for program, *words in commands(text):
            assert program == "moescope"
            printed[tuple(words[:2])] = moescope(*words, folder=folder).stdout
    return folder, printed


@pytest.mark.timeout(300)
def test_the_second_tutorial_ends_with_an_alert(
    alerted: tuple[Path, dict[tuple[str, ...], str]],
) -> None:
    """Health alone pages nobody; the planted layer fires when the text says, and in each family."""
    folder, printed = alerted
    alerts = rows_of(folder / "fleet", "SELECT * FROM alerts WHERE fired_at IS NOT NULL")
    assert {alert["worst_layer"] for alert in alerts} == {11}
    assert {alert["family"] for alert in alerts} == {"load", "routing", "router"}
    broke = datetime(2027, 1, 1, 0, 22, tzinfo=UTC).replace(tzinfo=None)
    first = min(alert["fired_at"].replace(tzinfo=None) for alert in alerts)
    assert timedelta(0) < first - broke <= timedelta(seconds=60)
    assert all(alert["alert"] in printed["alert", "list"] for alert in alerts)
    kinds = rows_of(folder / "fleet", "SELECT DISTINCT window_kind, standing FROM thresholds")
    assert {(row["window_kind"], row["standing"]) for row in kinds} == {
        ("token", "provisional"),
        ("task", "provisional"),
    }
    assert printed["sql", "--data"].splitlines()[2].split()[0] == "11"
    report = folder / "reports" / "calibration-t-1.html"
    assert report.name in printed["report", "calibration"]
    assert "t-1" in report.read_text(encoding="utf-8")
    assert json.loads(report.with_suffix(".json").read_text(encoding="utf-8"))
