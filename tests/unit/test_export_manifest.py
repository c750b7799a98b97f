from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from moescope.storage.export import ExportError, Manifest, read_manifest
from moescope.storage.export.manifest import (
    MANIFEST_NAME,
    File,
    Level,
    Offset,
    Partition,
    Retired,
    TableFiles,
)

if TYPE_CHECKING:
    from pathlib import Path


def sample() -> Manifest:
    """A manifest with something in every field."""
    return Manifest(
        generation=3,
        commit_id=9,
        minute_commit_id=7,
        written_at_us=1,
        moescope_version="1",
        layout="a",
        columns="b",
        offsets=[Offset("p", "live", 2, 1, 5)],
        tables={
            "windows": TableFiles(
                "windows/e",
                {
                    "h1": Partition([File("windows/1", Level.HOUR)], 4, 2**70),
                    "h2": Partition([File("windows/2", Level.TAIL)]),
                },
                [File("removed_rows/r", Level.MINUTE)],
            )
        },
        retired=[Retired("windows/0", 8)],
    )


def test_a_manifest_survives_the_disk(tmp_path: Path) -> None:
    """What was published is what is read."""
    sample().publish(tmp_path)
    assert read_manifest(tmp_path) == sample()
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST_NAME]


def test_a_copy_shares_nothing() -> None:
    """The manifest in the making cannot change the one that is published."""
    original = sample()
    original.copy().tables["windows"].partitions["h1"].files.clear()
    assert original == sample()


def test_live_files_leave_out_retired_ones() -> None:
    """Readers open live files; cleaning spares the retired ones as well."""
    live = {"windows/e", "windows/1", "windows/2", "removed_rows/r"}
    assert sample().live() == live
    assert sample().paths() == live | {"windows/0"}


def test_a_partition_is_whole_until_something_is_added() -> None:
    """Only a partition that was written whole can be compared with the store."""
    partitions = sample().tables["windows"].partitions
    assert partitions["h1"].whole
    assert not partitions["h2"].whole
    partitions["h1"].files.append(File("windows/3", Level.TAIL))
    assert not partitions["h1"].whole


def test_no_manifest_is_no_error(tmp_path: Path) -> None:
    """A folder without an export is simply empty."""
    assert read_manifest(tmp_path) is None
    assert read_manifest(tmp_path / "missing") is None


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", '{"format": 99}', "null", "\x00"])
def test_a_damaged_manifest_is_told(tmp_path: Path, damage: str) -> None:
    """Damage gives an error with a remedy, never a half-read export."""
    (tmp_path / MANIFEST_NAME).write_text(damage, encoding="utf-8")
    with pytest.raises(ExportError, match="damaged"):
        read_manifest(tmp_path)


def test_a_missing_field_is_damage(tmp_path: Path) -> None:
    """Every field is needed."""
    sample().publish(tmp_path)
    complete = json.loads((tmp_path / MANIFEST_NAME).read_text(encoding="utf-8"))
    for name in complete:
        rest = {key: value for key, value in complete.items() if key != name}
        (tmp_path / MANIFEST_NAME).write_text(json.dumps(rest), encoding="utf-8")
        with pytest.raises(ExportError, match="damaged"):
            read_manifest(tmp_path)
