"""Dumps of SGLang's recorder as its own code writes them: with torch, by `torch.save`.

The importer reads them without torch. Its other tests write the files themselves, and so cannot
tell when it misunderstands what torch writes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")

from support.imported_rows import Row, example_of, imported_pieces, imported_rows

from moescope.core.vocabulary import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

MOESCOPE = Path(__file__).resolve().parents[3] / ".venv/bin/moescope"
"""The command of the project's own environment: an engine's has no server packages."""

pytestmark = pytest.mark.skipif(not MOESCOPE.exists(), reason="`make setup-dev` installs moescope")

LAYERS, EXPERTS, K, COLUMNS = 4, 12, 3, 8
DENSE = 1
"""Layers without a router, the first ones."""


def logical_map() -> Any:
    """As SGLang makes it when there are no replicas: each layer the same."""
    return torch.arange(EXPERTS).repeat(LAYERS, 1)


def chosen(rows: int, seed: int) -> Any:
    """Ids of tokens as the recorder holds them: −1 where nothing was written."""
    random = torch.Generator().manual_seed(seed)
    ids = torch.full((LAYERS, rows, COLUMNS), -1, dtype=torch.int32)
    for layer in range(DENSE, LAYERS):
        for row in range(rows):
            ids[layer, row, :K] = torch.randperm(EXPERTS, generator=random)[:K]
    return ids


def token_record(ids: Any, number: int, **fields: Any) -> dict[str, Any]:
    """A prefill pass of one sequence in mode `per_token`."""
    rows = ids.shape[1]
    return {
        "forward_pass_id": number,
        "rank": 0,
        "gatherer_key": "primary",
        "input_ids": [100_000 + row for row in range(rows)],
        "positions": [*range(rows)],
        "extend_seq_lens": [rows],
        "forward_mode": 1,
        "topk_ids_of_layer": ids,
        "misc_objects": [],
        "global_physical_count": counted(ids),
        **fields,
    }


def counted(ids: Any) -> Any:
    """Tokens per physical expert, int32 [L, E]."""
    counts = torch.zeros((LAYERS, EXPERTS), dtype=torch.int32)
    for layer in range(LAYERS):
        for expert in ids[layer].flatten().tolist():
            if expert >= 0:
                counts[layer, expert] += 1
    return counts


def save(folder: Path, data: Any, **how: Any) -> Path:
    """A dump, under the name that the importer looks for."""
    path = folder / "expert_distribution_recorder_1764500000.25_0.pt"
    torch.save(data, path, **how)
    return path


def run_import(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """What a user types, in a data directory beside the file."""
    given = [part for option in options for part in ("-o", option)]
    return subprocess.run(
        [MOESCOPE, "import", "sglang-records", path, "--data", path.parent / "data", *given,
         "--no-process", "--json"],
        check=False, capture_output=True, text=True, timeout=120, cwd=path.parent,
    )  # fmt: skip


def imported(path: Path, *options: str) -> dict[str, Any]:
    """What is printed about a dump that was imported."""
    done = run_import(path, *options)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def refusal(path: Path, *options: str) -> str:
    """What is printed about a dump of which nothing was imported."""
    done = run_import(path, *options)
    assert done.returncode == 2, done.stdout
    assert path.name in done.stderr
    assert not [*(path.parent / "data/log").glob("*/*")]
    return done.stderr


def rows(path: Path) -> list[Row]:
    """What was imported."""
    return imported_rows(path.parent / "data/log")


def counts(path: Path) -> dict[int, list[int]]:
    """Tokens per expert of the one piece that was imported, by layer."""
    (piece,) = imported_pieces(path.parent / "data/log")
    return piece.counts


def routes_of(ids: Any, row: int) -> list[list[int]]:
    """What the importer has to say of one token."""
    return [sorted(ids[layer, row, :K].tolist()) for layer in range(DENSE, LAYERS)]


def as_dumped(*records: dict[str, Any], placed: Any = None) -> dict[str, Any]:
    """A file of modes `per_pass` and `per_token`."""
    return {
        "records": [*records],
        "last_physical_to_logical_map": logical_map() if placed is None else placed,
    }


def test_ids_per_token_come_through_as_torch_wrote_them(tmp_path: Path) -> None:
    """Prefill of several sequences, decode, and padding, with the true position of each token."""
    prefill, decode = chosen(7, seed=1), chosen(3, seed=2)
    misc: list[Any] = []  # one list for all records, as the recorder has it
    path = save(
        tmp_path,
        as_dumped(
            token_record(
                prefill, 40, positions=[0, 1, 2, 5, 6, 0, 0], extend_seq_lens=[3, 2],
                misc_objects=misc,
            ),
            token_record(
                decode, 41, positions=[3, 7, 300], extend_seq_lens=None, forward_mode=2,
                misc_objects=misc,
            ),
        ),
    )  # fmt: skip
    result = imported(path)
    moe = tuple(range(DENSE, LAYERS))
    given = [("pass-40-rank-0-0", position, position) for position in range(3)]
    given += [("pass-40-rank-0-1", 3, 5), ("pass-40-rank-0-1", 4, 6)]
    assert rows(path) == [
        Row(request, position, Phase.PREFILL, routes_of(prefill, row), moe, None)
        for request, row, position in given
    ] + [
        Row(f"pass-41-rank-0-{row}", position, Phase.DECODE, routes_of(decode, row), moe, None)
        for row, position in enumerate((3, 7, 300))
    ]
    assert result["rows"] == 8
    (note,) = result["notes"]
    assert note.endswith("2 rows of padding were left out.")


def test_the_program_of_the_page_writes_dumps_that_are_imported(
    repository_root: Path, tmp_path: Path
) -> None:
    """The page shows the format by a program: with torch itself it makes what the page says."""
    page = repository_root / "docs" / "reference" / "importers" / "sglang-records.md"
    subprocess.run(
        [sys.executable, "-c", example_of(page, "py")], check=True, cwd=tmp_path, timeout=120
    )
    for mode, options, number in (
        ("per_token", [], 4), ("per_pass", ["top_k=2"], 4), ("stat", ["top_k=2"], 12),
    ):  # fmt: skip
        result = imported(tmp_path / mode, *options)
        assert (result["rows"], result["rejected"]) == (number, 0)


def sliced(ids: Any) -> Any:
    """The recorder's buffer without the copy: a view with an offset and strides of its own."""
    buffer = torch.full((LAYERS, 64, COLUMNS), 99, dtype=ids.dtype)
    buffer[:, 9 : 9 + ids.shape[1]] = ids
    return buffer[:, 9 : 9 + ids.shape[1]]


def permuted(ids: Any) -> Any:
    """Stored token by token."""
    stored: Any = ids.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    assert not stored.is_contiguous()
    return stored


@pytest.mark.parametrize(
    "stored",
    [
        lambda ids: ids,
        sliced,
        permuted,
        lambda ids: ids.long(),
        lambda ids: ids.short(),
        lambda ids: ids.to(torch.int8),
        lambda ids: torch.nn.functional.pad(ids, (0, 5), value=-1)[..., :COLUMNS],
    ],
    ids=["as it is", "slice", "permuted", "int64", "int16", "int8", "cut columns"],
)
def test_the_memory_behind_a_tensor_changes_nothing(
    tmp_path: Path, stored: Callable[[Any], Any]
) -> None:
    """A view is saved with all of its storage: read without its strides, it would be noise."""
    ids = chosen(6, seed=3)
    path = save(tmp_path, as_dumped(token_record(stored(ids), 1)))
    imported(path)
    assert [row.ids for row in rows(path)] == [routes_of(ids, row) for row in range(6)]


def test_passes_may_share_one_storage(tmp_path: Path) -> None:
    """A storage is written once for all tensors that lie in it."""
    ids = chosen(9, seed=4)
    path = save(
        tmp_path, as_dumped(token_record(ids[:, :4], 1), token_record(ids[:, 4:].detach(), 2))
    )
    with zipfile.ZipFile(path) as archive:
        sizes = [info.file_size for info in archive.infolist() if "/data/" in info.filename]
    assert sizes.count(ids.numel() * ids.element_size()) == 1
    imported(path)
    assert [row.ids for row in rows(path)] == [routes_of(ids, row) for row in range(9)]


@pytest.mark.parametrize(
    "placed",
    [
        logical_map(),
        torch.arange(EXPERTS).expand(LAYERS, EXPERTS),
        logical_map().int(),
        logical_map().T.contiguous().T,
    ],
    ids=["int64", "expanded", "int32", "by columns"],
)
def test_a_map_may_be_stored_in_any_way(tmp_path: Path, placed: Any) -> None:
    """Of an expanded tensor one row is stored: each layer has it."""
    ids = chosen(5, seed=5)
    path = save(tmp_path, as_dumped(token_record(ids, 1), placed=placed))
    assert imported(path)["notes"] == []
    assert [row.ids for row in rows(path)] == [routes_of(ids, row) for row in range(5)]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("rate", [None, 0.75, torch.tensor([0.75], dtype=torch.bfloat16)])
def test_buffered_counts_are_those_of_torch(tmp_path: Path, dtype: Any, rate: Any) -> None:
    """Mode `stat`: slots that no pass has filled are zero; the rest of the file does not matter."""
    passes = [chosen(tokens, seed=tokens) for tokens in (3, 5)]
    buffer = torch.zeros((16, LAYERS, EXPERTS), dtype=dtype)
    for slot, ids in zip((0, 7), passes, strict=True):
        buffer[slot] = counted(ids)
    path = save(
        tmp_path,
        {"rank": 0, "logical_count": buffer[:12], "average_utilization_rate_over_window": rate},
    )
    assert imported(path, f"top_k={K}")["rows"] == 8
    total = counted(torch.cat(passes, dim=1))
    assert counts(path) == {layer: total[layer].tolist() for layer in range(DENSE, LAYERS)}


def test_counts_of_passes_are_mapped_by_a_map_of_torch(tmp_path: Path) -> None:
    """Mode `per_pass`, with two replicas of an expert, whose counts belong together."""
    placed = logical_map()
    placed[:, EXPERTS - 1] = 0
    passes = [counted(chosen(tokens, seed=tokens)) for tokens in (40, 60)]
    path = save(
        tmp_path,
        as_dumped(
            *(
                {
                    "forward_pass_id": number,
                    "rank": 0,
                    "gatherer_key": "primary",
                    "global_physical_count": physical,
                }
                for number, physical in enumerate(passes)
            ),
            placed=placed,
        ),
    )
    assert imported(path, f"top_k={K}")["rows"] == 100
    total = np.sum([one.numpy() for one in passes], axis=0)
    total[:, 0] += total[:, EXPERTS - 1]
    assert counts(path) == {
        layer: total[layer, : EXPERTS - 1].tolist() for layer in range(DENSE, LAYERS)
    }


def test_later_protocols_are_refused_by_name(tmp_path: Path) -> None:
    """Protocol 2 is written unless torch is told otherwise; 3 has nothing more that data needs."""
    data = as_dumped(token_record(chosen(2, seed=6), 1))
    imported(save(tmp_path, data, pickle_protocol=3))
    assert len(rows(tmp_path / "any")) == 2
    other = tmp_path / "other"
    other.mkdir()
    assert "pickle protocol 4" in refusal(save(other, data, pickle_protocol=4))


def test_files_from_before_torch_1_6_are_refused(tmp_path: Path) -> None:
    """They are one pickle after the other, and no archive: the message says what is read."""
    data = as_dumped(token_record(chosen(2, seed=6), 1))
    path = save(tmp_path, data, _use_new_zipfile_serialization=False)
    assert torch.load(path)["records"][0]["forward_pass_id"] == 1
    message = refusal(path)
    assert "zip" in message
    assert "since torch 1.6" in message.replace("\n", " ")


def test_numbers_of_another_byte_order_are_refused(tmp_path: Path) -> None:
    """Read as they lie there, they would be other experts; torch says in the file which it is."""
    path = save(tmp_path, as_dumped(token_record(chosen(2, seed=6), 1)))
    with zipfile.ZipFile(path) as archive:
        entries = {info.filename: archive.read(info) for info in archive.infolist()}
    (order,) = (name for name in entries if name.endswith("/byteorder"))
    assert entries[order] == b"little"
    entries[order] = b"big"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    assert torch.load(path)["records"][0]["topk_ids_of_layer"].max() > EXPERTS
    assert "byte order is b'big'" in refusal(path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_counts_that_are_no_integers_are_refused(tmp_path: Path, dtype: Any) -> None:
    """bfloat16 counts up to 256 and no further: such numbers are nobody's counts."""
    buffer = counted(chosen(3, seed=3))[None].to(dtype)
    path = save(tmp_path, {"rank": 0, "logical_count": buffer})
    message = refusal(path, f"top_k={K}")
    kind = {torch.bfloat16: "BFloat16Storage", torch.float16: "HalfStorage"}.get(dtype)
    assert (kind or "logical_count is impossible") in message


class Hostile:
    """Makes a folder where it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        """What unpickling would call."""
        return os.mkdir, (str(self._folder),)


class WithState:
    """Unpickling would build an object of this class, and give it its state."""

    def __init__(self) -> None:
        self.counts = [1]


@pytest.mark.parametrize("where", ["in a record", "beside the records"])
def test_a_function_that_a_dump_names_is_not_called(tmp_path: Path, where: str) -> None:
    """A dump from a stranger is data or nothing, wherever the rest of it hides."""
    data = as_dumped(token_record(chosen(2, seed=6), 1))
    hostile = Hostile(tmp_path / "sprung")
    (data if where == "beside the records" else data["records"][0])["other"] = hostile
    path = save(tmp_path, data)
    assert "it would call posix.mkdir" in " ".join(refusal(path).split())
    assert not (tmp_path / "sprung").exists()
    # The file does what it is meant to, where it may.
    torch.load(path, weights_only=False)
    assert (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (WithState(), "is no data"),
        (torch.nn.Parameter(torch.ones(2)), "it would call torch._utils"),
        (torch.ones(2, dtype=torch.uint32), "it would call torch._utils"),
        (np.arange(3), "it would call"),
        ({1, 2}, "it would call"),
    ],
    ids=["an object", "parameter", "new dtype", "numpy", "set"],
)
def test_what_is_not_plain_is_refused(tmp_path: Path, other: object, said: str) -> None:
    """There is far more that torch writes than recorders do: none of it is guessed at."""
    data = as_dumped(token_record(chosen(2, seed=6), 1))
    data["records"][0]["other"] = other
    assert said in " ".join(refusal(save(tmp_path, data)).split())
