"""Token windows whose key is stored already: a request that was forgotten has come back."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from moescope.core.vocabulary import WindowKind
from moescope.storage.columns import timestamps
from moescope.storage.lanes import lane_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb
    from numpy.typing import NDArray

    from moescope.core.emission import FinishedWindows, WindowGroup

_INCOMING = "incoming_token_keys"


def kept_windows(
    connection: duckdb.DuckDBPyConnection, finished: Sequence[FinishedWindows]
) -> tuple[list[NDArray[np.bool_]], dict[str, int]]:
    """Which windows to store: those with a weight whose key is new. The first one stays.

    The keys of those stored are noted.

    Returns:
        bool [W] per group, and how many were left out per domain.
    """
    kept = [each.group.weight > 0 for each in finished]
    hashes: dict[int, tuple[int, int]] = {}
    left_out: dict[str, int] = {}
    for number, each in enumerate(finished):
        if each.group.kind is not WindowKind.TOKEN:
            continue
        for window in np.flatnonzero(kept[number]).tolist():
            place = hashes.setdefault(key_hash(each.group, window), (number, window))
            if place != (number, window):
                kept[number][window] = False
                _count(left_out, each.group)
    if not hashes:
        return kept, left_out
    close_times = [finished[group].group.close_time_us[window] for group, window in hashes.values()]
    connection.register(
        _INCOMING,
        pa.table(
            {
                "key_hash": pa.array(list(hashes), pa.uint64()),
                "close_time": timestamps(close_times),
            }
        ),
    )
    new = connection.execute(
        "INSERT INTO token_window_keys BY NAME SELECT key_hash, close_time"
        f" FROM {_INCOMING} ON CONFLICT DO NOTHING RETURNING key_hash"
    ).fetchall()
    connection.unregister(_INCOMING)
    for hashed in hashes.keys() - {hashed for (hashed,) in new}:
        number, known = hashes[hashed]
        kept[number][known] = False
        _count(left_out, finished[number].group)
    return kept, left_out


def key_hash(group: WindowGroup, window: int) -> int:
    """64-bit hash of a token window's key without the layer."""
    parts = (
        lane_id(group.lane), group.phase, group.scope_kind, group.scope_value, str(group.size),
        str(group.stride), str(group.start[window]), group.request[window], group.task[window],
    )  # fmt: skip
    digest = hashlib.blake2b("\x1f".join(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _count(left_out: dict[str, int], group: WindowGroup) -> None:
    left_out[group.lane.domain] = left_out.get(group.lane.domain, 0) + 1
