"""Offsets and watermarks: what was read, and whether an emission continues it."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from moescope.core.accounts import PartitionProgress
from moescope.storage.account_rows import replace as replace_rows
from moescope.storage.columns import records
from moescope.storage.errors import EmissionRefusedError, LogReplacedError
from moescope.storage.shared import DomainClock

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import duckdb

    from moescope.core.emission import Emission

_FIELDS = (
    "partition", "domain", "emitted_to", "replay_from", "state", "watermark_us", "step_low",
    "sealed", "set_aside_us", "log_id",
)  # fmt: skip


def read_progress(connection: duckdb.DuckDBPyConnection) -> dict[str, PartitionProgress]:
    """Progress of every partition as stored."""
    rows = connection.execute(f"SELECT {', '.join(_FIELDS)} FROM offsets").fetchall()
    found: dict[str, PartitionProgress] = {}
    for row in rows:
        values = dict(zip(_FIELDS, row, strict=True))
        values["set_aside_us"] = tuple(values["set_aside_us"])
        found[values["partition"]] = PartitionProgress(**values)
    return found


def read_delta_offsets(connection: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """Next offset of each partition of the deltas topic as stored."""
    return dict(connection.execute("SELECT partition, next_offset FROM delta_offsets").fetchall())


def read_handled_to(connection: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """Partition of the deltas topic → up to where all that ended there is stored."""
    return dict(connection.execute("SELECT partition, handled_to FROM delta_offsets").fetchall())


def write_delta_offsets(
    connection: duckdb.DuckDBPyConnection,
    emission: Emission,
    read_to: Mapping[str, int],
    commit_id: int,
) -> None:
    """How far the deltas topic is applied with an emission; `read_to` is what was stored."""
    places = {name: read_to.get(name, 0) for name in emission.handled_to} | dict(emission.read_to)
    rows = [
        {
            "partition": partition,
            "next_offset": offset,
            "handled_to": emission.handled_to.get(partition, offset),
            "commit_id": commit_id,
        }
        for partition, offset in places.items()
    ]
    replace_rows(connection, "delta_offsets", records("delta_offsets", rows), ("partition",))


def write_progress(
    connection: duckdb.DuckDBPyConnection, progress: Iterable[PartitionProgress], commit_id: int
) -> None:
    """Progress of the partitions of an emission."""
    rows = [
        {**{name: getattr(each, name) for name in _FIELDS}, "commit_id": commit_id}
        for each in progress
    ]
    replace_rows(connection, "offsets", records("offsets", rows), ("partition",))


def read_clocks(connection: duckdb.DuckDBPyConnection) -> dict[str, DomainClock]:
    """Clock of every domain as stored."""
    rows = connection.execute("SELECT domain, watermark_us, step_low FROM domains").fetchall()
    return {
        domain: DomainClock(reached_us=watermark_us, step_reached=step_low)
        for domain, watermark_us, step_low in rows
    }


def read_counters(connection: duckdb.DuckDBPyConnection) -> dict[str, tuple[int, int]]:
    """Late rows and duplicate windows of every domain."""
    rows = connection.execute("SELECT domain, late_rows, duplicate_windows FROM domains").fetchall()
    return {domain: (late, duplicates) for domain, late, duplicates in rows}


def write_domains(
    connection: duckdb.DuckDBPyConnection,
    clocks: Mapping[str, DomainClock],
    counters: Mapping[str, tuple[int, int]],
    commit_id: int,
) -> None:
    """Clocks and counters of the given domains."""
    rows = [
        {
            "domain": domain,
            "watermark_us": clock.reached_us,
            "step_low": clock.step_reached,
            "late_rows": counters[domain][0],
            "duplicate_windows": counters[domain][1],
            "commit_id": commit_id,
        }
        for domain, clock in clocks.items()
    ]
    replace_rows(connection, "domains", records("domains", rows), ("domain",))


def with_known_logs(
    progress: Iterable[PartitionProgress], stored: Mapping[str, PartitionProgress]
) -> dict[str, PartitionProgress]:
    """Progress by partition; whose log nobody told has the one that is stored."""
    return {
        each.partition: replace(each, log_id=stored[each.partition].log_id)
        if not each.log_id and each.partition in stored
        else each
        for each in progress
    }


def check_logs(emission: Emission, stored: Mapping[str, PartitionProgress]) -> None:
    """Refuse records of another log than those that are stored of the same partition.

    Raises:
        LogReplacedError: Says which, and what to do.
    """
    for new in emission.progress:
        old = stored.get(new.partition)
        if old is not None and old.log_id and new.log_id and old.log_id != new.log_id:
            raise LogReplacedError(
                f"The records of {new.partition} come from another topic than those that are "
                "stored.",
                why=f"That one had the id {old.log_id}, this one has {new.log_id}: it was made "
                "anew, and its records would be taken for those that are stored.",
                next_step="Use a new topic prefix (kafka.topic_prefix) everywhere: the store goes "
                "on with it. Or stop all processors, start the store once with an empty data "
                "directory and `moescope run store --reset-processors`, then start the processors.",
            )


def is_contained(emission: Emission, stored: Mapping[str, PartitionProgress]) -> bool:
    """Whether all of an emission was applied before: none of its partitions gets further.

    That happens when processors read records again that the store has, for example after
    somebody set their offsets back.
    """
    places = [(stored.get(each.partition), each) for each in emission.progress]
    before = [(old, new) for old, new in places if old is not None]
    if not places or len(before) < len(places):
        return False
    goes_on = any(new.emitted_to > old.emitted_to or new.sealed > old.sealed for old, new in before)
    holds = _has_output(emission) or emission.batches or emission.dead_letters
    return not goes_on and (bool(holds) or any(_moves(old, new) for old, new in before))


def check_continues(
    emission: Emission,
    stored: Mapping[str, PartitionProgress],
    read_to: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Refuse an emission that was applied before, or that goes back.

    Accounts and dead letters say which records an emission covers: none of them may be stored
    already, and all of them have to be covered by the new progress. An emission without records
    may only change what a record is not needed for, such as the seal of a partition, and only
    once.

    Args:
        emission: To be applied.
        stored: Progress of every partition.
        read_to: How far the deltas topic is applied.

    Raises:
        EmissionRefusedError: Says which partition does not continue.
        LogReplacedError: A partition's records are those of another log.
    """
    check_logs(emission, stored)
    for partition, offset in emission.read_to.items():
        if offset < read_to.get(partition, offset):
            raise _refused(partition, f"it was read to {read_to[partition]} before")
    offsets: dict[str, list[int]] = {}
    for partition, offset in (
        *((batch.partition, batch.offset) for batch in emission.batches),
        *((letter.partition, letter.offset) for letter in emission.dead_letters),
    ):
        offsets.setdefault(partition, []).append(offset)
    moved = {each.partition: each for each in emission.progress}
    for partition in offsets:
        if partition not in moved.keys() | emission.read_to.keys() | emission.handled_to.keys():
            raise _refused(partition, "it has records of a partition without progress")
    for partition, new in moved.items():
        why = _objection(stored.get(partition), new, offsets.get(partition, []))
        if why:
            raise _refused(partition, why)
    if _has_output(emission) and not any(
        _moves(stored.get(each.partition), each) for each in moved.values()
    ):
        raise _refused(", ".join(moved) or "none", "it has output but no partition moves")


def _has_output(emission: Emission) -> bool:
    return bool(emission.windows or emission.histograms or emission.deltas or emission.references)


_Rule = tuple[bool, str]


def _objection(
    old: PartitionProgress | None, new: PartitionProgress, offsets: list[int]
) -> str | None:
    """Why a partition's progress does not follow from what is stored; None: it does."""
    rules: list[_Rule] = [
        (bool(offsets) and max(offsets) >= new.emitted_to, "it has records beyond its progress"),
    ]
    if old is not None:
        rules += [
            (new.emitted_to < old.emitted_to, f"it ends before {old.emitted_to}"),
            (
                bool(offsets) and min(offsets) < old.emitted_to,
                f"it has records before {old.emitted_to}, which are stored already",
            ),
            (new.watermark_us < old.watermark_us, "its watermark goes back"),
            (new.domain != old.domain, f"it belongs to the domain {old.domain}"),
            (
                old.sealed and (new.emitted_to > old.emitted_to or not new.sealed),
                "it was read to its sealed end before",
            ),
        ]
    return next((why for broken, why in rules if broken), None)


def _moves(old: PartitionProgress | None, new: PartitionProgress) -> bool:
    return old is None or (old.emitted_to, old.watermark_us, old.sealed) != (
        new.emitted_to,
        new.watermark_us,
        new.sealed,
    )


def _refused(partition: str, why: str) -> EmissionRefusedError:
    return EmissionRefusedError(
        f"An emission does not continue partition {partition}.",
        why=f"Compared with what is stored, {why}.",
        next_step="Restart the processor: it continues from the stored offsets.",
    )
