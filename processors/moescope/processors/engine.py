"""All partitions of one processor, and what they hand out at a commit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from moescope.core.emission import Emission, FinishedWindows, Histograms
from moescope.processors.merge import merge_deltas
from moescope.processors.partition import Partition

if TYPE_CHECKING:
    from moescope.core.accounts import PartitionProgress
    from moescope.core.emission import Finisher, WindowGroup
    from moescope.processors.config import WindowConfig
    from moescope.processors.resuming import Resumed


@dataclass(frozen=True, slots=True)
class UnfinishedEmission:
    """An emission whose closed token windows have no metric values yet."""

    emission: Emission
    groups: tuple[WindowGroup, ...]

    def finish(self, finisher: Finisher) -> Emission:
        """Compute the metric values; needs no state, so it may run on another thread."""
        windows: list[FinishedWindows] = []
        histograms: Histograms = {}
        for group in self.groups:
            finished, increments = finisher(group)
            windows.append(finished)
            add_histograms(histograms, increments)
        return replace(self.emission, windows=tuple(windows), histograms=histograms)


def add_histograms(into: Histograms, increments: Histograms) -> None:
    """Add increments key by key."""
    for key, counts in increments.items():
        held = into.get(key)
        into[key] = counts if held is None else held + counts


class Engine:
    """Owns the partitions; one thread at a time.

    Args:
        config: declared windows.
        progress: progress of every partition as of the last commit.
    """

    def __init__(self, config: WindowConfig, progress: dict[str, PartitionProgress]) -> None:
        self._config = config
        self._progress = dict(progress)
        self.partitions: dict[str, Partition] = {}
        self._touched: set[str] = set()

    def partition(self, name: str, domain: str) -> Partition:
        """A partition, opened at its committed place."""
        known = self.partitions.get(name)
        if known is None:
            known = Partition(name, domain, self._config, self._progress.get(name))
            self.partitions[name] = known
        return known

    def open(self, name: str, domain: str, resumed: Resumed) -> Partition:
        """A partition, opened where a commit left it."""
        known = Partition(name, domain, self._config, resumed.progress)
        if resumed.loss is not None:
            known.note_loss(resumed.loss)
        self.partitions[name] = known
        return known

    def forget(self, name: str) -> None:
        """Drop a partition, and all that it did not hand out."""
        self.partitions.pop(name, None)
        self._touched.discard(name)

    def touch(self, name: str) -> None:
        """Mark a partition as having something to commit."""
        self._touched.add(name)

    def take(self) -> UnfinishedEmission | None:
        """Everything since the last call, or None when there is nothing.

        A partition that is still rebuilding its memory stays where its last commit left it.
        """
        ready = {name for name in self._touched if not self.partitions[name].replaying}
        if not ready:
            return None
        progress, groups, deltas, references, placements = [], [], [], [], []
        batches, dead_letters, letter_counts, nodes = [], [], [], []
        for name in sorted(ready):
            moved, output, statuses = self.partitions[name].take()
            progress.append(moved)
            groups += output.groups
            deltas += output.deltas
            references += output.references
            placements += output.placements
            batches += output.batches
            dead_letters += output.dead_letters
            letter_counts += output.dead_letter_counts
            nodes += statuses
        self._touched -= ready
        emission = Emission(
            progress=tuple(progress),
            deltas=tuple(merge_deltas(deltas)),
            batches=tuple(batches),
            dead_letters=tuple(dead_letters),
            dead_letter_counts=tuple(letter_counts),
            references=tuple(references),
            placements=tuple(placements),
            nodes=tuple(nodes),
        )
        return UnfinishedEmission(emission, tuple(groups))
