"""One side of a comparison: which batch logs it is read from, and which of their rows count."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from moescope.core.batchlog import partition_names
from moescope.core.batchlog.partition import read_meta
from moescope.core.errors import InputError
from moescope.core.vocabulary import HEALTH_PHASES, Origin, Phase
from moescope.jobs.reports.comparison.words import cut

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from moescope.core.batch import BatchHeader, RoutingBatch

LOG_FOLDER: Final = "log"
"""Of a data directory."""
_LABEL: Final = "label."
_NAMES: Final = ("model", "revision", "node", "engine", "engine_version")
_CHOICES: Final = {
    "origin": tuple(origin.name.lower() for origin in Origin),
    "phase": tuple(sorted(phase.name.lower() for phase in HEALTH_PHASES)),
}
KEYS: Final = (*_NAMES, *_CHOICES, "scene", f"{_LABEL}NAME")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows of a log belong to a side: all that every condition admits.

    Attributes:
        header: Conditions on fields of the batch header.
        labels: Conditions on its labels.
        phase, scene: Conditions on rows; None admits all.
    """

    header: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    phase: Phase | None = None
    scene: str | None = None

    def admits(self, header: BatchHeader) -> bool:
        """Whether rows of a batch can belong to the side."""
        return all(_value(header, name) == text for name, text in self.header.items()) and all(
            header.labels.get(name) == text for name, text in self.labels.items()
        )

    def overlaps(self, other: Selection) -> bool:
        """Whether one row of a batch that both admit can belong to both."""
        return all(
            mine is None or theirs is None or mine == theirs
            for mine, theirs in ((self.phase, other.phase), (self.scene, other.scene))
        )

    def words(self) -> str:
        """The conditions, as they are given."""
        return ", ".join(f"{name}={text}" for name, text in self.conditions().items())

    def conditions(self) -> dict[str, str]:
        """By key, as they are given."""
        return {
            **self.header,
            **({} if self.phase is None else {"phase": self.phase.name.lower()}),
            **({} if self.scene is None else {"scene": self.scene}),
            **{_LABEL + name: text for name, text in self.labels.items()},
        }


@dataclass(frozen=True, slots=True)
class Side:
    """What one side of a comparison is.

    Attributes:
        path: As it was given.
        root: Log root.
        partitions: Names, sorted.
        selection: Which rows count.
    """

    path: Path
    root: Path
    partitions: tuple[str, ...]
    selection: Selection


def find_side(path: Path, conditions: Iterable[str] = ()) -> Side:
    """Find the batch logs of a side.

    Args:
        path: A data directory, a log root, or one partition's folder.
        conditions: `KEY=VALUE` each; the keys are `KEYS`.

    Raises:
        InputError: There is no batch log, or a condition is not understood.
        BatchLogError: The folders cannot be read.
    """
    selection = _selection(conditions)
    path = path.expanduser().absolute()
    meta = read_meta(path)
    if meta is not None:
        return Side(path, path.parent, (meta.name,), selection)
    for root in (path / LOG_FOLDER, path):
        names = tuple(partition_names(root))
        if names:
            return Side(path, root, names, selection)
    raise InputError(
        f"There is no batch log in {path}.",
        why="It holds no partition, and no folder `log` that does.",
        next_step="Name a data directory, its `log` folder, or one partition in it.",
    )


def _selection(conditions: Iterable[str]) -> Selection:
    found = _parsed(conditions)
    phase = found.get("phase")
    return Selection(
        header={name: found[name] for name in (*_NAMES, "origin") if name in found},
        labels={
            name.removeprefix(_LABEL): text
            for name, text in found.items()
            if name.startswith(_LABEL)
        },
        phase=None if phase is None else Phase[phase.upper()],
        scene=found.get("scene"),
    )


def _parsed(conditions: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for condition in conditions:
        name, equals, text = condition.partition("=")
        is_known = name in KEYS[:-1] or (name.startswith(_LABEL) and name != _LABEL)
        if not equals or not is_known or name in found:
            raise InputError(
                f"The condition {cut(repr(condition))} is not understood.",
                why=f"It has to be KEY=VALUE, each key once; keys: {', '.join(KEYS)}.",
                next_step="For example --a revision=r41.",
            )
        allowed = _CHOICES.get(name)
        if allowed is not None and text not in allowed:
            raise InputError(
                f"The condition {cut(repr(condition))} admits nothing.",
                why=f"A row's {name} is {' or '.join(allowed)}.",
                next_step="Choose one of these.",
            )
        found[name] = text
    return found


def values_of(batch: RoutingBatch, key: str) -> Iterable[str]:
    """What a batch has under a key of conditions."""
    if key == "scene":
        return batch.requests.scenes
    if key == "phase":
        found = () if batch.tokens is None else np.unique(batch.tokens.phase).tolist()
        return [Phase(phase).name.lower() for phase in found if phase in HEALTH_PHASES]
    if key.startswith(_LABEL):
        return [batch.header.labels.get(key.removeprefix(_LABEL), "")]
    return [_value(batch.header, key)]


def _value(header: BatchHeader, name: str) -> str:
    return header.origin.name.lower() if name == "origin" else str(getattr(header, name))
