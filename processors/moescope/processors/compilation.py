"""How kernels are compiled to machine code."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

from numba import njit

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., object]")


def compiled(function: F) -> F:
    """Compile a function on its first call, to run without the interpreter's lock.

    The machine code is cached on disk. Where no directory can be written (a read-only install
    without a home), each process compiles anew. No fast-math and no parallel reduction: the same
    input gives the same bits.
    """
    try:
        return cast("F", njit(nogil=True, error_model="numpy", cache=True)(function))
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        return cast("F", njit(nogil=True, error_model="numpy")(function))
