from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.comparison_logs import Batch, Row, write_log

from moescope.core.batchlog import BatchLogReader, BatchLogWriter, WriterSettings
from moescope.core.errors import InsufficientDataError
from moescope.core.vocabulary import Phase
from moescope.jobs.reports.comparison import Limits, compare, find_side
from moescope.jobs.reports.comparison.reading import existing_values

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SAME = ((0, 1, 2), (3, 4, 5))
OTHER = ((0, 1, 2), (3, 4, 6))


def rows(positions: Iterable[int] = range(24), **fields: Any) -> tuple[Row, ...]:
    """Tokens of four requests in turn, each with a key that follows from its position."""
    return tuple(replace(Row(f"r{at % 4}", at, SAME, key=at + 1), **fields) for at in positions)


def half_other() -> tuple[Row, ...]:
    """The same tokens; of every two requests one has another expert in the second layer."""
    return tuple(replace(row, ids=OTHER) if row.position % 2 else row for row in rows())


def compared(folder: Path, a: list[Batch], b: list[Batch], **options: Any) -> Any:
    """Compare two lists of batches."""
    sides = [write_log(folder / name, batches) for name, batches in (("a", a), ("b", b))]
    return compare(*map(find_side, sides), **{"fewest_pairs": 1} | options)


def segments(log: Path) -> list[Path]:
    """Files of records of a log's one partition."""
    return sorted(file for file in (log / "n").iterdir() if file.name[:1].isdigit())


def test_records_that_are_no_batches_are_counted(tmp_path: Path) -> None:
    """What cannot be decoded is told apart from what was never recorded."""
    log = write_log(tmp_path / "a", [Batch(rows())])
    with BatchLogWriter(log, "m") as writer:
        for payload in (b"no batch", b"nor this"):
            writer.append(payload)
    b = write_log(tmp_path / "b", [Batch(rows())])
    report = compare(find_side(log), find_side(b), fewest_pairs=24)
    assert report["a"]["unreadable_records"] == 2
    assert report["b"] is not None
    assert report["b"]["unreadable_records"] == 0
    assert "Left out: A: 2 unreadable records." in report["summary"]
    with pytest.raises(InsufficientDataError) as caught:
        compare(find_side(log / "m"), find_side(b))
    assert caught.value.why == "It has 2 unreadable records."


def test_damaged_records_are_counted(tmp_path: Path) -> None:
    """Each record of a damaged range is one, however much of the file that is."""
    batches = [Batch(rows(range(at, at + 6))) for at in range(0, 24, 6)]
    a, b = (write_log(tmp_path / name, batches) for name in "ab")
    (file,) = segments(b)
    content = bytearray(file.read_bytes())
    frame = len(content) // 4
    for at in (frame + frame // 2, 2 * frame + frame // 2):
        content[at] ^= 0xFF
    file.write_bytes(content)
    report = compare(find_side(a), find_side(b), fewest_pairs=12)
    assert report["tokens"] == 12
    assert report["b"] is not None
    assert report["b"]["unreadable_records"] == 2
    assert report["a"]["unreadable_records"] == 0


def test_records_that_the_byte_cap_removed_are_counted(tmp_path: Path) -> None:
    """A side whose first hours were removed is not taken for one that never served them."""
    a, source = (write_log(tmp_path / name, [Batch(rows())]) for name in ("a", "source"))
    with BatchLogReader(source, "n") as reader:
        (record,) = reader.read(0).records
    b = tmp_path / "b"
    settings = WriterSettings(segment_bytes=4_096, byte_cap=65_536, durability="none")
    with BatchLogWriter(b, "n", settings=settings) as writer:
        for _ in range(200):
            writer.append(record.payload)
    with BatchLogReader(b, "n") as reader:
        removed = reader.drops().dropped_records
    assert 0 < removed < 200
    report = compare(find_side(a), find_side(b), fewest_pairs=24)
    assert report["b"] is not None
    assert report["b"]["rows"] == (200 - removed) * 24
    assert report["b"]["unreadable_records"] == removed


def test_a_limit_is_within_chance_between_the_bounds_alone(tmp_path: Path) -> None:
    """More requests are asked for only where they could turn the verdict."""
    met = {}
    for limit in (0.01, 0.5, 0.99):
        report = compared(
            tmp_path / str(limit), [Batch(rows())], [Batch(half_other())],
            limits=Limits(all_layers=limit),
        )  # fmt: skip
        whole = report["overall"]["all_layers"]
        assert 0.01 < whole["low"] < 0.5 == whole["value"] < whole["high"] < 0.99
        (found,) = report["limits"]
        met[limit] = (found["met"], found["within_chance"])
        is_asked = "more requests are needed to be sure" in report["summary"][-1]
        assert is_asked == found["within_chance"]
    assert met == {0.01: (True, False), 0.5: (True, True), 0.99: (False, False)}


@pytest.mark.parametrize("bound", ["low", "high"])
def test_a_limit_on_a_bound_is_within_chance(tmp_path: Path, bound: str) -> None:
    """The bounds belong to what the share may be."""
    a, b = [Batch(rows())], [Batch(half_other())]
    limit = compared(tmp_path / "before", a, b)["overall"]["all_layers"][bound]
    report = compared(tmp_path / "asked", a, b, limits=Limits(all_layers=limit))
    (found,) = report["limits"]
    assert (found["met"], found["within_chance"]) == (bound == "low", True)


def test_what_no_side_knows_of_the_top_1_is_no_agreement(tmp_path: Path) -> None:
    """Of 24 tokens half are in order on both sides, and half of those have another first expert."""
    turned = ((1, 0, 2), (4, 3, 5))
    ordered = tuple(
        replace(row, ids=turned) if row.position < 6 else row for row in rows(range(12))
    )
    unordered = Batch(rows(range(12, 24)), is_ranked=False)
    report = compared(tmp_path, [Batch(rows(range(12))), unordered], [Batch(ordered), unordered])
    assert report["tokens"] == 24
    assert report["overall"]["top1"]["value"] == 0.5
    assert [layer["top1"]["value"] for layer in report["layers"]] == [0.5, 0.5]


def test_values_that_a_log_has_are_collected_up_to_a_number(tmp_path: Path) -> None:
    """A log in which each batch has another label costs no memory without end."""
    batches = [Batch(rows([0]), header=(("labels", {"job": str(at)}),)) for at in range(1_005)]
    side = find_side(write_log(tmp_path, batches), ["label.job=none"])
    assert len(existing_values(side)["label.job"]) == 1_000


def test_phases_that_no_condition_may_name_are_not_offered(tmp_path: Path) -> None:
    """Whoever takes what the message lists is not refused for it."""
    phases = (Phase.WARMUP, Phase.DRAFT, Phase.DECODE)
    log = write_log(tmp_path / "a", [Batch(rows(phase=phase)) for phase in phases])
    other = find_side(write_log(tmp_path / "b", [Batch(rows())]))
    with pytest.raises(InsufficientDataError) as caught:
        compare(find_side(log, ["phase=train"]), other)
    assert caught.value.why.endswith("The log has phase: decode.")


def test_nine_tenths_of_the_differences_are_most_of_them(tmp_path: Path) -> None:
    """The margin that is named leaves one difference in ten behind, not every second."""
    margins = (0.0007,) * 10 + (0.03,) * 8 + (0.6,) * 2
    a = tuple(replace(row, margin=(3.0, margins[row.position])) for row in rows(range(20)))
    report = compared(tmp_path, [Batch(a)], [Batch(rows(range(20), ids=OTHER))])
    told = "90.0 % of the 20 differences lie where A's choice was close, at a margin under 0.05."
    assert told in report["summary"]


def test_the_first_sighting_is_the_earliest_then_the_first_read(tmp_path: Path) -> None:
    """Logs of several nodes are read one after another: reading order is no time."""
    early, late = rows(time=1), rows(time=2, ids=OTHER)
    for name, first, second in (
        ("read last", late, early),
        ("read first", early, tuple(replace(row, time=1) for row in late)),
    ):
        report = compared(tmp_path / name, [Batch(first), Batch(second)], [Batch(rows())])
        assert report["a"]["duplicates"] == 24
        assert report["overall"]["all_layers"]["value"] == 1.0, name


def test_positions_are_in_the_bucket_that_names_them(tmp_path: Path) -> None:
    """Buckets begin where they say, and the last one has no end."""
    positions = (0, 1, 3, 4, 15, 16, 63, 64, 65_535, 65_536, 70_000)
    report = compared(tmp_path, [Batch(rows(positions))], [Batch(rows(positions))])
    found = {(each["first"], each["last"]): each["tokens"] for each in report["by_position"]}
    assert found == {
        (0, 0): 1, (1, 3): 2, (4, 15): 2, (16, 63): 2, (64, 255): 1, (16_384, 65_535): 1,
        (65_536, None): 2,
    }  # fmt: skip


def test_margins_are_those_of_side_a_each_at_the_lower_edge_of_its_bucket(tmp_path: Path) -> None:
    """Side A is the reference; a margin that is an edge belongs to what begins there."""
    a, b = rows(margin=(0.0, 0.5)), rows(margin=(3.0, 1.0))
    for name, first, second, edges in (("a", a, b, (0.0, 0.5)), ("b", b, a, (1.0,))):
        report = compared(tmp_path / name, [Batch(first)], [Batch(second)])
        assert tuple(each["at_least"] for each in report["by_margin"]) == edges
        assert sum(each["token_layers"] for each in report["by_margin"]) == 48


def test_there_is_no_table_of_margins_that_side_a_does_not_have(tmp_path: Path) -> None:
    """Some batches are enough for one; those of side B, and of rows left out, are none of A's."""
    bare, drafts = Batch(rows(), with_margin=False), Batch(rows(phase=Phase.DRAFT))
    later = Batch(rows(range(24, 30)))
    for name, a, count in (
        ("none", [bare], None),
        ("drafts", [drafts, bare], None),
        ("first", [later, bare], 12),
        ("last", [bare, later], 12),
    ):
        report = compared(tmp_path / name, a, [Batch(rows()), later])
        found = report["by_margin"]
        assert (found and sum(each["token_layers"] for each in found)) == count, name


def test_other_models_do_not_hide_other_revisions(tmp_path: Path) -> None:
    """Where one model was made from the other, their revisions still tell what differs."""
    fields = (("model", "other"), ("revision", "r9"))
    report = compared(tmp_path, [Batch(rows())], [Batch(rows(), header=fields)])
    assert [note.partition(":")[0] for note in report["notes"]] == [
        "The sides are of different models", "The sides are of different revisions",
    ]  # fmt: skip


def test_a_missing_content_key_is_no_other_content(tmp_path: Path) -> None:
    """Joined by request, a side without keys contradicts nobody."""
    keyed, keyless = Batch(rows()), Batch(rows(), with_keys=False)
    for name, a, b in (("a", keyless, keyed), ("b", keyed, keyless)):
        report = compared(tmp_path / name, [a], [b], by="request")
        assert (report["tokens"], report["other_content"]) == (24, 0), name


def test_the_first_expert_number_that_does_not_exist_is_a_fault(tmp_path: Path) -> None:
    """Experts of eight are 0 to 7: an 8 is left out, and a 7 is not."""
    last, none = ((0, 1, 7), (3, 4, 7)), ((0, 1, 7), (3, 4, 8))
    odd = tuple(replace(row, ids=none if row.position < 5 else last) for row in rows())
    report = compared(tmp_path, [Batch(rows(ids=last))], [Batch(odd)])
    assert (report["tokens"], report["b"]["faulty_rows"]) == (19, 5)
    assert report["overall"]["all_layers"]["value"] == 1.0


def test_what_has_no_partner_is_counted_on_its_own_side(tmp_path: Path) -> None:
    """Who looks for lost tokens looks at the side that does not have them."""
    report = compared(tmp_path, [Batch(rows(range(27)))], [Batch(rows(range(3, 28)))])
    assert (report["a"]["unmatched"], report["b"]["unmatched"]) == (3, 1)
    assert "Left out: A: 3 without a partner; B: 1 without a partner." in report["summary"]
