"""Root that has to obey a file's permissions, as any other user: by Linux's capabilities."""

from __future__ import annotations

import ctypes
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_VERSION: Final = 0x20080522
_OVERRIDES: Final = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Set(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


@contextmanager
def bound_by_permissions() -> Iterator[None]:
    """The calling thread, and what it starts, may write only what its user may."""
    had = _effective()
    _set_effective(had & ~_OVERRIDES)
    try:
        yield
    finally:
        _set_effective(had)


def _sets() -> ctypes.Array[_Set]:
    sets = (_Set * 2)()
    _call("capget", sets)
    return sets


def _effective() -> int:
    return int(_sets()[0].effective)


def _set_effective(capabilities: int) -> None:
    sets = _sets()
    sets[0].effective = capabilities
    _call("capset", sets)


def _call(name: str, sets: ctypes.Array[_Set]) -> None:
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    if function(ctypes.byref(_Header(_VERSION, 0)), sets):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
