from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import duckdb
import pytest

from moescope.console import output
from moescope.console.failures import explained
from moescope.console.options import misspelt_variables
from moescope.console.progress import progress
from moescope.core.errors import DependencyUnreachableError, InputError, InternalError
from moescope.producers.vllm_plugin.settings import VARIABLES

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("number", "said"),
    [(0, "0 letters"), (1, "1 letter"), (2, "2 letters"), (1_000, "1,000 letters")],
)
def test_one_thing_is_no_plural(number: int, said: str) -> None:
    """Numbers are told with their noun as people say them."""
    assert output.counted(number, "letter") == said


def test_tables_are_aligned_and_numbers_stand_to_the_right(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A column of numbers can be compared at a glance; empty cells stay empty."""
    output.print_table(
        ("node", "rows", "share"), [("a", 12, 0.5), ("longer", 1_234_567, 0.12345), (None, 0, 1.0)]
    )
    assert capsys.readouterr().out.splitlines() == [
        "node         rows  share",
        "------  ---------  -----",
        "a              12  0.500",
        "longer  1,234,567  0.123",
        "                0  1.000",
    ]


def test_a_table_without_rows_keeps_its_head(capsys: pytest.CaptureFixture[str]) -> None:
    """No rows is an answer, too."""
    output.print_table(("node", "rows"), [])
    assert capsys.readouterr().out.splitlines() == ["node  rows", "----  ----"]


def test_pairs_and_json_show_the_same_values(capsys: pytest.CaptureFixture[str]) -> None:
    """People get aligned names; programs get JSON in which times are text."""
    output.print_pairs({"a": True, "long name": 1000})
    assert capsys.readouterr().out == "a          yes\nlong name  1,000\n"
    output.print_json({"at": datetime(2026, 1, 1, tzinfo=UTC), "é": float("inf") > 1})
    text = capsys.readouterr().out
    assert json.loads(text) == {"at": "2026-01-01 00:00:00+00:00", "é": True}
    assert "é" in text


@pytest.mark.parametrize("answer", ["y\n", " YES \n"])
def test_a_yes_goes_on(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either word is a yes."""
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    output.confirm("Really?")


@pytest.mark.parametrize("answer", ["", "\n", "n\n", "yesterday\n"])
def test_everything_else_is_a_no(
    answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Silence changes nothing, and the question never lands in the data."""
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    with pytest.raises(InputError, match="Nothing was done"):
        output.confirm("Really?")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "Really? [y/N] ")


def test_progress_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Away from a terminal progress is lines beside the data, not one per step."""
    with progress("working", 1000) as report:
        for step in range(1000):
            report(step, "and working")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "working …\n"


@pytest.mark.parametrize("may_idle", [False, True])
def test_only_work_that_may_idle_is_quiet_where_nothing_was_done(
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    may_idle: bool,
) -> None:
    """A service without work fills no log; a long file, which counts as none yet, shows signs."""
    monkeypatch.setattr("moescope.console.progress.LINE_SECONDS", 0.0)
    with caplog.at_level("DEBUG"), progress("working", may_idle=may_idle) as report:
        for number, done in enumerate([0, 0, 7, 7, 9]):
            report(done, f"beat {number}")
    assert capsys.readouterr().err.splitlines()[1:] == [
        f"working beat {number}" for number in ([2, 4] if may_idle else range(5))
    ]
    assert [each.getMessage() for each in caplog.records] == [
        f"working beat {number}: idle" for number in ([0, 1, 3] if may_idle else [])
    ]


def test_errors_say_who_has_to_act(tmp_path: Path) -> None:
    """Wrong input, an unwilling machine and a missing package differ from faults of moescope."""
    own = InputError("no")
    assert explained(own) is own
    with pytest.raises(OSError, match="missing") as refused:
        (tmp_path / "missing").read_text()
    from_system = explained(refused.value)
    assert isinstance(from_system, DependencyUnreachableError)
    assert str(tmp_path / "missing") in from_system.why
    missing = explained(ModuleNotFoundError("No module named 'duckdb'", name="duckdb"))
    assert isinstance(missing, InputError)
    assert "[server]" in missing.next_step
    assert explained(ModuleNotFoundError("No module named 'nonsense'", name="nonsense")) is None
    assert explained(ZeroDivisionError()) is None
    assert InternalError("x").exit_code == 70


def test_only_likely_typos_of_variables_are_pointed_at() -> None:
    """Those of settings and of the plugin; what has another meaning raises no question."""
    environment = (
        "MOESCOPE_DATA_DIR", "MOESCOPE_WINDOW_TOKEN", "MOESCOPE_SQL_TIMEOUT", "MOESCOPE_CONFIG",
        "MOESCOPE_DISABLE", "MOESCOPE_TRACEBACK", "MOESCOPE_MY_OWN_LABEL", "HOME",
        "MOESCOPE_FIDELTY", "MOESCOPE_TOKEN_ID", "MOESCOPE_DISABLED", "MOESCOPE_HOME",
        "MOESCOPE_PYTHON", "MOESCOPE_VLLM_PYTHON", "MOESCOPE_REQUIRE_SERVICES",
        *(variable.name for variable in VARIABLES),
    )  # fmt: skip
    assert list(misspelt_variables(environment)) == [
        ("MOESCOPE_DATA_DIR", "MOESCOPE_DATA_DIRECTORY"),
        ("MOESCOPE_DISABLED", "MOESCOPE_DISABLE"),
        ("MOESCOPE_FIDELTY", "MOESCOPE_FIDELITY"),
        ("MOESCOPE_TOKEN_ID", "MOESCOPE_TOKEN_IDS"),
        ("MOESCOPE_WINDOW_TOKEN", "MOESCOPE_WINDOWS_TOKEN"),
    ]


def test_a_refusal_of_the_database_is_nobodys_bug() -> None:
    """A full disk that DuckDB notices first ends with code 3 and a next step, not as a fault."""
    with pytest.raises(duckdb.Error) as caught:
        duckdb.sql("select from nowhere at all")
    error = explained(caught.value)
    assert error is not None
    assert (error.exit_code, bool(error.next_step)) == (3, True)
