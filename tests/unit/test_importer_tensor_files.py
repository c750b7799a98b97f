"""Tensor files come from strangers: data is read, everything else refused before it acts."""

from __future__ import annotations

import os
import pickle
import struct
import tracemalloc
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.tensor_files import pickled, text, write_tensors

from moescope.producers.importers import ImportFormatError, import_files
from moescope.producers.importers.tensor_archive import open_tensors
from moescope.producers.importers.tensor_pickle import TensorPickleError, TensorView, load

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


def test_data_and_tensors_arrive_as_they_were_written(tmp_path: Path) -> None:
    """Numbers of every width, text, containers, and arrays in any memory order."""
    columns = np.arange(12, dtype=np.int32).reshape(3, 4)
    value = {
        "a": [0, 255, -1, 2**31 - 1, 2**40, -(2**40), 1.5, None, "ä"],
        "t": (1, (2, "x")),
        "ids": columns,
        "floats": np.array([0.5, 2.0], np.float32),
        "none": np.empty((2, 0, 8), np.int64),
    }
    with open_tensors(write_tensors(tmp_path / "a.pt", value), MIB) as archive:
        data = archive.data
        assert data["a"] == value["a"]
        assert data["t"] == value["t"]
        for name in ("ids", "floats", "none"):
            expected = value[name]
            array = archive.array(data[name])
            assert array.dtype == expected.dtype  # type: ignore[attr-defined]  # an array
            assert np.array_equal(array, expected)  # type: ignore[arg-type]  # an array


def test_a_view_is_read_by_its_strides(tmp_path: Path) -> None:
    """A sliced or transposed tensor is saved with the storage that it is a view of."""
    whole = np.arange(12, dtype=np.int64)
    with open_tensors(write_tensors(tmp_path / "a.pt", whole), MIB) as archive:
        base = archive.data
        view = TensorView(base.storage, offset=1, shape=(2, 3), strides=(1, 4))
        assert archive.array(view).tolist() == [[1, 5, 9], [2, 6, 10]]


class _Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("sprung",)


def _calls(module: str, name: str, argument: str) -> bytes:
    return b"\x80\x02c" + f"{module}\n{name}\n".encode() + text(argument) + b"\x85R."


def test_nothing_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle may name any function; here no name is looked up, so none can act."""
    monkeypatch.chdir(tmp_path)
    hostile = [
        _calls("os", "system", "mkdir sprung"),
        _calls("builtins", "eval", "__import__('os').mkdir('sprung')"),
        _calls("torch._utils", "_rebuild_tensor_v2", "mkdir sprung"),
        b"\x80\x02cos\nmkdir\n" + text("sprung") + b"\x85\x81.",
        b"\x80\x02}(" + text("a") + b"cos\nmkdir\nub.",
        pickle.dumps(_Trap(), 2),
    ]
    for number, body in enumerate(hostile):
        path = write_tensors(tmp_path / f"{number}.pt", {}, pickle=body)
        with (
            pytest.raises(ImportFormatError, match="no tensor file that can be read"),
            open_tensors(path, MIB),
        ):
            pass
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    "body",
    [
        b"\x80\x02X\xff\xff\xff\x7fabc.",
        b"\x80\x02\x8a\xff" + b"\x01" * 255 + b".",
        b"\x80\x02Kr\xff\xff\xff\x7f",
        b"\x80\x02" + b"}" * 20_000 + b".",
        b"\x80\x02" + b"(" * 10_000 + b"t" * 10_000,
        b"\x80\x02}" + b")" + b"\x85" * 5_000 + b"K\x01s.",
        b"\x80\x05\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"\x80\x02(K\x01t",
        b"\x80\x02K",
        b"\x80\x02cos",
        b"\x80\x02e.",
        b"",
        b"\x80\x02h\x07.",
        b"\x80\x02X\x02\x00\x00\x00\xff\xff.",
    ],
)
def test_damaged_and_greedy_pickles_are_refused(body: bytes) -> None:
    """Claimed sizes, deep nesting and cut ends cost no more than the bytes that are there."""
    with pytest.raises(TensorPickleError):
        load(body, most_values=10_000)


def _tensor(shape: tuple[int, ...], strides: tuple[int, ...], numbers: int = 4) -> bytes:
    arguments = b"(" + b"".join(b"\x8a\x08" + struct.pack("<q", part) for part in shape) + b"t"
    arguments += b"(" + b"".join(b"\x8a\x08" + struct.pack("<q", part) for part in strides) + b"t"
    storage = b"(" + text("storage") + b"ctorch\nIntStorage\n" + text("0") + text("cpu")
    storage += b"K" + bytes([numbers]) + b"tQ"
    return (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00" + arguments
        + b"\x89NtR."
    )  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [
        _tensor((5,), (1,)),
        _tensor((2,), (-1,)),
        _tensor((-1,), (1,)),
        _tensor((2**40, 2**40), (0, 0)),
        _tensor((2**30,), (0,)),
        _tensor((2, 2), (1,)),
        _tensor((1,) * 9, (1,) * 9),
        _tensor((0, 2**60, 2**60), (0, 0, 0)),
        _tensor((4,), (1,), numbers=9),
    ],
)
def test_tensors_outside_of_their_storage_are_refused(body: bytes, tmp_path: Path) -> None:
    """A shape is a claim: neither memory beyond the storage nor a huge array may come of it."""
    path = write_tensors(tmp_path / "a.pt", np.zeros(4, np.int32), pickle=body)
    with open_tensors(path, MIB) as archive, pytest.raises(ImportFormatError):
        archive.array(archive.data)


def test_storages_that_are_not_there_are_refused(tmp_path: Path) -> None:
    """A name of an entry is a claim, too: of none, of one elsewhere, or of another length."""
    whole = write_tensors(tmp_path / "whole.pt", np.zeros(4, np.int32))
    for number, (name, content) in enumerate(
        (("data/1", bytes(16)), ("../data/0", bytes(16)), ("data/0", bytes(15)), ("data/0", b""))
    ):
        path = tmp_path / f"{number}.pt"
        with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, "w") as target:
            target.writestr("archive/data.pkl", source.read("archive/data.pkl"))
            target.writestr(f"archive/{name}", content)
        with open_tensors(path, MIB) as archive:
            with pytest.raises(ImportFormatError, match="no tensor file that can be read") as told:
                archive.array(archive.data)
            assert "data/0" in told.value.why


def test_a_huge_declared_size_takes_no_memory(tmp_path: Path) -> None:
    """Sizes are claims: the process grows by nothing that the file does not hold."""
    body = _tensor((2**31,), (0,)).replace(
        b"K\x04tQ", b"\x8a\x08" + struct.pack("<q", 2**40) + b"tQ"
    )
    path = write_tensors(tmp_path / "a.pt", np.zeros(4, np.int32), pickle=body)
    tracemalloc.start()
    try:
        with open_tensors(path, 1 << 40) as archive, pytest.raises(ImportFormatError):
            archive.array(archive.data)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def test_views_of_the_same_numbers_are_bounded_together(tmp_path: Path) -> None:
    """A few bytes per view would otherwise copy a storage a million times."""
    path = write_tensors(tmp_path / "a.pt", np.zeros(1_000, np.int64))
    with open_tensors(path, 20_000) as archive:
        archive.array(archive.data)
        with pytest.raises(ImportFormatError, match="more memory"):
            archive.array(archive.data)


def test_lists_that_name_each_other_are_never_printed(tmp_path: Path) -> None:
    """Doubled forty times, a list of nothing has a thousand billion entries when printed."""
    lists = b"]q\x00" + b"".join(
        b"](h" + bytes([n]) + b"h" + bytes([n]) + b"eq" + bytes([n + 1]) for n in range(40)
    )
    record = b"}(" + text("lists") + b"](" + lists + b"e" + text("forward_pass_id") + b"h\x28"
    counts = np.ones((1, 2), np.int64)
    arrays: list[np.ndarray[Any, Any]] = []
    record += text("global_physical_count") + pickled(counts, arrays) + b"u"
    placed = text("last_physical_to_logical_map") + pickled(counts, arrays)
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w") as archive:
        body = b"\x80\x02}(" + text("records") + b"](" + record + b"e" + placed + b"u."
        archive.writestr("archive/data.pkl", body)
        archive.writestr("archive/data/0", counts.tobytes())
        archive.writestr("archive/data/1", counts.tobytes())
    with pytest.raises(ImportFormatError, match="No counts of") as raised:
        import_files("sglang-records", [path], tmp_path / "log", {"top_k": "2"})
    assert "forward_pass_id is no integer" in str(raised.value.why)


def test_compressed_entries_and_foreign_archives_are_refused(tmp_path: Path) -> None:
    """A zip bomb is a compressed entry, and torch never compresses."""
    bomb = write_tensors(tmp_path / "bomb.pt", np.zeros(100_000, np.int32), compressed=True)
    plain = tmp_path / "plain.pt"
    plain.write_bytes(pickle.dumps({"a": 1}))
    foreign = tmp_path / "foreign.pt"
    with zipfile.ZipFile(foreign, "w") as archive:
        archive.writestr("a.txt", "hello")
    for path in (bomb, plain, foreign):
        with pytest.raises(ImportFormatError, match="no tensor file"), open_tensors(path, MIB):
            pass


def test_memory_is_bounded(tmp_path: Path) -> None:
    """More than allowed is not read, whatever the file holds."""
    path = write_tensors(tmp_path / "a.pt", np.zeros(100_000, np.int64))
    with (
        open_tensors(path, 100_000) as archive,
        pytest.raises(ImportFormatError, match="more memory"),
    ):
        archive.array(archive.data)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2_000), st.binary(max_size=8), st.booleans())
def test_no_damage_raises_anything_else(
    tmp_path: Path,
    place: int,
    replacement: bytes,
    cut: bool,
) -> None:
    """Whatever is wrong with a file, the error names it."""
    source = write_tensors(tmp_path / "good.pt", {"a": [1, 2], "b": np.arange(6, dtype=np.int32)})
    good = source.read_bytes()
    path = tmp_path / "bad.pt"
    rest = b"" if cut else good[place + len(replacement) :]
    path.write_bytes(good[:place] + replacement + rest)
    refusal = ""
    try:
        with open_tensors(path, MIB) as archive:
            value = archive.data.get("b") if isinstance(archive.data, dict) else None
            size = archive.array(value).size if isinstance(value, TensorView) else 0
    except ImportFormatError as error:
        refusal = error.what
    assert str(path) in refusal or size <= MIB
