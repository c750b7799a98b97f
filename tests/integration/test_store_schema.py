"""The store file: its schema, and what happens when it cannot be opened."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import duckdb
import pytest
from support.shared_rows import SHAPES, share_finisher

from moescope.core.clock import ManualClock
from moescope.core.errors import DependencyUnreachableError
from moescope.core.tables import TABLES, VIEWS
from moescope.storage.database import open_database
from moescope.storage.errors import SchemaTooNewError, StoreUnreadableError
from moescope.storage.migrations import MIGRATIONS
from moescope.storage.schema import migrate, schema_version
from moescope.storage.store import Store

if TYPE_CHECKING:
    from pathlib import Path

CLOCK = ManualClock(1_700_000_000_000_000)


def test_the_database_is_what_is_declared(tmp_path: Path) -> None:
    """A column that exists only in the declaration, or only in the file, would break readers."""
    with open_database(tmp_path / "s.duckdb") as connection:
        migrate(connection, CLOCK)
        found = connection.execute(
            "SELECT table_name, column_name, data_type, is_nullable FROM duckdb_columns()"
            " WHERE NOT internal ORDER BY table_name, column_index"
        ).fetchall()
        views = connection.execute(
            "SELECT view_name FROM duckdb_views() WHERE NOT internal"
        ).fetchall()
        keys = connection.execute(
            "SELECT table_name, constraint_column_names FROM duckdb_constraints()"
            " WHERE constraint_type = 'PRIMARY KEY'"
        ).fetchall()
    view_names = {view.name for view in VIEWS}
    declared = [
        (table.name, column.name, column.type, column.nullable)
        for table in sorted(TABLES, key=lambda table: table.name)
        for column in table.columns
    ]
    assert [row for row in found if row[0] not in view_names] == declared
    assert {name for (name,) in views} == view_names
    assert keys == [(table.name, list(table.key)) for table in TABLES if table.indexed]


def test_migrating_twice_changes_nothing(tmp_path: Path) -> None:
    """Every start migrates."""
    with open_database(tmp_path / "s.duckdb") as connection:
        assert len(migrate(connection, CLOCK)) == len(MIGRATIONS)
        assert migrate(connection, CLOCK) == []
        assert schema_version(connection) == MIGRATIONS[-1][0]


def test_a_migration_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    """Half of a migration must not stay."""

    def broken(connection: duckdb.DuckDBPyConnection) -> None:
        connection.execute("CREATE TABLE half (a INTEGER)")
        connection.execute("SELECT * FROM nowhere")

    with open_database(tmp_path / "s.duckdb") as connection:
        with pytest.raises(duckdb.CatalogException):
            migrate(connection, CLOCK, (*MIGRATIONS, (2, "break", broken)))
        assert schema_version(connection) == 0
        assert connection.execute("SELECT count(*) FROM duckdb_tables()").fetchone() == (0,)


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    """An old version must not write into tables that it does not know."""
    path = tmp_path / "s.duckdb"
    with open_database(path) as connection:
        migrate(connection, CLOCK)
        connection.execute("INSERT INTO schema_migrations VALUES (99, 'later', now()::TIMESTAMP)")
    with pytest.raises(SchemaTooNewError, match="schema 99"):
        Store(path, share_finisher, SHAPES)
    with open_database(path) as connection:
        assert schema_version(connection) == 99


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("ALTER TABLE deltas DROP COLUMN router", "deltas lacks router BLOB"),
        ("ALTER TABLE windows ADD COLUMN colour VARCHAR", "windows also has colour VARCHAR"),
        ("ALTER TABLE lanes ALTER top_k TYPE BIGINT", "lanes lacks top_k INTEGER and also has"),
        ("DROP TABLE audit", "audit lacks action VARCHAR"),
    ],
    ids=["a column less", "a column more", "another type", "a table less"],
)
def test_a_file_of_a_development_version_is_refused(
    tmp_path: Path, change: str, words: str
) -> None:
    """It has the same number: without a look at its tables the first commit would fail."""
    path = tmp_path / "s.duckdb"
    with open_database(path) as connection:
        migrate(connection, CLOCK)
        for view in reversed(VIEWS):
            connection.execute(f"DROP VIEW {view.name}")
        connection.execute(change)
    with pytest.raises(StoreUnreadableError, match="development version") as caught:
        Store(path, share_finisher, SHAPES)
    assert words in caught.value.why
    assert "batch logs" in caught.value.next_step


def test_another_database_is_refused(tmp_path: Path) -> None:
    """A user's own DuckDB file must not get moescope's tables."""
    path = tmp_path / "mine.duckdb"
    with duckdb.connect(path) as connection:
        connection.execute("CREATE TABLE mine (a INTEGER)")
    with pytest.raises(StoreUnreadableError, match="not a moescope store"):
        Store(path, share_finisher, SHAPES)


@pytest.mark.parametrize("damage", ["head", "text"])
def test_a_damaged_file_says_what_to_do(tmp_path: Path, damage: str) -> None:
    """The message has a next step, and the file is left as it is."""
    path = tmp_path / "s.duckdb"
    Store(path, share_finisher, SHAPES).close()
    content = path.read_bytes()
    broken = b"hello" * 5000 if damage == "text" else b"\xff" * 9000 + content[9000:]
    path.write_bytes(broken)
    with pytest.raises(StoreUnreadableError) as caught:
        Store(path, share_finisher, SHAPES)
    assert "rebuilds it from the batch logs" in caught.value.next_step
    assert caught.value.why
    assert path.read_bytes() == broken


def test_a_second_process_learns_who_owns_the_file(tmp_path: Path) -> None:
    """An operator has to know which process to ask or to stop."""
    path = tmp_path / "s.duckdb"
    with Store(path, share_finisher, SHAPES) as store:
        cursor = store.cursor()
        pid = cursor.execute("SELECT process_id FROM owner").fetchone()
        cursor.close()
        code = (
            "import sys; from pathlib import Path\n"
            "from moescope.storage.database import open_database\n"
            "from moescope.storage.errors import StoreInUseError\n"
            "try: open_database(Path(sys.argv[1]))\n"
            "except StoreInUseError as error: print(error.retriable, error.what)\n"
        )
        result = subprocess.run(
            [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
        )
    assert pid is not None
    assert result.stdout.startswith("True ")
    assert f"process {pid[0]}" in result.stdout


def test_each_owner_raises_the_fencing_token(tmp_path: Path) -> None:
    """A job that started under an earlier owner can be told apart."""
    path = tmp_path / "s.duckdb"
    tokens = []
    for _ in range(3):
        with Store(path, share_finisher, SHAPES, clock=CLOCK) as store:
            tokens.append(store.fencing_token)
    assert tokens == [1, 2, 3]


def test_an_owner_that_is_in_use_can_be_tried_again() -> None:
    """A standby retries until the lock is free."""
    assert DependencyUnreachableError.retriable
