"""The classes that may appear in a plain value."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

from moescope.core.plain_codec.checking import field_checks
from moescope.core.plain_codec.errors import too_new

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from moescope.core.plain_codec.checking import Check


class Kinds:
    """The classes that may appear in a value, known by their names.

    Args:
        classes: Dataclasses, NamedTuples and enums.
        shared: Those of them whose equal objects are written once, and come back as one; their
            fields hold numbers, text and tuples of these only.
        aliases: Names of other types that the hints of their fields use.
    """

    def __init__(
        self,
        classes: Iterable[type],
        *,
        shared: Iterable[type] = (),
        aliases: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        self._by_name = {each.__name__: each for each in classes}
        self._fields = {
            each: _field_names(each)
            for each in self._by_name.values()
            if not issubclass(each, Enum)
        }
        self.shared = frozenset(shared) | {
            each for each in self._by_name.values() if issubclass(each, Enum)
        }
        self._aliases = aliases
        self._checks: dict[type, dict[str, Check]] = {}

    def checks_of(self, kind: type) -> dict[str, Check]:
        """Field of a class → whether a value fits it."""
        checks = self._checks.get(kind)
        if checks is None:
            names = {**self._by_name, **self._aliases}
            checks = self._checks[kind] = field_checks(kind, names)
        return checks

    def fields_of(self, kind: type) -> tuple[str, ...] | None:
        """Field names of a class; None where it is unknown."""
        return self._fields.get(kind)

    def knows(self, kind: type) -> bool:
        """Whether objects of exactly this class may appear."""
        return self._by_name.get(kind.__name__) is kind

    def named(self, name: object) -> type:
        """The class of a name.

        Raises:
            PlainVersionError: There is none.
        """
        found = self._by_name.get(name) if isinstance(name, str) else None
        if found is None:
            raise too_new(f"It holds a {str(name)[:80]!r}, which this moescope does not know.")
        return found


def _field_names(kind: type) -> tuple[str, ...]:
    if is_dataclass(kind):
        return tuple(each.name for each in fields(kind) if each.init)
    return tuple(kind._fields)  # type: ignore[attr-defined]  # a named tuple


def required_fields(kind: type) -> frozenset[str]:
    """Names of the fields of a class that have no default."""
    if is_dataclass(kind):
        return frozenset(
            each.name
            for each in fields(kind)
            if each.init and each.default is MISSING and each.default_factory is MISSING
        )
    return frozenset(kind._fields) - frozenset(kind._field_defaults)  # type: ignore[attr-defined]  # a named tuple
