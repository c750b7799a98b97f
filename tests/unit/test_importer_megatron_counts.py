"""Tokens per expert: ranks that own some experts each, stages, recomputation, and what is wrong."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from support.decoded_logs import log_of
from support.imported_rows import Piece, example_of, example_options, imported_pieces

from moescope.core.vocabulary import Fidelity, Phase
from moescope.producers.importers import ImportFormatError, count_batches, import_files

if TYPE_CHECKING:
    from pathlib import Path

    from moescope.producers.importers import ImportReport

OPTIONS = {"experts": "4", "top_k": "2"}


def line(
    counts: list[list[int]],
    step: int = 1,
    layer: int = 0,
    **fields: Any,
) -> dict[str, Any]:
    """A line as the logger writes it."""
    return {"iter": step, "block": "decoder", "layer": layer, "tpe": counts, **fields}


def rank_file(folder: Path, lines: list[Any], rank: int = 0) -> Path:
    """A rank's file."""
    folder.mkdir(exist_ok=True)
    path = folder / f"rank{rank}.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in lines), encoding="utf-8")
    return path


def imported(path: Path, log: Path, **options: str) -> ImportReport:
    """Import a file or folder."""
    return import_files("megatron-counts", [path], log, {**OPTIONS, **options})


def test_the_example_of_the_page_is_imported_as_the_page_says(
    repository_root: Path, tmp_path: Path
) -> None:
    """Both ranks' experts make up the layer."""
    page = repository_root / "docs" / "reference" / "importers" / "megatron-counts.md"
    rank_file(tmp_path / "t", [json.loads(example_of(page, "json"))])
    rank_file(tmp_path / "t", [line([[2, 6], [4, 4]], 100, 3)], 1)
    import_files("megatron-counts", [tmp_path / "t"], tmp_path / "log", example_options(page))
    assert imported_pieces(tmp_path / "log") == [
        Piece("step-100-group-0", Phase.TRAIN, 16, 100, {3: [9, 7, 6, 10]})
    ]
    [batches] = log_of(tmp_path / "log").values()
    assert [batch.header.fidelity for batch, _ in batches] == [Fidelity.COUNTS]


def test_groups_stages_and_shared_experts(tmp_path: Path) -> None:
    """Eight ranks: two stages of two groups of two; of the pairs that share experts one counts."""
    for rank in range(16):
        own = (rank // 2) % 2
        counts = [[2 + rank // 4 % 2, 2], [2, 2 + rank // 4 % 2]][own]
        rank_file(tmp_path / "t", [line([counts])], rank)
    report = imported(
        tmp_path / "t", tmp_path / "log",
        expert_parallel="2", expert_tensor_parallel="2", stage_starts="0,5",
    )  # fmt: skip
    assert imported_pieces(tmp_path / "log") == [
        Piece("step-1-group-0", Phase.TRAIN, 4, 1, {0: [2, 2, 2, 2], 5: [2, 2, 2, 2]}),
        Piece("step-1-group-1", Phase.TRAIN, 5, 1, {0: [3, 2, 2, 3], 5: [3, 2, 2, 3]}),
    ]
    assert report.rejected == 0


def test_experts_of_absent_ranks_are_never_taken_for_dead_ones(tmp_path: Path) -> None:
    """One rank's file holds its own experts only; a layer of them looks wildly unbalanced."""
    path = rank_file(tmp_path / "t", [line([[2, 2]])])
    with pytest.raises(ImportFormatError, match="No step of") as raised:
        imported(path, tmp_path / "log", expert_parallel="2")
    assert "experts of some ranks are missing" in str(raised.value.why)
    with pytest.raises(ImportFormatError) as raised:
        imported(path, tmp_path / "log")
    assert "another number of experts" in str(raised.value.why)


def test_counts_that_do_not_add_up_are_rejected_or_suspicious(tmp_path: Path) -> None:
    """Padding and capacity change the counts; with the tokens given, gates judge layer by layer."""
    lines = [
        line([[2, 2, 2, 2]], 1, 0), line([[2, 2, 2, 2]], 1, 1),
        line([[2, 2, 2, 2]], 2, 0), line([[2, 2, 2, 4]], 2, 1),
        line([[3, 0, 0, 0]], 3, 0), line([[3, 0, 0, 0]], 3, 1),
        line([[4, 0, 0, 0]], 4, 0), line([[4, 0, 0, 0]], 4, 1),
    ]  # fmt: skip
    path = rank_file(tmp_path / "t", lines)
    report = imported(path, tmp_path / "log")
    assert report.files[0].rejected == {
        "counts that are not tokens × k at every layer": 2,
        "an expert selected more often than there are tokens": 1,
    }
    assert [piece.step for piece in imported_pieces(tmp_path / "log")] == [1]
    report = imported(path, tmp_path / "other", tokens="4")
    assert report.files[0].suspicious == {"layers whose counts are not tokens × k": 5}
    assert [piece.tokens for piece in imported_pieces(tmp_path / "other")] == [4] * 4


def test_recomputation_is_said_and_can_be_taken_back(tmp_path: Path) -> None:
    """Every micro-batch twice is what activation recomputation looks like."""
    path = rank_file(tmp_path / "t", [line([[2, 2, 0, 0], [1, 1, 1, 1]] * 2)])
    report = imported(path, tmp_path / "log")
    assert report.files[0].suspicious == {"micro-batches counted twice": 2}
    assert [piece.tokens for piece in imported_pieces(tmp_path / "log")] == [8]
    imported(path, tmp_path / "once", recomputed="yes")
    assert imported_pieces(tmp_path / "once") == [
        Piece("step-1-group-0", Phase.TRAIN, 4, 1, {0: [3, 3, 1, 1]})
    ]


def test_prediction_heads_are_drafts(tmp_path: Path) -> None:
    """They have layer numbers of the decoder."""
    path = rank_file(
        tmp_path / "t",
        [line([[1, 1, 0, 0]]), line([[0, 0, 1, 1]], block="mtp", mtp_idx=0)],
    )
    imported(path, tmp_path / "log")
    assert [(piece.phase, piece.counts) for piece in imported_pieces(tmp_path / "log")] == [
        (Phase.TRAIN, {0: [1, 1, 0, 0]}),
        (Phase.DRAFT, {0: [0, 0, 1, 1]}),
    ]


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ("nonsense", "no JSON object"),
        (line([]), "no counts"),
        (line([[1, 1, 1], [1]]), "ragged counts"),
        (line([["1", 1, 1, 1]]), "counts that are no whole numbers"),  # type: ignore[list-item]  # wrong on purpose
        (line([[-1, 1, 1, 1]]), "counts out of range"),
        (line([[1, 1]]), "another number of experts"),
        (line([[1, 1, 1, 1]], layer="x"), "layer is no integer from 0 to 4096"),  # type: ignore[arg-type]  # wrong on purpose
        (line([[1, 1, 1, 1]], block="other"), "an unknown block"),
        (line([[1, 1, 1, 1]], 1), "the same step again"),
    ],
)
def test_damaged_lines_are_rejected_alone(item: Any, reason: str, tmp_path: Path) -> None:
    """A run that was restarted in the middle of a step wrote it twice; the first one counts."""
    path = rank_file(tmp_path / "t", [line([[1, 1, 0, 0]]), item])
    report = imported(path, tmp_path / "log")
    assert report.files[0].rejected == {reason: 1}
    assert report.files[0].first_rejects[0].line == 2
    assert [piece.counts for piece in imported_pieces(tmp_path / "log")] == [{0: [1, 1, 0, 0]}]


def test_what_counts_cannot_tell_is_asked_for(tmp_path: Path) -> None:
    """E and k; and the rank is in the file's name."""
    path = rank_file(tmp_path / "t", [line([[1, 1, 0, 0]])])
    with pytest.raises(ImportFormatError, match="not known"):
        import_files("megatron-counts", [path], tmp_path / "log", {"experts": "4"})
    other = path.rename(tmp_path / "counts.jsonl")
    with pytest.raises(ImportFormatError, match="No step of") as raised:
        imported(other, tmp_path / "log")
    assert "not called rank<number>.jsonl" in str(raised.value.why)
    with pytest.raises(ImportFormatError, match="is a folder"):
        import_files("counts-json", [tmp_path], tmp_path / "log")


def test_many_steps_become_several_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch is longer than its bound, and no step is lost on the way."""
    monkeypatch.setattr(count_batches, "BATCH_BYTES", 128)
    path = rank_file(tmp_path / "t", [line([[1, 1, 1, 1]], step) for step in range(20)])
    imported(path, tmp_path / "log")
    assert [piece.step for piece in imported_pieces(tmp_path / "log")] == list(range(20))
    [batches] = log_of(tmp_path / "log").values()
    assert [batch.header.sequence for batch, _ in batches] == [0, 1, 2]


@pytest.mark.parametrize("copy", ["rank00.jsonl", "rank0.jsonl.gz", "rank0.jsonl.bak"])
def test_two_files_of_one_rank_are_refused(tmp_path: Path, copy: str) -> None:
    """A forgotten copy would double a rank's steps, or reject every line of one of both."""
    folder = tmp_path / "t"
    first = rank_file(folder, [line([[2, 2, 2, 2]])])
    content = first.read_bytes()
    (folder / copy).write_bytes(gzip.compress(content) if copy.endswith(".gz") else content)
    with pytest.raises(ImportFormatError, match="are of rank 0: ") as caught:
        imported(folder, tmp_path / "log")
    assert copy in caught.value.what
    (folder / copy).unlink()
    assert imported(folder, tmp_path / "log").rows == 4


def test_memory_for_counts_is_bounded(tmp_path: Path) -> None:
    """A run of a month fits or is refused with a word; the machine is not filled up."""
    path = rank_file(tmp_path / "t", [line([[2, 2, 2, 2]], step) for step in range(800)])
    with pytest.raises(ImportFormatError, match="more than 1 MiB of memory"):
        imported(path, tmp_path / "log", max_memory_mib="1")
    assert imported(path, tmp_path / "log", max_memory_mib="2").rows == 800 * 4
