from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.exported import exported_rows, stored_rows
from support.sample_store import SampleStore

from moescope.core.clock import ManualClock
from moescope.core.tables import TABLE_BY_NAME
from moescope.storage.export import Exporter, ExportError, export_all, read_manifest
from moescope.storage.export.views import select_table

if TYPE_CHECKING:
    from pathlib import Path

HOUR = 3600


def files(folder: Path, pattern: str) -> list[str]:
    """Names of files in the export that match."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob(pattern))


def test_a_committed_row_shows_after_one_export(
    sample_store: SampleStore, exporter: Exporter
) -> None:
    """Freshness is the export interval: one call, and the row is there, whole."""
    exporter.export_tail()
    sample_store.add_window(5, commit_id=1, counts=[7, 8, 9], request="ä'\"")
    assert exporter.export_tail() is True
    assert exported_rows(sample_store.export, "windows") == stored_rows(sample_store, "windows")


def test_nothing_new_writes_nothing(sample_store: SampleStore, exporter: Exporter) -> None:
    """An idle second leaves files and manifest alone."""
    sample_store.add_window(5, commit_id=1)
    exporter.export_tail()
    before = files(sample_store.export, "*")
    assert exporter.export_tail() is False
    assert files(sample_store.export, "*") == before


def test_an_empty_store_shows_empty_tables(sample_store: SampleStore, exporter: Exporter) -> None:
    """Before any row every table can be read, with its columns."""
    exporter.export_tail()
    for name in ("windows", "metric_histograms", "lanes", "batches"):
        assert not exported_rows(sample_store.export, name)


@pytest.mark.parametrize("steps", ["t", "tm", "mt", "mh", "tth", "tmth"])
def test_a_refinished_window_appears_once(
    sample_store: SampleStore, exporter: Exporter, steps: str
) -> None:
    """The latest version wins, however far the files were compacted in between."""
    exporter.export_tail()
    sample_store.add_window(1, commit_id=1, tokens=10)
    sample_store.add_window(2, commit_id=1, tokens=20)
    for number, step in enumerate(steps):
        run_step(exporter, step)
        sample_store.remove("windows", "start = 1", 2 + number)
        sample_store.add_window(1, commit_id=2 + number, tokens=11 + number, row_version=2 + number)
        run_step(exporter, step)
        expected = stored_rows(sample_store, "windows", "start, tokens, row_version")
        assert (
            exported_rows(sample_store.export, "windows", "start, tokens, row_version") == expected
        )


def test_a_replaced_histogram_appears_once(sample_store: SampleStore, exporter: Exporter) -> None:
    """A histogram grows in place; readers see its newest state only."""
    exporter.export_tail()
    for commit_id in range(1, 6):
        sample_store.remove("metric_histograms", "true", commit_id)
        for metric in ("load_entropy", "js_uniform"):
            sample_store.add(
                "metric_histograms", metric=metric, bins=bytes([commit_id]), commit_id=commit_id
            )
        run_step(exporter, "ttmth"[commit_id - 1])
        assert exported_rows(sample_store.export, "metric_histograms") == stored_rows(
            sample_store, "metric_histograms"
        )


def test_small_tables_are_replaced_whole(sample_store: SampleStore, exporter: Exporter) -> None:
    """A row that changed or went from a table without hours is right in the next tail."""
    sample_store.add("domains", domain="a", watermark_us=1, commit_id=1)
    sample_store.add("domains", domain="b", watermark_us=1, commit_id=1)
    exporter.export_tail()
    sample_store.connection.execute("DELETE FROM domains WHERE domain = 'a'")
    sample_store.connection.execute("UPDATE domains SET watermark_us = 9, commit_id = 2")
    exporter.export_tail()
    assert exported_rows(sample_store.export, "domains", "domain, watermark_us") == {("b", 9): 1}


@pytest.mark.parametrize("steps", ["t", "m", "tm", "tmt"])
def test_a_window_that_opens_again_leaves_at_once(
    sample_store: SampleStore, exporter: Exporter, steps: str
) -> None:
    """A late row takes a window back: it is gone until it closes again, maybe elsewhere."""
    exporter.export_tail()
    sample_store.add_window(1, commit_id=1, window_kind="task")
    exporter.export_tail()
    sample_store.remove("windows", "start = 1", 2)
    for step in steps:
        run_step(exporter, step)
        assert not exported_rows(sample_store.export, "windows")
    sample_store.add_window(0, commit_id=3, window_kind="task", row_version=2)
    run_step(exporter, "t")
    assert exported_rows(sample_store.export, "windows", "start") == {(0,): 1}


def test_erased_rows_leave_at_the_next_hour_compaction(
    sample_store: SampleStore, exporter: Exporter, clock: ManualClock
) -> None:
    """Erasing rewrites the hours it touched, and the old files go after the grace period."""
    for start in (0, 1, HOUR, HOUR + 1):
        sample_store.add_window(start, commit_id=1)
    exporter.export_tail()
    untouched = files(sample_store.export, "windows/hour=2026-01-01T00/hour-*")
    sample_store.connection.execute(f"DELETE FROM windows WHERE start = {HOUR}")
    assert exporter.compact("hour") is True
    assert exported_rows(sample_store.export, "windows", "start") == {
        (0,): 1,
        (1,): 1,
        (HOUR + 1,): 1,
    }
    assert files(sample_store.export, "windows/hour=2026-01-01T00/hour-*") == untouched
    assert len(files(sample_store.export, "windows/hour=2026-01-01T01/*")) == 2
    clock.sleep(61)
    sample_store.add_window(2, commit_id=2)
    exporter.export_tail()
    assert len(files(sample_store.export, "windows/hour=2026-01-01T01/*")) == 1


def test_compaction_leaves_one_file_per_hour(
    sample_store: SampleStore, exporter: Exporter, clock: ManualClock
) -> None:
    """Many tails become one file a minute and one an hour, with the same rows."""
    exporter.export_tail()
    for commit_id in range(1, 7):
        sample_store.add_window(commit_id, commit_id=commit_id)
        run_step(exporter, "tttmtt"[commit_id - 1])
    assert live_levels(sample_store.export) == ["minute", "tail", "tail"]
    exporter.compact("minute")
    assert live_levels(sample_store.export) == ["minute", "minute"]
    exporter.compact("hour")
    assert live_levels(sample_store.export) == ["hour"]
    assert exported_rows(sample_store.export, "windows", "start") == {(n,): 1 for n in range(1, 7)}
    clock.sleep(61)
    sample_store.add_window(9, commit_id=9)
    exporter.export_tail()
    assert len(files(sample_store.export, "windows/hour=2026-01-01T00/*")) == 2


def test_rows_without_a_time_have_a_folder_of_their_own(
    sample_store: SampleStore, exporter: Exporter
) -> None:
    """Imports have windows without event times; they are exported and compacted like others."""
    sample_store.add_window(1, commit_id=1, close_time=None)
    exporter.export_tail()
    sample_store.add_window(2, commit_id=2, close_time=None)
    exporter.export_tail()
    exporter.compact("hour")
    assert exported_rows(sample_store.export, "windows") == stored_rows(sample_store, "windows")
    assert len(files(sample_store.export, "windows/hour=none/hour-*")) == 2


def test_replaced_files_outlive_the_grace_period_of_a_query(
    sample_store: SampleStore, exporter: Exporter, clock: ManualClock
) -> None:
    """A reader that holds the manifest before can finish, even across a restart of the owner."""
    exporter.export_tail()
    sample_store.add_window(1, commit_id=1)
    exporter.export_tail()
    held = read_manifest(sample_store.export)
    assert held is not None
    exporter.compact("hour")
    Exporter(sample_store.connection, sample_store.export, clock, grace_seconds=60.0).export_tail()
    source = select_table(TABLE_BY_NAME["windows"], held.tables["windows"], sample_store.export)
    assert duckdb.execute(f"SELECT start FROM ({source})").fetchall() == [(1,)]


def test_orphans_of_a_crash_are_removed_at_start(
    sample_store: SampleStore, exporter: Exporter, clock: ManualClock
) -> None:
    """Files that no manifest names are deleted; those that one names are not."""
    sample_store.add_window(1, commit_id=1)
    exporter.export_tail()
    before = files(sample_store.export, "*")
    orphan = sample_store.export / "windows" / "hour=2031-01-01T00" / "tail-0000000009-0.parquet"
    orphan.parent.mkdir()
    orphan.write_bytes(b"half")
    (sample_store.export / "manifest.json.new").write_text("{", encoding="ascii")
    Exporter(sample_store.connection, sample_store.export, clock)
    assert files(sample_store.export, "*") == before


def test_a_failed_export_changes_nothing_and_the_next_one_catches_up(
    sample_store: SampleStore, exporter: Exporter
) -> None:
    """An obstacle in one table leaves the last set valid, and no half of the new one."""
    sample_store.add_window(1, commit_id=1)
    exporter.export_tail()
    before = files(sample_store.export, "*.parquet")
    sample_store.add_window(2, commit_id=2)
    sample_store.add("batches", log_offset=1, commit_id=2)
    blocked = sample_store.export / "batches" / "hour=none"
    kept = [(path, path.read_bytes()) for path in blocked.iterdir()]
    for path, _ in kept:
        path.unlink()
    blocked.rmdir()
    blocked.write_bytes(b"")
    with pytest.raises(ExportError, match="readers see is unchanged"):
        exporter.export_tail()
    blocked.unlink()
    blocked.mkdir()
    for path, content in kept:
        path.write_bytes(content)
    assert files(sample_store.export, "*.parquet") == before
    assert exported_rows(sample_store.export, "windows", "start") == {(1,): 1}
    assert exporter.export_tail() is True
    assert exported_rows(sample_store.export, "windows", "start") == {(1,): 1, (2,): 1}
    assert exported_rows(sample_store.export, "batches", "log_offset") == {(1,): 1}


def test_another_store_behind_the_same_folder_is_noticed(
    sample_store: SampleStore, exporter: Exporter, clock: ManualClock, tmp_path: Path
) -> None:
    """After a restore or a rebuild the first export agrees with the new store."""
    for start in (1, HOUR, 2 * HOUR):
        sample_store.add_window(start, commit_id=start)
    exporter.export_tail()
    (tmp_path / "other").mkdir()
    other = SampleStore.create(tmp_path / "other")
    other.add_window(1, commit_id=1)
    other.add_window(HOUR, commit_id=77)
    Exporter(other.connection, sample_store.export, clock).export_tail()
    assert exported_rows(sample_store.export, "windows") == stored_rows(other, "windows")
    other.connection.close()


def test_files_of_another_layout_are_written_again(
    sample_store: SampleStore, exporter: Exporter, clock: ManualClock
) -> None:
    """A new version never mixes its files with those of an older one."""
    sample_store.add_window(1, commit_id=1)
    exporter.export_tail()
    manifest = read_manifest(sample_store.export)
    assert manifest is not None
    old_files = manifest.live()
    manifest.layout = "older"
    manifest.publish(sample_store.export)
    Exporter(sample_store.connection, sample_store.export, clock).export_tail()
    renewed = read_manifest(sample_store.export)
    assert renewed is not None
    assert not renewed.live() & old_files
    assert exported_rows(sample_store.export, "windows") == stored_rows(sample_store, "windows")


def test_the_manifest_holds_the_offsets_of_its_transaction(
    sample_store: SampleStore, exporter: Exporter
) -> None:
    """A restore knows from where to read on."""
    sample_store.add(
        "offsets", partition="p", domain="live", emitted_to=7, replay_from=3, commit_id=1
    )
    sample_store.add_window(1, commit_id=1)
    exporter.export_tail()
    manifest = read_manifest(sample_store.export)
    assert manifest is not None
    assert [(o.partition, o.emitted_to, o.replay_from) for o in manifest.offsets] == [("p", 7, 3)]
    assert manifest.commit_id == 1


def test_the_whole_store_can_be_exported_elsewhere(
    sample_store: SampleStore, tmp_path: Path, clock: ManualClock
) -> None:
    """`export_all` writes internal tables too, and never into a folder with other files."""
    sample_store.add_window(1, commit_id=1)
    sample_store.add("deltas", task="t", commit_id=1)
    sample_store.add("token_window_keys", key_hash=2**64 - 1)
    export_all(sample_store.connection, tmp_path / "copy", clock)
    for name in ("windows", "deltas", "token_window_keys", "owner"):
        assert exported_rows(tmp_path / "copy", name) == stored_rows(sample_store, name)
    with pytest.raises(ExportError, match="not empty"):
        export_all(sample_store.connection, tmp_path / "copy", clock)


operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 3)),
        st.tuples(st.sampled_from(["revise", "move", "remove"]), st.integers(0, 30)),
        st.tuples(st.just("histogram"), st.integers(0, 1)),
        st.tuples(st.sampled_from(["t", "m", "h", "restart"]), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=operations)
def test_any_history_leaves_each_row_once(
    steps: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """After any sequence of commits, exports, compactions and restarts, export equals store."""
    store = SampleStore.create(tmp_path_factory.mktemp("history"))
    clock = ManualClock()
    exporter = Exporter(store.connection, store.export, clock, grace_seconds=5.0)
    added = 0
    for commit_id, (step, value) in enumerate(steps, start=1):
        clock.sleep(1)
        number = value % added if added else 0
        if step == "add":
            store.add_window(added, commit_id, task=str(added), tokens=value)
            added += 1
        elif step == "histogram":
            store.remove("metric_histograms", f"metric = '{value}'", commit_id)
            store.add(
                "metric_histograms", metric=str(value), bins=bytes([commit_id]), commit_id=commit_id
            )
        elif step in {"revise", "move", "remove"}:
            store.remove("windows", f"task = '{number}'", commit_id)
            if step != "remove":
                # A task window that late rows reach starts earlier: another key, another hour.
                start = number + HOUR * commit_id * (step == "move")
                store.add_window(start, commit_id, task=str(number), tokens=commit_id)
        elif step == "restart":
            exporter = Exporter(store.connection, store.export, clock, grace_seconds=5.0)
        else:
            run_step(exporter, step)
            for table in ("windows", "metric_histograms"):
                assert exported_rows(store.export, table) == stored_rows(store, table)
    store.connection.close()


def live_levels(folder: Path) -> list[str]:
    """Levels of the files of `windows`."""
    manifest = read_manifest(folder)
    assert manifest is not None
    parts = manifest.tables["windows"].partitions.values()
    return [str(file.level) for part in parts for file in part.files]


def run_step(exporter: Exporter, step: str) -> None:
    """One call: t(ail), m(inute) or h(our)."""
    if step == "t":
        exporter.export_tail()
    else:
        exporter.compact("minute" if step == "m" else "hour")
