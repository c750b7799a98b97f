from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from moescope.core.errors import InputError
from moescope.core.settings import load_settings
from moescope.storage.connection import connect
from moescope.storage.query import QueryLimits, QuerySourceError, QueryTooLargeError
from moescope.storage.run_sql import run_sql

if TYPE_CHECKING:
    from pathlib import Path

    from support.sample_store import SampleStore

    from moescope.storage.export import Exporter

SMALL = QueryLimits(timeout_seconds=20.0, threads=1, result_rows=100)


def run_elsewhere(code: str, *arguments: object) -> str:
    """Run code in another process, where this one's locks count."""
    finished = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    return finished.stdout


def test_the_running_owner_answers_through_its_export_then_the_file_does(
    sample_store: SampleStore, exporter: Exporter
) -> None:
    """One connection works while an owner holds the file, and after it has gone."""
    sample_store.add_window(1, commit_id=1)
    exporter.export_tail()
    sample_store.add_window(2, commit_id=2)
    with connect(sample_store.directory, limits=SMALL) as connection:
        assert connection.sql("SELECT start FROM windows")["start"].to_list() == [1]
        assert connection.run("SELECT 1").commit_id == 1
        sample_store.connection.close()
        assert sorted(connection.sql("SELECT start FROM windows")["start"]) == [1, 2]
        assert connection.run("SELECT 1").commit_id == -1


def test_reading_the_file_does_not_keep_an_owner_out(sample_store: SampleStore) -> None:
    """Between two queries the file is free, so that an owner can start."""
    sample_store.add_window(1, commit_id=1)
    sample_store.connection.close()
    with connect(sample_store.directory, limits=SMALL) as connection:
        assert connection.sql("SELECT count(*) AS n FROM windows")["n"].to_list() == [1]
        code = (
            "import duckdb, sys; c = duckdb.connect(sys.argv[1]);"
            " print(c.execute('DELETE FROM windows').fetchall())"
        )
        assert run_elsewhere(code, sample_store.directory / "moescope.duckdb")
        assert connection.sql("SELECT count(*) AS n FROM windows")["n"].to_list() == [0]


def test_a_file_whose_owner_was_killed_is_read_with_its_log(
    sample_store: SampleStore,
) -> None:
    """What was committed before a kill -9 is there, though nothing can be written to replay it."""
    sample_store.add("lanes", lane="6", commit_id=1)
    sample_store.connection.close()
    code = (
        "import duckdb, os, sys; c = duckdb.connect(sys.argv[1]);"
        " c.execute('UPDATE lanes SET lane = 7'); os._exit(9)"
    )
    file = sample_store.directory / "moescope.duckdb"
    subprocess.run(
        [sys.executable, "-c", code, str(file)], check=False, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert file.with_name("moescope.duckdb.wal").exists()
    with connect(file, limits=SMALL) as connection:
        assert connection.sql("SELECT lane FROM lanes")["lane"].to_list() == ["7"]


def test_a_copy_of_an_export_can_be_queried_anywhere(
    sample_store: SampleStore, exporter: Exporter, tmp_path: Path
) -> None:
    """An export folder is self-contained: paths in its manifest are relative."""
    sample_store.add_window(1, commit_id=1)
    exporter.export_tail()
    shutil.copytree(sample_store.export, tmp_path / "elsewhere")
    with connect(tmp_path / "elsewhere", limits=SMALL) as connection:
        assert connection.sql("SELECT start FROM windows")["start"].to_list() == [1]


def test_a_directory_without_data_says_so(tmp_path: Path) -> None:
    """The error names the place that was looked at."""
    with pytest.raises(QuerySourceError, match=str(tmp_path)):
        connect(tmp_path)


def test_an_owner_without_an_export_yet_is_told(sample_store: SampleStore) -> None:
    """While the file is held and nothing was exported, the error says that it is held."""
    with (
        connect(sample_store.directory, limits=SMALL) as connection,
        pytest.raises(QuerySourceError, match="cannot be opened"),
    ):
        connection.sql("SELECT 1")


def test_a_frame_is_never_cut_silently(sample_store: SampleStore, exporter: Exporter) -> None:
    """More rows than fit are an error, not a shorter frame."""
    exporter.export_tail()
    with (
        connect(sample_store.export, limits=SMALL) as connection,
        pytest.raises(QueryTooLargeError),
    ):
        connection.sql("FROM range(101)")


def test_the_settings_name_the_data_directory(
    sample_store: SampleStore, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`connect()` without arguments reads where the owner writes."""
    exporter.export_tail()
    monkeypatch.setenv("MOESCOPE_DATA_DIRECTORY", str(sample_store.directory))
    with connect() as connection:
        assert connection.sql("SELECT count(*) AS n FROM windows")["n"].to_list() == [0]


def test_one_call_goes_from_settings_to_text(sample_store: SampleStore, exporter: Exporter) -> None:
    """The command line's helper renders each format, and refuses others."""
    sample_store.add_window(1, commit_id=1)
    exporter.export_tail()
    settings = load_settings(
        environment={}, options={"data.directory": str(sample_store.directory)}
    )
    query = "SELECT start, counts FROM windows WHERE start = $1"
    document = json.loads(run_sql(settings, query, "json", [1]))
    assert document["rows"] == [[1, [1, 2]]]
    assert document["as_of"].startswith("2026-01-01T00:00:00")
    with pytest.raises(InputError, match="xml"):
        run_sql(settings, query, "xml", [1])
