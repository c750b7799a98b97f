"""Router traces: sequences, stages, ranks, recomputation, heads, and what is wrong with them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.decoded_logs import log_of
from support.imported_rows import (
    Row,
    example_of,
    example_options,
    imported_pieces,
    imported_rows,
)

from moescope.core.vocabulary import Phase, RankOrder
from moescope.producers.importers import ImportFormatError, import_files

if TYPE_CHECKING:
    from moescope.producers.importers import ImportReport

OPTIONS = {"experts": "8"}
ROWS = {"micro_batch_size": "1"}


def record(
    ids: list[list[int]],
    layer: int = 0,
    step: int = 1,
    rank: int = 0,
    **fields: Any,
) -> dict[str, Any]:
    """A record as the tracer writes it."""
    return {
        "step": step,
        "stage": "pre_dispatch",
        "block": "decoder",
        "layer": layer,
        "rank": rank,
        "num_tokens": len(ids),
        "topk": len(ids[0]) if ids else 2,
        "top_indices": ids,
        **fields,
    }


def trace(folder: Path, records: list[Any], rank: int = 0) -> Path:
    """A rank's file."""
    folder.mkdir(exist_ok=True)
    path = folder / f"router_trace_rank{rank}.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in records), encoding="utf-8")
    return path


def imported(path: Path, log: Path, **options: str) -> ImportReport:
    """Import a file or folder."""
    return import_files("megatron-trace", [path], log, {**OPTIONS, **options})


def test_the_example_of_the_page_is_imported_as_the_page_says(
    repository_root: Path, tmp_path: Path
) -> None:
    """Rows go position by position through the sequences."""
    page = repository_root / "docs" / "reference" / "importers" / "megatron-trace.md"
    path = tmp_path / "router_trace_rank0.jsonl"
    path.write_text(example_of(page, "json"), encoding="utf-8")
    import_files("megatron-trace", [path], tmp_path / "log", example_options(page))
    first, second = "step-3-rank-0-batch-0-0", "step-3-rank-0-batch-0-1"
    assert imported_rows(tmp_path / "log") == [
        Row(first, 0, Phase.TRAIN, [[0, 1]], (1,), 3),
        Row(first, 1, Phase.TRAIN, [[4, 5]], (1,), 3),
        Row(second, 0, Phase.TRAIN, [[2, 3]], (1,), 3),
        Row(second, 1, Phase.TRAIN, [[6, 7]], (1,), 3),
    ]
    [batches] = log_of(tmp_path / "log").values()
    assert {batch.header.rank_order for batch, _ in batches} == {RankOrder.UNKNOWN}


def test_stages_give_layers_and_data_parallel_ranks_tokens(tmp_path: Path) -> None:
    """Ranks 0 and 1 are the first stage, 2 and 3 the second: two micro-batches of four layers."""
    ids = {rank: [[[rank, 4]], [[rank, 5]]] for rank in range(4)}
    for rank, layers in ids.items():
        records = [record(part, layer, rank=rank) for layer, part in enumerate(layers)]
        trace(tmp_path / "t", records, rank)
    imported(tmp_path / "t", tmp_path / "log", stage_starts="0,2", **ROWS)
    found = imported_rows(tmp_path / "log")
    assert [row.ids for row in found] == [
        [[0, 4], [0, 5], [2, 4], [2, 5]],
        [[1, 4], [1, 5], [3, 4], [3, 5]],
    ]
    assert found[0].layers == (0, 1, 2, 3)


def test_without_neighbours_counts_per_step_are_imported(tmp_path: Path) -> None:
    """Made-up neighbours would make up overlap; counts need none."""
    trace(
        tmp_path / "t",
        [
            record([[0, 1], [2, 3]]),
            record([[0, 1], [0, 5]]),
            record([[4, 5]], step=2),
            record([[6, 6], [7, 8]], step=2),
        ],
    )
    report = imported(tmp_path / "t", tmp_path / "log")
    assert imported_pieces(tmp_path / "log") == [
        ("step-1-rank-0", Phase.TRAIN, 4, 1, {0: [3, 2, 1, 1, 0, 1, 0, 0]}),
        ("step-2-rank-0", Phase.TRAIN, 1, 2, {0: [0, 0, 0, 0, 1, 1, 0, 0]}),
    ]
    assert report.files[0].rejected == {"rows with repeated or impossible ids": 1}
    assert report.rows == 5
    assert "micro_batch_size" in report.files[0].notes[-1]


def test_recomputed_micro_batches_count_once(tmp_path: Path) -> None:
    """Activation checkpointing runs the router twice for the same tokens."""
    forward = [record([[0, 1], [2, 3]], layer) for layer in (0, 1)]
    other = [record([[4, 1], [2, 3]], layer) for layer in (0, 1)]
    trace(tmp_path / "t", [*forward, *other, *reversed(forward)])
    report = imported(tmp_path / "t", tmp_path / "log", **ROWS)
    assert len(imported_rows(tmp_path / "log")) == 4
    assert report.files[0].notes == ("2 rows of recomputed forward passes were left out.",)


def test_the_same_micro_batch_in_another_step_counts_again(tmp_path: Path) -> None:
    """An epoch later the same tokens are another computation."""
    trace(tmp_path / "t", [record([[0, 1]], step=step) for step in (1, 2)])
    imported(tmp_path / "t", tmp_path / "log", **ROWS)
    assert [row.step for row in imported_rows(tmp_path / "log")] == [1, 2]


def test_a_rank_that_repeats_another_is_left_out(tmp_path: Path) -> None:
    """Tensor-parallel ranks that see all tokens would multiply the counts."""
    for rank in (0, 1):
        trace(tmp_path / "t", [record([[0, 1]], rank=rank)], rank)
    trace(tmp_path / "t", [record([[2, 3]], rank=2)], 2)
    report = imported(tmp_path / "t", tmp_path / "log", **ROWS)
    assert [row.ids for row in imported_rows(tmp_path / "log")] == [[[0, 1]], [[2, 3]]]
    assert report.files[0].notes == ("Ranks [1] repeat what others saw, and were left out.",)


@pytest.mark.parametrize("options", [ROWS, {}])
def test_prediction_heads_are_drafts_beside_the_decoder(
    options: dict[str, str], tmp_path: Path
) -> None:
    """Their layers have the numbers of decoder layers; they must never be taken for those."""
    heads = [record([[6, 7]], 0, block="mtp", mtp_idx=head) for head in (0, 1)]
    trace(tmp_path / "t", [record([[0, 1]], 0), *heads])
    imported(tmp_path / "t", tmp_path / "log", **options)
    [batches] = log_of(tmp_path / "log").values()
    found = []
    for batch, _ in batches:
        source = batch.tokens or batch.token_blocks
        assert source is not None
        found.append((batch.header.sequence, batch.header.layers.tolist(), source.phase.tolist()))
    assert found == [(0, [0], [Phase.TRAIN]), (1, [0, 1], [Phase.DRAFT])]


def test_old_traces_and_other_phases(tmp_path: Path) -> None:
    """The first tracer wrote neither stage nor block; decode steps are no optimizer steps."""
    old = record([[0, 1]])
    del old["stage"], old["block"]
    trace(tmp_path / "t", [old])
    imported(tmp_path / "t", tmp_path / "log", phase="decode", **ROWS)
    [row] = imported_rows(tmp_path / "log")
    assert (row.phase, row.step) == (Phase.DECODE, None)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"top_indices": [[0, 1], [2]]}, "ragged top_indices"),
        ({"top_indices": [[0, 1, 2]] * 2}, "top_indices of another shape than num_tokens × topk"),
        ({"top_indices": [[0, -1], [2, 3]]}, "an id is not 0 to 65535"),
        ({"top_indices": [[0, 1.5], [2, 3]]}, "an id is not 0 to 65535"),
        ({"top_indices": [["0", "1"], ["2", "3"]]}, "an id is not 0 to 65535"),
        ({"top_indices": "x"}, "no top_indices"),
        ({"stage": "post_dispatch"}, "an unknown stage"),
        ({"block": "vision"}, "an unknown block"),
        ({"step": -1}, f"step is no integer from 0 to {2**53}"),
        ({"rank": None}, f"rank is no integer from 0 to {2**20}"),
    ],
)
def test_damaged_records_are_rejected_with_file_and_line(
    fields: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    """One bad record costs its micro-batch, not the run."""
    bad = record([[0, 1], [2, 3]], step=2)
    trace(tmp_path / "t", [record([[0, 1]]), {**bad, **fields}])
    report = imported(tmp_path / "t", tmp_path / "log", **ROWS)
    assert report.files[0].rejected == {reason: 1}
    assert report.files[0].first_rejects[0].line == 2
    assert report.files[0].first_rejects[0].file.endswith("/router_trace_rank0.jsonl")
    assert len(imported_rows(tmp_path / "log")) == 1


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ([record([[0, 1]], 0, 2)], "a micro-batch without all layers"),
        (
            [record([[0, 1]], 0, 2), record([[0, 1], [2, 3]], 1, 2)],
            "layers with different numbers of tokens or experts",
        ),
        (
            [record([[0, 1, 2]], 0, 2), record([[0, 1, 2]], 1, 2)],
            "another top-k than the first record",
        ),
    ],
)
def test_incomplete_micro_batches_are_rejected(
    more: list[Any], reason: str, tmp_path: Path
) -> None:
    """A missing stage or a trace that broke off must not look like dead layers."""
    trace(tmp_path / "t", [record([[0, 1]], 0), record([[0, 1]], 1), *more])
    report = imported(tmp_path / "t", tmp_path / "log", **ROWS)
    assert report.files[0].rejected == {reason: 1}
    assert len(imported_rows(tmp_path / "log")) == 1


def test_suspicious_rows_are_said_at_once(tmp_path: Path) -> None:
    """Zeros, repeats and stuck rows are imported; gates keep them out of health."""
    stuck = [[0, 1]] * 34
    trace(tmp_path / "t", [record([[0, 0], [3, 3], [1, 9], *stuck])])
    report = imported(tmp_path / "t", tmp_path / "log", **ROWS)
    assert report.files[0].suspicious == {
        "all-zero ids": 1,
        "repeated ids": 1,
        "ids beyond the experts": 1,
        "rows in a run of identical ones": 2,
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"experts": ""}, "experts cannot be ''"),
        ({"stage_starts": "0,2"}, "cannot be 2 stages"),
        ({"world_size": "1"}, "cannot be 1 stages"),
        ({"micro_batch_size": "2"}, "No token of"),
        ({"stage_starts": "0,1", "world_size": "6"}, "No micro-batch of"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    options: dict[str, str], message: str, tmp_path: Path
) -> None:
    """The message says what to give."""
    path = trace(tmp_path / "t", [record([[0, 1]], 1, rank=2)], 2)
    with pytest.raises(ImportFormatError, match=message):
        imported(path, tmp_path / "log", **options)


def test_experts_have_to_be_named_and_memory_is_bounded(tmp_path: Path) -> None:
    """Ids only show which experts were used."""
    path = trace(tmp_path / "t", [record([[0, 1]] * 90_000)])
    with pytest.raises(ImportFormatError, match="not known"):
        import_files("megatron-trace", [path], tmp_path / "log")
    with pytest.raises(ImportFormatError, match="MiB of memory"):
        imported(path, tmp_path / "log", max_memory_mib="1")


@pytest.mark.parametrize("copy", ["router_trace_rank00.jsonl", "router_trace_rank0.jsonl.gz"])
def test_one_step_of_one_rank_in_two_files_is_refused(tmp_path: Path, copy: str) -> None:
    """Another run's file in the folder would be taken for a second micro-batch of each step."""
    folder = tmp_path / "t"
    trace(folder, [record([[0, 1]], step=step) for step in (1, 2)])
    again = "".join(json.dumps(record([[2, 3]], step=step)) + "\n" for step in (2, 3)).encode()
    (folder / copy).write_bytes(gzip.compress(again) if copy.endswith(".gz") else again)
    with pytest.raises(ImportFormatError, match="hold step 2 of rank 0: ") as caught:
        imported(folder, tmp_path / "log", **ROWS)
    assert copy in caught.value.what
    later = "".join(json.dumps(record([[2, 3]], step=step)) + "\n" for step in (3, 4)).encode()
    (folder / copy).write_bytes(gzip.compress(later) if copy.endswith(".gz") else later)
    assert imported(folder, tmp_path / "log", **ROWS).rows == 4  # a rank may go on in another file


def test_many_small_records_are_bounded_as_well(tmp_path: Path) -> None:
    """Records of one token hold more memory than their ids."""
    path = trace(tmp_path, [record([[0, 1]], step=step) for step in range(800)])
    with pytest.raises(ImportFormatError, match="more than 1 MiB of memory"):
        imported(path, tmp_path / "log", max_memory_mib="1")
    assert imported(path, tmp_path / "log", max_memory_mib="2").rows == 800


def test_rejects_of_a_folder_lead_to_a_file_and_come_in_order(tmp_path: Path) -> None:
    """An editor opens `file:line`; what grouping finds is told where its line is, not last."""
    first = trace(
        tmp_path / "t",
        [record([[0, 1]], step=1), "no record"]
        + [record([[2, 3]], layer, step=2) for layer in (0, 1)],
    )
    second = trace(tmp_path / "t", ["no record, either"], rank=1)
    report = imported(tmp_path / "t", tmp_path / "log", **ROWS).files[0]
    expected = [(str(first), 1), (str(first), 2), (str(second), 1)]
    assert [(reject.file, reject.line) for reject in report.first_rejects] == expected
    assert str(report.first_rejects[0]).startswith(f"{first}:1: a micro-batch without all layers")
    lines = Path(report.rejects_file).read_text(encoding="utf-8").splitlines()
    assert [(each["file"], each["line"]) for each in map(json.loads, lines)] == expected
    assert [json.loads(line)["reason"] for line in lines] == [
        reject.reason for reject in report.first_rejects
    ]
    assert [path.name for path in (tmp_path / "log").glob("*.rejects*")] == [
        Path(report.rejects_file).name
    ]
