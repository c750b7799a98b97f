"""Whether values are what the fields of a class are declared to hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

Check = Callable[[Any], bool]

_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 64) - 1
"""What a column or an array can hold, with a sign or without."""
_HINT_NAMES: Final = {
    "NDArray": NDArray, "np": np, "Mapping": Mapping, "Sequence": Sequence,
}  # fmt: skip
"""What modules import for their hints alone."""


def field_checks(kind: type, names: Mapping[str, object]) -> dict[str, Check]:
    """Field → whether a value fits its declared type, in all its depth.

    Args:
        kind: Dataclass or NamedTuple.
        names: What its hints mean, where its module does not say it when it runs.
    """
    hints = get_type_hints(kind, localns={**_HINT_NAMES, **names})
    return {name: check_of(hint) for name, hint in hints.items()}


def check_of(hint: Any) -> Check:
    """Whether a value fits a type.

    Objects are looked at from outside only: their fields were checked when they were made.

    Raises:
        TypeError: It is no type of plain values.
    """
    if hint is Any or hint is object:
        return lambda _: True
    if hint in _SCALARS:
        return _SCALARS[hint]
    if get_origin(hint) is not None:
        return _check_of_parts(hint, get_origin(hint), get_args(hint))
    if isinstance(hint, type):
        return lambda value: type(value) is hint
    raise _unknown(hint)


def _check_of_parts(hint: object, origin: Any, arguments: tuple[Any, ...]) -> Check:
    if origin is np.ndarray:
        return _array(np.dtype(get_args(arguments[1])[0]))
    if origin in _CONTAINERS:
        return _all_in(_CONTAINERS[origin], check_of(arguments[0]))
    if origin in {Union, UnionType}:
        return _any_of([check_of(each) for each in arguments])
    if origin in {dict, Mapping}:
        return _mapping(*map(check_of, arguments))
    raise _unknown(hint)


def _unknown(hint: object) -> TypeError:
    return TypeError(f"No plain value has the type {hint!r}.")


_CONTAINERS: Final[dict[Any, tuple[type, ...]]] = {
    # Of any length: tuple[X, ...].
    tuple: (tuple,),
    Sequence: (tuple, list),
    frozenset: (frozenset,),
}


def _is_whole(value: object) -> bool:
    return type(value) is int and _LEAST <= value <= _MOST


_SCALARS: Final[dict[Any, Check]] = {
    NoneType: lambda value: value is None,
    bool: lambda value: type(value) is bool,
    int: _is_whole,
    float: lambda value: type(value) is float or _is_whole(value),
    # Named values are text, too.
    str: lambda value: isinstance(value, str),
    bytes: lambda value: type(value) is bytes,
}


def _any_of(checks: Sequence[Check]) -> Check:
    return lambda value: any(check(value) for check in checks)


def _array(wanted: np.dtype[Any]) -> Check:
    return lambda value: type(value) is np.ndarray and np.can_cast(value.dtype, wanted, "safe")


def _all_in(containers: tuple[type, ...], check: Check) -> Check:
    return lambda value: type(value) in containers and all(map(check, value))


def _mapping(key: Check, each: Check) -> Check:
    return lambda value: (
        type(value) is dict and all(map(key, value)) and all(map(each, value.values()))
    )
