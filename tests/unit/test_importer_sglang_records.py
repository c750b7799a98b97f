"""Dumps of SGLang's recorder: counts and ids of all modes, ranks, placements and faults."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.decoded_logs import log_of
from support.imported_rows import Piece, example_of, imported_pieces, imported_rows
from support.tensor_files import write_tensors

from moescope.core.vocabulary import IdSpace, Phase
from moescope.producers.importers import ImportFormatError, import_files

if TYPE_CHECKING:
    from pathlib import Path

    from moescope.producers.importers import ImportReport

LAYERS, PHYSICAL, K = 3, 6, 2
IDENTITY = np.tile(np.arange(PHYSICAL), (LAYERS, 1))
REPLICATED = np.tile([0, 1, 2, 3, 4, 0], (LAYERS, 1))


def token_pass(
    ids: list[list[list[int]]],
    number: int = 1,
    rank: int = 0,
    **fields: Any,
) -> dict[str, Any]:
    """A prefill pass of one sequence; ids of layers 1 and 2, layer 0 is dense."""
    padded = np.full((LAYERS, len(ids[0]), 8), -1, np.int32)
    padded[1:, :, :K] = np.array(ids, np.int32)
    rows = len(ids[0])
    return {
        "forward_pass_id": number,
        "rank": rank,
        "gatherer_key": "primary",
        "input_ids": [5] * rows,
        "positions": list(range(rows)),
        "extend_seq_lens": [rows],
        "forward_mode": 1,
        "topk_ids_of_layer": padded,
        "misc_objects": [],
        **fields,
    }


def count_pass(counts: list[list[int]], number: int = 1, rank: int = 0) -> dict[str, Any]:
    """Counts of a pass at all layers."""
    return {
        "forward_pass_id": number,
        "rank": rank,
        "gatherer_key": "primary",
        "global_physical_count": np.array(counts, np.int32),
    }


def dump(
    folder: Path, records: list[Any], rank: int = 0, placed: np.ndarray[Any, Any] = IDENTITY
) -> Path:
    """A file of records."""
    folder.mkdir(exist_ok=True)
    path = folder / f"expert_distribution_recorder_1.5_{rank}.pt"
    value = {"records": records, "last_physical_to_logical_map": placed.astype(np.int64)}
    return write_tensors(path, value)


def imported(path: Path, log: Path, **options: str) -> ImportReport:
    """Import a file or folder."""
    return import_files("sglang-records", [path], log, options)


def test_ids_per_token_become_rows_with_true_positions(tmp_path: Path) -> None:
    """Sequences of a prefill pass are requests, and so is each row of a decode pass."""
    prefill = token_pass(
        [[[0, 1], [2, 3], [4, 5]], [[1, 0], [3, 2], [5, 4]]],
        7, positions=[0, 1, 0], extend_seq_lens=[2, 1],
    )  # fmt: skip
    decode = token_pass(
        [[[0, 5], [1, 4]], [[2, 1], [4, 0]]],
        8, positions=[2, 9], extend_seq_lens=None, forward_mode=2,
    )  # fmt: skip
    report = imported(dump(tmp_path / "d", [prefill, decode]), tmp_path / "log")
    assert imported_rows(tmp_path / "log") == [
        ("pass-7-rank-0-0", 0, Phase.PREFILL, [[0, 1], [0, 1]], (1, 2), None),
        ("pass-7-rank-0-0", 1, Phase.PREFILL, [[2, 3], [2, 3]], (1, 2), None),
        ("pass-7-rank-0-1", 0, Phase.PREFILL, [[4, 5], [4, 5]], (1, 2), None),
        ("pass-8-rank-0-0", 2, Phase.DECODE, [[0, 5], [1, 2]], (1, 2), None),
        ("pass-8-rank-0-1", 9, Phase.DECODE, [[1, 4], [0, 4]], (1, 2), None),
    ]
    [batches] = log_of(tmp_path / "log").values()
    [(batch, _)] = batches
    assert batch.tokens is not None
    assert batch.tokens.pass_id is not None
    assert batch.tokens.pass_id.tolist() == [7, 7, 7, 8, 8]
    assert set(batch.requests.tasks) == {report.files[0].node}
    assert batch.header.engine == "sglang"
    assert batch.requests.phase_starts[:, Phase.DECODE].tolist() == [-1] * 4


def test_the_examples_of_the_page_are_imported_as_the_page_says(
    repository_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who writes a dump by the page gets the rows and counts that it names."""
    page = repository_root / "docs" / "reference" / "importers" / "sglang-records.md"
    program = example_of(page, "py").replace("import torch\n", "")
    files = SimpleNamespace(
        arange=np.arange, stack=np.stack, full=np.full, tensor=np.array, int32=np.int32,
        save=lambda value, name: write_tensors(tmp_path / name, value),
    )  # fmt: skip
    monkeypatch.chdir(tmp_path)
    exec(program, {"torch": files})  # noqa: S102 - a page of this repository

    def of(mode: str, **options: str) -> ImportReport:
        return imported(tmp_path / mode, tmp_path / "log" / mode, **options)

    of("per_token")
    assert imported_rows(tmp_path / "log" / "per_token") == [
        ("pass-7-rank-0-0", 0, Phase.PREFILL, [[1, 2]], (1,), None),
        ("pass-7-rank-0-0", 1, Phase.PREFILL, [[3, 4]], (1,), None),
        ("pass-7-rank-0-1", 0, Phase.PREFILL, [[0, 5]], (1,), None),
        ("pass-8-rank-0-0", 2, Phase.DECODE, [[1, 4]], (1,), None),
    ]
    assert of("per_pass", top_k="2").rows == 4
    assert of("stat", top_k="2").rows == 12


@pytest.mark.parametrize(
    ("mode", "key"),
    [
        ("per_token", "forward_pass_id"), ("per_token", "rank"), ("per_token", "positions"),
        ("per_token", "forward_mode"), ("per_token", "extend_seq_lens"),
        ("per_pass", "forward_pass_id"), ("per_pass", "rank"),
        ("per_pass", "global_physical_count"),
    ],
)  # fmt: skip
def test_a_record_without_a_required_key_is_rejected_alone(
    tmp_path: Path, mode: str, key: str
) -> None:
    """What the page calls required is: the other records are imported, and the rest ignored."""
    whole = (
        token_pass([[[0, 1]], [[0, 1]]], other="ignored")
        if mode == "per_token"
        else count_pass([[0] * PHYSICAL, [1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0]])
    )
    lacking = {name: value for name, value in whole.items() if name != key}
    optional = {name: value for name, value in whole.items() if name != "gatherer_key"}
    path = dump(tmp_path / "d", [lacking, optional | {"forward_pass_id": 2}])
    report = imported(path, tmp_path / "log", top_k=str(K))
    assert (report.rows, report.rejected) == (1, 1)


def test_physical_ids_are_mapped_or_left_and_named(tmp_path: Path) -> None:
    """Replicas of an expert are one expert to the router; batches say which ids they hold."""
    path = dump(tmp_path / "d", [token_pass([[[5, 1]], [[0, 4]]])], placed=REPLICATED)
    report = imported(path, tmp_path / "logical")
    assert imported_rows(tmp_path / "logical")[0].ids == [[0, 1], [0, 4]]
    assert report.files[0].notes[0].startswith("Physical experts were mapped by the last placement")
    imported(path, tmp_path / "physical", ids="physical")
    assert imported_rows(tmp_path / "physical")[0].ids == [[1, 5], [0, 4]]
    headers = [
        batches[0].batch.header
        for name in ("logical", "physical")
        for batches in log_of(tmp_path / name).values()
    ]
    assert [(header.id_space, header.experts) for header in headers] == [
        (IdSpace.LOGICAL, 5),
        (IdSpace.PHYSICAL, 6),
    ]


def test_padding_drafts_and_idle_passes(tmp_path: Path) -> None:
    """Rows behind the sequences are padding; drafts keep their phase; idle ranks have no rows."""
    padded = token_pass([[[0, 1], [0, 1]], [[0, 1], [0, 1]]], 1, extend_seq_lens=[1])
    verify = token_pass([[[2, 3]], [[2, 3]]], 2, forward_mode=5, extend_seq_lens=None)
    idle = token_pass([[[2, 3]], [[2, 3]]], 3, forward_mode=4, extend_seq_lens=None)
    mixed = token_pass(
        [[[0, 1], [2, 3], [4, 5]], [[0, 1], [2, 3], [4, 5]]],
        4, forward_mode=3, positions=[0, 1, 30], extend_seq_lens=[2, 1],
    )  # fmt: skip
    report = imported(dump(tmp_path / "d", [padded, verify, idle, mixed]), tmp_path / "log")
    assert [(row.position, row.phase) for row in imported_rows(tmp_path / "log")] == [
        (0, Phase.PREFILL),
        (0, Phase.DRAFT),
        (0, Phase.PREFILL),
        (1, Phase.PREFILL),
        (30, Phase.DECODE),
    ]
    assert "2 rows of padding were left out." in report.files[0].notes


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"positions": [0]}, "no ids of all layers and tokens"),
        ({"positions": [-1, 0]}, "no positions"),
        ({"extend_seq_lens": [3]}, "extend_seq_lens do not match the tokens"),
        ({"extend_seq_lens": None}, "extend_seq_lens do not match the tokens"),
        ({"extend_seq_lens": 2}, "extend_seq_lens is no list"),
        ({"forward_mode": 99}, "a pass of an unknown mode"),
        ({"forward_pass_id": "1"}, "forward_pass_id is no integer"),
        ({"forward_pass_id": -1}, f"forward_pass_id is no integer from 0 to {2**53}"),
        ({"gatherer_key": "child_a"}, "a part of a pass"),
        (
            {"topk_ids_of_layer": np.full((LAYERS, 2, 8), PHYSICAL, np.int32)},
            "an id beyond the physical experts",
        ),
        (
            {"topk_ids_of_layer": np.zeros((LAYERS, 2, 8), np.float32)},
            "no ids of all layers and tokens",
        ),
    ],
)
def test_impossible_passes_are_rejected_alone(
    fields: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    """One damaged record does not cost the others, and its number is reported."""
    good = token_pass([[[0, 1]], [[0, 1]]])
    bad = token_pass([[[0, 1], [2, 3]], [[0, 1], [2, 3]]], 2, **fields)
    report = imported(dump(tmp_path / "d", [good, bad]), tmp_path / "log")
    assert report.files[0].rejected == {reason: 1}
    assert report.files[0].first_rejects[0].line == 2
    assert len(imported_rows(tmp_path / "log")) == 1


def test_rejects_of_a_folder_lead_to_the_dump_and_the_record(tmp_path: Path) -> None:
    """The folder's name and a number lead nowhere: each rank has a record of that number."""
    good, holes = token_pass([[[0, 1]], [[0, 1]]]), token_pass([[[0, -1]], [[0, 1]]], 2, rank=1)
    broken = token_pass([[[0, 1]], [[0, 1]]], 3, rank=1, forward_mode=99)
    other = token_pass([[[0, 1]], [[0, 1]]], 4, gatherer_key="child_a")
    first = dump(tmp_path / "d", [good, other])
    second = dump(tmp_path / "d", [holes, broken], 1)
    found = imported(tmp_path / "d", tmp_path / "log").files[0].first_rejects
    assert [(reject.file, reject.line) for reject in found] == [
        (str(first), 2), (str(second), 1), (str(second), 2),
    ]  # fmt: skip
    path = dump(tmp_path / "c", [count_pass([[0] * 6, [2, 0, 0, 0, 0, 0], [1] * 6])])
    with pytest.raises(ImportFormatError) as raised:
        imported(tmp_path / "c", tmp_path / "log", top_k="2")
    assert f"{path}:1: " in str(raised.value.why)


def test_rows_without_all_ids_are_left_out_and_counted(tmp_path: Path) -> None:
    """Some kernels record a part of a batch only: −1 stays where nothing was written."""
    holes = token_pass([[[0, 1], [2, -1], [-1, -1]], [[0, 1], [2, 3], [4, 5]]])
    report = imported(dump(tmp_path / "d", [holes]), tmp_path / "log")
    assert [row.position for row in imported_rows(tmp_path / "log")] == [0]
    assert report.files[0].rejected == {"rows without all ids": 1}
    assert report.files[0].first_rejects[0].detail == "2 rows"


def test_a_rank_that_repeats_another_is_left_out(tmp_path: Path) -> None:
    """Under tensor parallelism every rank sees every token: counted twice is counted wrong."""
    for rank in (0, 1):
        dump(tmp_path / "d", [token_pass([[[0, 1]], [[2, 3]]], rank=rank)], rank)
    dump(tmp_path / "d", [token_pass([[[4, 5]], [[4, 5]]], rank=2)], 2)
    report = imported(tmp_path / "d", tmp_path / "log")
    assert len(imported_rows(tmp_path / "log")) == 2
    assert report.files[0].notes == ("Ranks [1] repeat what others saw, and were left out.",)


def test_counts_of_ranks_are_added_up_by_pass(tmp_path: Path) -> None:
    """Where ranks count the experts that they own, only all of them together add up."""
    whole = [[0] * 6, [2, 1, 1, 0, 0, 0], [1, 1, 0, 2, 0, 0]]
    own = [[[0] * 6, [2, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0]],
           [[0] * 6, [0, 0, 1, 0, 0, 0], [0, 0, 0, 2, 0, 0]]]  # fmt: skip
    for rank, counts in enumerate(own):
        dump(tmp_path / "d", [count_pass(counts, n, rank) for n in (1, 2)], rank)
    report = imported(tmp_path / "d", tmp_path / "log", top_k="2")
    [piece] = imported_pieces(tmp_path / "log")
    doubled = {layer: [2 * count for count in whole[layer]] for layer in (1, 2)}
    assert piece == Piece(report.files[0].node, Phase.EVAL, 4, None, doubled)
    with pytest.raises(ImportFormatError, match=r"No counts of .*_0\.pt can be imported") as raised:
        imported(tmp_path / "d/expert_distribution_recorder_1.5_0.pt", tmp_path / "log", top_k="2")
    assert "experts of some ranks missing" in str(raised.value.why)


def test_buffered_counts_are_one_task_and_empty_slots_nothing(tmp_path: Path) -> None:
    """The circular buffer has no order; slots that no pass has filled are zero."""
    counts = np.zeros((4, LAYERS, 5), np.int32)
    counts[0, 1:] = [1, 1, 0, 0, 0]
    counts[2, 1:] = [0, 2, 2, 0, 0]
    counts[3, 1] = [0, 2, 0, 0, 0]
    path = write_tensors(
        tmp_path / "a.pt",
        {"rank": 0, "logical_count": counts, "average_utilization_rate_over_window": 0.5},
    )
    report = imported(path, tmp_path / "log", top_k="2")
    [piece] = imported_pieces(tmp_path / "log")
    assert piece.counts == {1: [1, 3, 2, 0, 0], 2: [1, 3, 2, 0, 0]}
    assert piece.tokens == report.rows == 3
    assert report.files[0].rejected == {"counts that are not tokens × k at every layer": 1}
    assert report.files[0].first_rejects[0].line == 4


def test_a_folder_is_one_run_whatever_it_is_called(tmp_path: Path) -> None:
    """A second import of the same files changes nothing."""
    dump(tmp_path / "d", [token_pass([[[0, 1]], [[2, 3]]])])
    first = imported(tmp_path / "d", tmp_path / "log")
    (tmp_path / "d").rename(tmp_path / "e")
    again = imported(tmp_path / "e", tmp_path / "log")
    assert again.files[0].already_imported
    assert again.files[0].node == first.files[0].node


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "no dump of SGLang's"),
        ({"records": []}, "last_physical_to_logical_map is no tensor"),
        ({"logical_count": np.zeros((1, 2), np.int32)}, "logical_count is no tensor of 3 axes"),
        ({"logical_count": np.zeros((1, 2, 2), np.float32)}, "logical_count is impossible"),
        ({"logical_count": np.full((1, 2, 2), -1, np.int32)}, "logical_count has numbers below 0"),
        ({"logical_count": np.zeros((1, 2, 2), np.int32)}, "No counts of .* can be imported"),
    ],
)
def test_what_is_no_dump_is_an_error(value: Any, message: str, tmp_path: Path) -> None:
    """An empty import would look like success."""
    path = write_tensors(tmp_path / "a.pt", value)
    with pytest.raises(ImportFormatError, match=message):
        imported(path, tmp_path / "log", top_k="1")


@pytest.mark.parametrize("logical", [PHYSICAL, 2**30, 2**40, 2**62])
@pytest.mark.parametrize("kind", ["counts", "tokens"])
def test_a_map_to_more_experts_than_there_are_is_refused(
    logical: int, kind: str, tmp_path: Path
) -> None:
    """A damaged number must not ask for gigabytes, nor wrap around: the file is named."""
    record = {
        "counts": count_pass([[0] * 6, [2, 2, 0, 0, 0, 0], [2, 2, 0, 0, 0, 0]]),
        "tokens": token_pass([[[0, 1]], [[2, 3]]]),
    }[kind]
    path = dump(tmp_path / "d", [record], placed=np.where(IDENTITY == 3, logical, IDENTITY))
    with pytest.raises(ImportFormatError, match="last_physical_to_logical_map has") as caught:
        imported(path, tmp_path / "log", top_k="2")
    assert str(path) in caught.value.what
    assert str(logical) in caught.value.what
    assert caught.value.next_step


@pytest.mark.parametrize("count", [2**31, 2**62])
def test_counts_that_would_overflow_are_rejected(count: int, tmp_path: Path) -> None:
    """Four experts of 2**62 tokens add up to zero in 64 bits; such a pass takes no other along."""
    huge = {"global_physical_count": np.full((LAYERS, PHYSICAL), count, np.int64)}
    good = count_pass([[0] * 6, [2, 2, 0, 0, 0, 0], [2, 2, 0, 0, 0, 0]], 2)
    path = dump(tmp_path / "d", [count_pass([[1] * 6] * 3) | huge, good])
    report = imported(path, tmp_path / "log", top_k="2")
    assert report.files[0].rejected == {f"a count over {2**31 - 1}": 1}
    assert imported_pieces(tmp_path / "log")[0].tokens == 2
    stat = write_tensors(
        tmp_path / "a.pt", {"logical_count": np.full((1, LAYERS, 4), count, np.int64)}
    )
    with pytest.raises(ImportFormatError, match="logical_count has the number"):
        imported(stat, tmp_path / "log", top_k="2")


def test_an_expert_has_at_most_every_token(tmp_path: Path) -> None:
    """Counts with the wrong k add up all the same, and would say that tokens chose twice."""
    path = dump(tmp_path / "d", [count_pass([[0] * 6, [4] + [0] * 5, [4] + [0] * 5])])
    with pytest.raises(ImportFormatError, match=r"An expert of .* has 4 of 2 tokens"):
        imported(path, tmp_path / "log", top_k="2")


def test_what_cannot_be_known_is_asked_for(tmp_path: Path) -> None:
    """Of counts k; one mode per import, one placement per import."""
    counts = dump(tmp_path / "c", [count_pass([[1] * 6] * 3)])
    with pytest.raises(ImportFormatError, match="experts per token is not known"):
        imported(counts, tmp_path / "log")
    rows = dump(tmp_path / "c", [token_pass([[[0, 1]], [[2, 3]]])], 1)
    with pytest.raises(ImportFormatError, match="different modes"):
        imported(tmp_path / "c", tmp_path / "log", top_k="2")
    with pytest.raises(ImportFormatError, match="2 experts, not 4"):
        imported(rows, tmp_path / "log", top_k="4")
    counts.unlink()
    dump(tmp_path / "c", [token_pass([[[0, 1]], [[2, 3]]])], 2, REPLICATED)
    with pytest.raises(ImportFormatError, match="place experts differently"):
        imported(tmp_path / "c", tmp_path / "log")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ImportFormatError, match="has no file"):
        imported(tmp_path / "empty", tmp_path / "log")


@pytest.mark.parametrize("value", [np.nan, -1.0, 2.0], ids=str)
def test_numbers_that_are_no_integers_are_no_ids_or_counts(tmp_path: Path, value: float) -> None:
    """NaN turned into an integer would be an expert, and a fraction half a token."""
    odd = np.full((LAYERS, 1, 8), value, np.float32)
    sound = token_pass([[[0, 1]], [[2, 3]]], 2)
    path = dump(tmp_path / "ids", [token_pass([[[0, 1]], [[2, 3]]], topk_ids_of_layer=odd), sound])
    report = imported(path, tmp_path / "log")
    assert (report.rows, report.rejected) == (1, 1)
    counted = count_pass([[0] * 6, [2, 2] + [0] * 4, [2, 2] + [0] * 4], 2)
    broken = {**counted, "global_physical_count": np.full((LAYERS, PHYSICAL), value, np.float32)}
    path = dump(tmp_path / "counts", [broken, counted])
    report = imported(path, tmp_path / "log", top_k="2")
    assert (report.rows, report.rejected) == (2, 1)
    total = {"logical_count": np.full((1, LAYERS, PHYSICAL), value, np.float32)}
    with pytest.raises(ImportFormatError, match="logical_count is impossible"):
        imported(write_tensors(tmp_path / "a.pt", total), tmp_path / "log", top_k="2")
    records = {"records": [counted], "last_physical_to_logical_map": np.full((3, 6), value, "f4")}
    with pytest.raises(ImportFormatError, match="last_physical_to_logical_map is impossible"):
        imported(write_tensors(tmp_path / "b.pt", records), tmp_path / "log", top_k="2")


def test_negative_numbers_are_never_ids_counts_or_places(tmp_path: Path) -> None:
    """As an index a number below zero names something else; −1 alone says that there is none."""
    bad = np.full((LAYERS, 1, 8), -2, np.int32)
    wrong = [
        token_pass([[[0, 1]], [[2, 3]]], topk_ids_of_layer=bad),
        token_pass([[[0, 1]], [[2, 3]]], positions=[-1]),
        token_pass([[[0, 1]], [[2, 3]]], extend_seq_lens=[-1]),
        token_pass([[[0, 1]], [[2, 3]]], forward_pass_id=-1),
        token_pass([[[0, 1]], [[2, 3]]], rank=-1),
        token_pass([[[0, 1]], [[2, 3]]], forward_mode=-1),
    ]
    path = dump(tmp_path / "d", [*wrong, token_pass([[[0, 1]], [[2, 3]]], 9)])
    report = imported(path, tmp_path / "log")
    assert (report.rows, report.rejected) == (1, len(wrong))
    assert report.files[0].rejected["an id beyond the physical experts"] == 1
    for name, shape in (("logical_count", (1, 2, 2)), ("last_physical_to_logical_map", (2, 2))):
        value = {"records": [], name: -np.ones(shape, np.int64)}
        with pytest.raises(ImportFormatError, match=f"{name} has numbers below 0"):
            imported(write_tensors(tmp_path / f"{name}.pt", value), tmp_path / "log", top_k="2")
