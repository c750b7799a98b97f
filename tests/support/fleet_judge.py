"""What a fleet's store holds, against the batch logs, the plain roll-up and one process alone."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from oracles.windows_plain import EVAL, TRAIN
from support.fleet_marks import difference_of, window_rows
from support.fleet_topic import identities, identity_of, plain_record
from support.stored import expected_windows, stored_windows, tables

from moescope.core.batchlog import BatchLogReader, partition_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from oracles.windows_plain import Record
    from support.fleet_topic import Identity, Place

    from moescope.processors.config import WindowConfig

START, SIZE, TOKENS = 7, 5, 6
"""Places in the keys and values of `stored_windows`."""


class Verdict(NamedTuple):
    """What a scenario's end state came to.

    Attributes:
        batches: Distinct batches in the batch logs.
        missing: Those of them that are not in the topic.
        repeated: Records of the topic that repeat a batch.
        assignments: Over all windows of all four kinds, by the plain roll-up.
        windows: Rows of the `windows` table.
        lost, twice: Assignments of windows short of, and beyond, the plain roll-up's.
        different: Window rows that differ from the plain roll-up's in anything, and do not say
            that somebody was missing.
        marked: Window rows that differ from those of one process alone, and do say so.
        late: Assignments, at most, that came too late for windows, and are counted as that.
        unexplained: What else differs from the tables of one process alone.
    """

    batches: int
    missing: int
    repeated: int
    assignments: int
    windows: int
    lost: int
    twice: int
    different: int
    marked: int
    late: int
    unexplained: int

    @property
    def same_tables(self) -> bool:
        """Whether every table equals that of one process alone."""
        return not (self.marked or self.unexplained)

    @property
    def is_good(self) -> bool:
        """Whether nothing is lost or counted twice, and nothing differs that does not say why."""
        wrong = (self.missing, self.twice, self.different, self.unexplained)
        return not any(wrong) and self.lost <= (self.late if self.marked else 0)


def logged_identities(roots: Iterable[Path]) -> set[Identity]:
    """Every batch that batch logs still hold."""
    found: set[Identity] = set()
    for root in roots:
        for name in partition_names(root):
            with BatchLogReader(root, name) as reader:
                offset = reader.first_offset()
                while records := (result := reader.read(offset)).records:
                    found |= {
                        identity
                        for record in records
                        if (identity := identity_of(record.payload)) is not None
                    }
                    offset = result.next_offset
    return found


def topic_records(topic: Mapping[int, Sequence[Place]]) -> dict[str, list[Record]]:
    """The topic as the plain roll-up reads it; partitions without records are left out."""
    found = {}
    for number, places in topic.items():
        records = [plain_record(place) for place in places]
        readable = [record for record in records if record.readable]
        if readable:
            # A record that says nothing has no lane of its own.
            lane = readable[0].lane
            found[str(number)] = [
                one if one.readable else one._replace(lane=lane) for one in records
            ]
    return found


def closed_windows(
    records: Mapping[str, Sequence[Record]], config: WindowConfig
) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """Windows that the plain roll-up closes; nobody passed the newest steps yet."""
    newest: dict[str, int] = {}
    for record in (one for each in records.values() for one in each):
        for row in record.rows:
            if row.step is not None and row.phase in (EVAL, TRAIN):
                newest[record.node] = max(newest.get(record.node, -1), row.step)
    passed = min(newest.values(), default=-1)
    return {
        key: value
        for key, value in expected_windows(records, config).items()
        if key[0] != "step" or key[START] + key[SIZE] <= passed
    }


def judge_store(
    store: Path,
    alone: Path,
    topic: Mapping[int, Sequence[Place]],
    roots: Iterable[Path],
    config: WindowConfig,
) -> Verdict:
    """Compare the store of a fleet with everything that it should agree with.

    Args:
        store: Its file.
        alone: The store of one process that read the same topic and nothing else.
        topic: The routing topic, read back whole.
        roots: Batch logs that were shipped, of which the byte cap removed nothing.
        config: Declared windows.
    """
    shipped = identities(place for places in topic.values() for place in places)
    written = logged_identities(roots)
    records = topic_records(topic)
    difference, told = difference_of(store, alone), window_rows(store)
    per_row = max(one.lane.layers * one.lane.top_k for each in records.values() for one in each)
    stored, expected = stored_windows(store), closed_windows(records, config)
    lost = twice = different = assignments = 0
    for key in stored.keys() | expected.keys():
        off = assignments_of(stored.get(key)) - assignments_of(expected.get(key))
        lost, twice = lost + max(-off, 0), twice + max(off, 0)
        is_marked = key in told and told[key].is_marked
        different += stored.get(key) != expected.get(key) and not is_marked
        assignments += assignments_of(expected.get(key))
    return Verdict(
        batches=len(written),
        missing=len(written - shipped.keys()),
        repeated=sum(shipped.values()) - len(shipped),
        assignments=assignments,
        windows=len(stored),
        lost=lost,
        twice=twice,
        different=different,
        marked=difference.marked,
        late=difference.late_rows * per_row,
        unexplained=len(difference.unexplained),
    )


def table_differences(store: Path, alone: Path) -> list[str]:
    """Rows that only one of two stores has, told by table; empty when all is the same."""
    left, right = tables(store), tables(alone)
    found = []
    for name, rows in left.items():
        mine, other = Counter(rows), Counter(right[name])
        found += [f"{name} - {row}" for row in (mine - other).elements()]
        found += [f"{name} + {row}" for row in (other - mine).elements()]
    return found


def assignments_of(window: tuple[Any, ...] | None) -> int:
    """Assignments of one window row of `stored_windows`."""
    return 0 if window is None else sum(window[TOKENS])
