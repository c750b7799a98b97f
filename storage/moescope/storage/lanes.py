"""Short ids of lanes, and the table that says what they stand for."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from moescope.core.emission import LaneKey
from moescope.storage.columns import insert, records

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import duckdb

_FIELDS = (
    "domain", "model", "revision", "origin", "fidelity", "sampling_ratio", "experts", "top_k",
    "layers",
)  # fmt: skip


@lru_cache(maxsize=4096)
def lane_id(lane: LaneKey) -> str:
    """A lane's id: 16 hexadecimal digits, the same on every machine."""
    text = "\x1f".join(repr(getattr(lane, name)) for name in _FIELDS)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class Lanes:
    """The lanes that the store knows, by id."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        rows = connection.execute(f"SELECT lane, {', '.join(_FIELDS)} FROM lanes").fetchall()
        self._known = {
            name: LaneKey(**dict(zip(_FIELDS, (*values, tuple(layers)), strict=True)))
            for name, *values, layers in rows
        }

    def __getitem__(self, name: str) -> LaneKey:
        """What an id stands for."""
        return self._known[name]

    @property
    def known(self) -> Mapping[str, LaneKey]:
        """Every lane, by id."""
        return MappingProxyType(self._known)

    def note(
        self, connection: duckdb.DuckDBPyConnection, lanes: Iterable[LaneKey], commit_id: int
    ) -> None:
        """Store the lanes that are new."""
        new: list[dict[str, Any]] = []
        for lane in lanes:
            name = lane_id(lane)
            if name not in self._known:
                self._known[name] = lane
                values = {field: getattr(lane, field) for field in _FIELDS}
                new.append({"lane": name, **values, "commit_id": commit_id})
        insert(connection, "lanes", records("lanes", new))
