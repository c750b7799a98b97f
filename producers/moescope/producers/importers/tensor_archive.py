"""Tensor files (`torch.save`), read without torch and without running anything in them."""

from __future__ import annotations

import io
import math
import zipfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from moescope.producers.importers.errors import ImportFormatError
from moescope.producers.importers.source_files import is_compressed, opened, read_document
from moescope.producers.importers.tensor_pickle import TensorPickleError, TensorView, load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import IO

    from numpy.typing import NDArray

_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "torch ByteStorage": np.dtype("u1"),
    "torch CharStorage": np.dtype("i1"),
    "torch BoolStorage": np.dtype("?"),
    "torch ShortStorage": np.dtype("<i2"),
    "torch IntStorage": np.dtype("<i4"),
    "torch LongStorage": np.dtype("<i8"),
    "torch FloatStorage": np.dtype("<f4"),
    "torch DoubleStorage": np.dtype("<f8"),
}
_BYTES_PER_VALUE: Final = 64
"""About what one object of a pickle takes in memory."""
_BYTES_PER_NUMBER: Final = 8
_MOST_AXES: Final = 8
_LONGEST_AXIS: Final = 2**31
_DAMAGES = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    EOFError,
    KeyError,
    NotImplementedError,
    RuntimeError,
    OverflowError,
    ValueError,
)


class TensorArchive:
    """One opened tensor file: its data, and the arrays that views of it name.

    Attributes:
        data: Numbers, text, lists, tuples, dictionaries, and `TensorView`s.
    """

    def __init__(self, path: Path, archive: zipfile.ZipFile, most_bytes: int) -> None:
        self._path = path
        self._archive = archive
        self._left = most_bytes
        self._storages: dict[str, NDArray[Any]] = {}
        pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise _refusal(path, "It is a zip archive without one data.pkl.")
        self._prefix = pickles[0].removesuffix("data.pkl")
        if f"{self._prefix}byteorder" in archive.namelist():
            order = self._entry("byteorder")
            if order != b"little":
                raise _refusal(path, f"Its byte order is {order[:16]!r}.")
        try:
            self.data = load(self._entry("data.pkl"), most_values=most_bytes // _BYTES_PER_VALUE)
        except TensorPickleError as error:
            raise _refusal(path, f"Its data.pkl: {error}.") from error

    def array(self, view: TensorView) -> NDArray[Any]:
        """The numbers of a view, read-only.

        Raises:
            ImportFormatError: It does not lie inside of its storage, or is of an unknown type.
        """
        dtype = _DTYPES.get(view.storage.kind)
        if dtype is None:
            raise _refusal(self._path, f"A tensor is of type {view.storage.kind[:80]!r}.")
        axes = len(view.shape)
        if axes > _MOST_AXES or axes != len(view.strides):
            raise _refusal(self._path, f"A tensor has {axes} axes, {len(view.strides)} strides.")
        if not all(0 <= length <= _LONGEST_AXIS for length in view.shape):
            raise _refusal(self._path, f"A tensor has shape {view.shape}, strides {view.strides}.")
        size = math.prod(view.shape)
        last = view.offset + sum(
            (length - 1) * stride for length, stride in zip(view.shape, view.strides, strict=True)
        )
        storage = self._storage(view, dtype)
        is_inside = view.offset >= 0 and min((*view.strides, 0)) >= 0 and last < len(storage)
        if size and not is_inside:
            raise _refusal(
                self._path, f"A tensor of shape {view.shape} lies outside of its storage."
            )
        # Any number of views may name the same numbers: what callers copy has to be bounded.
        self._spend(size * _BYTES_PER_NUMBER)
        if not size:
            return self._empty(view.shape, dtype)
        return np.lib.stride_tricks.as_strided(
            storage[view.offset :],
            view.shape,
            [stride * dtype.itemsize for stride in view.strides],
            writeable=False,
        )

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        try:
            return np.empty(shape, dtype)
        except ValueError as error:
            raise _refusal(self._path, f"A tensor has shape {shape}.") from error

    def _storage(self, view: TensorView, dtype: np.dtype[Any]) -> NDArray[Any]:
        key = view.storage.key
        if key not in self._storages:
            raw = self._entry(f"data/{key}")
            if len(raw) % dtype.itemsize:
                raise _refusal(self._path, f"Its entry data/{key[:80]} is cut off.")
            self._storages[key] = np.frombuffer(raw, dtype)
        storage = self._storages[key]
        if storage.dtype != dtype or len(storage) != view.storage.numbers:
            raise _refusal(self._path, f"Its entry data/{key[:80]} is not what data.pkl says.")
        return storage

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise ImportFormatError(
                f"The tensors of {self._path} need more memory than allowed.",
                next_step="Raise -o max_memory_mib, or dump more often.",
            )

    def _entry(self, name: str) -> bytes:
        """Bytes of an entry. Entries are stored as they are; a compressed one may be a bomb."""
        try:
            info = self._archive.getinfo(self._prefix + name)
            if info.compress_type != zipfile.ZIP_STORED:
                raise _refusal(self._path, f"Its entry {name[:80]} is compressed.")
            self._spend(info.file_size)
            return self._archive.read(info)
        except _DAMAGES as error:
            raise _refusal(self._path, f"Its entry {name[:80]}: {error}") from error


@contextmanager
def open_tensors(path: Path, most_bytes: int) -> Iterator[TensorArchive]:
    """Open a tensor file.

    Args:
        path: The file; plain or compressed.
        most_bytes: Bound of all that is read of it, and of all numbers that are taken from it at
            8 bytes each.

    Raises:
        ImportFormatError: It cannot be read, is none, is damaged, or holds other things than data.
    """
    with _seekable(path) as file:
        try:
            archive = zipfile.ZipFile(file)
        except _DAMAGES as error:
            raise _refusal(path, str(error)) from error
        with archive:
            yield TensorArchive(path, archive, most_bytes)


@contextmanager
def _seekable(path: Path) -> Iterator[IO[bytes]]:
    if is_compressed(path):
        yield io.BytesIO(read_document(path))
        return
    with opened(path) as file:
        yield file


def _refusal(path: Path, why: str) -> ImportFormatError:
    return ImportFormatError(
        f"{path} is no tensor file that can be read.",
        why=why,
        next_step="Only plain tensors and data as torch.save writes them (a zip archive, since "
        "torch 1.6) are read; nothing in a file is ever run.",
    )
