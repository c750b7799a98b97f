"""What changed in one table since the last export, and which files that makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from moescope.storage.export.layout import (
    COMMIT_COLUMN,
    REMOVALS_TABLE,
    is_partitioned,
    partition_condition,
    partition_name,
    quoted,
)
from moescope.storage.export.manifest import (
    NOTHING_EXPORTED,
    Level,
    Offset,
    Partition,
    TableFiles,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

    from moescope.core.tables import Table
    from moescope.storage.export.manifest import Manifest
    from moescope.storage.export.parquet import ParquetWriter


class ReadableStore(Protocol):
    """What the exporter needs: a DuckDB connection, or the owner's store."""

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection of its own to the same database."""
        ...


class Extent(NamedTuple):
    """Rows of a partition and the sum of their commit ids: equal extents mean equal rows.

    A row is replaced by one with a greater commit id, so the sum tells what the number cannot.
    """

    rows: int
    commit_sum: int


class TableExport:
    """Brings the files of one table up to a commit, inside a read transaction.

    Args:
        cursor: Inside the transaction.
        writer: Writes this generation's files.
        table: The table.
        commit_id: Newest commit of the transaction.
    """

    def __init__(
        self,
        cursor: duckdb.DuckDBPyConnection,
        writer: ParquetWriter,
        table: Table,
        commit_id: int,
    ) -> None:
        self._cursor = cursor
        self._writer = writer
        self._table = table
        self._commit_id = commit_id

    def apply(
        self, manifest: Manifest, level: Level, since: int, removed_before: str | None = None
    ) -> None:
        """Change the table's entry in the manifest.

        Args:
            manifest: The manifest in the making.
            level: `TAIL` and `MINUTE` add a file per hour for commits after `since`; `MINUTE`
                also drops the tails, which hold the same commits. `HOUR` writes anew what does
                not agree with the store.
            since: Commits up to this one are in files that stay.
            removed_before: Begin of the first hour from which no old rows were removed since
                then, as a partition's name; None: none were removed. Needs level `MINUTE` or
                `HOUR`.
        """
        files = manifest.tables.get(self._table.name)
        if files is None:
            files = manifest.tables[self._table.name] = TableFiles(
                self._writer.write_empty(self._table)
            )
        if level is Level.HOUR or not is_partitioned(self._table):
            self._rewrite_stale(files)
        else:
            self._append(files, level, since)
            if removed_before is not None:
                self._rewrite_hours_before(files, removed_before)

    def _append(self, files: TableFiles, level: Level, since: int) -> None:
        if level is Level.MINUTE:
            _drop_tails(files)
        condition = f"{COMMIT_COLUMN} > {since} AND {self._within()}"
        for name, added in self._writer.write_partitions(self._table, level, condition).items():
            files.partitions.setdefault(name, Partition()).files.extend(added)
        files.removals += self._writer.write_removals(self._table, level, condition)

    def _rewrite_stale(self, files: TableFiles) -> None:
        extents = self._extents(self._within())
        kept = self._written_anew(files.partitions, extents, self._within())
        files.partitions = dict(sorted(kept.items()))
        files.removals = []

    def _rewrite_hours_before(self, files: TableFiles, first: str) -> None:
        """Write hours anew that have lost their old rows: little or nothing is left of them."""
        old = {name: part for name, part in files.partitions.items() if name < first}
        time = f"TIMESTAMP '{first.replace('T', ' ')}:00:00'"
        earlier = f"{self._within()} AND {self._table.time_column} < {time}"
        written = self._written_anew(old, self._extents(earlier), earlier)
        kept = {name: part for name, part in files.partitions.items() if name not in old}
        files.partitions = dict(sorted((kept | written).items()))

    def _written_anew(
        self, partitions: dict[str, Partition], extents: dict[str, Extent], condition: str
    ) -> dict[str, Partition]:
        """The partitions with these extents, those written again that do not agree.

        Args:
            partitions: As exported.
            extents: As stored, of the rows for which the condition holds.
            condition: SQL.
        """
        stale = [
            name
            for name, extent in extents.items()
            if name not in partitions or not _agrees(partitions[name], extent)
        ]
        kept = {name: part for name, part in partitions.items() if name in extents}
        if stale:
            if len(stale) < len(extents):
                condition += f" AND {partition_condition(self._table, stale)}"
            written = self._writer.write_partitions(self._table, Level.HOUR, condition)
            for name in stale:
                kept[name] = Partition(written[name], *extents[name])
        return kept

    def _extents(self, condition: str) -> dict[str, Extent]:
        hour = f"date_trunc('hour', {self._table.time_column})"
        partitioned = is_partitioned(self._table)
        rows = self._cursor.execute(
            f"SELECT {partition_name('hour' if partitioned else None)}, number, total FROM ("
            f"SELECT {hour if partitioned else 'NULL'} AS hour, count(*) AS number,"
            f" {f'sum({COMMIT_COLUMN})' if self._has_commits() else '0'} AS total"
            f" FROM {quoted(self._table.name)} WHERE {condition} GROUP BY 1)"
        ).fetchall()
        return {str(name): Extent(int(number), int(total)) for name, number, total in rows}

    def _within(self) -> str:
        return f"{COMMIT_COLUMN} <= {self._commit_id}" if self._has_commits() else "true"

    def _has_commits(self) -> bool:
        return COMMIT_COLUMN in self._table.column_names


def newest_commit(cursor: duckdb.DuckDBPyConnection, tables: Sequence[Table]) -> int:
    """Newest commit in the transaction, as the owner counts, else as the rows say."""
    counted = cursor.execute("SELECT max(last_commit_id) FROM owner").fetchone()
    if counted is not None and counted[0] is not None:
        return int(counted[0])
    names = [table.name for table in tables if COMMIT_COLUMN in table.column_names]
    union = " UNION ALL ".join(
        f"SELECT max({COMMIT_COLUMN}) AS newest FROM {quoted(name)}"
        for name in (*names, REMOVALS_TABLE)
    )
    found = cursor.execute(f"SELECT max(newest) FROM ({union})").fetchone()
    return NOTHING_EXPORTED if found is None or found[0] is None else int(found[0])


def removed_before(cursor: duckdb.DuckDBPyConnection, since: int, commit_id: int) -> dict[str, str]:
    """Tables that have lost old rows since a commit → the first hour that has not."""
    rows = cursor.execute(
        f"SELECT table_name, {partition_name('removed_before')} FROM retention_marks"
        " WHERE commit_id > ? AND commit_id <= ?",
        [since, commit_id],
    ).fetchall()
    return dict(rows)


def offsets(cursor: duckdb.DuckDBPyConnection) -> list[Offset]:
    """How far each source partition was read, in the same transaction."""
    rows = cursor.execute(
        "SELECT partition, domain, emitted_to, replay_from, watermark_us FROM offsets ORDER BY 1"
    ).fetchall()
    return [Offset(*row) for row in rows]


def _agrees(partition: Partition, extent: Extent) -> bool:
    return partition.whole and Extent(partition.rows, partition.commit_sum) == extent


def _drop_tails(files: TableFiles) -> None:
    for partition in files.partitions.values():
        partition.files = [file for file in partition.files if file.level is not Level.TAIL]
    files.partitions = {name: part for name, part in files.partitions.items() if part.files}
    files.removals = [file for file in files.removals if file.level is not Level.TAIL]
