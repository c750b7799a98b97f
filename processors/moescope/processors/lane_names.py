"""Numbers that stand for scenes and tasks in the compiled passes of a lane."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from moescope.core.vocabulary import MAX_SCENES, OTHER_SCENE, UNKNOWN_SCENE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray


class SceneNumbers:
    """Scenes by the order in which they were met; beyond `MAX_SCENES` new ones are one scene."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}

    def number_of(self, name: str) -> int:
        """Number of a scene, which may be new; without a name it is the unknown one."""
        name = name or UNKNOWN_SCENE
        known = self._numbers.get(name)
        if known is None:
            if len(self._names) >= MAX_SCENES and name != OTHER_SCENE:
                return self.number_of(OTHER_SCENE)
            known = len(self._names)
            self._names.append(name)
            self._numbers[name] = known
        return known

    def numbers_of(self, names: Sequence[str]) -> NDArray[np.int64]:
        """The same for many, int64 [N]."""
        return _numbers(names, self._numbers, self.number_of)

    def name_of(self, number: int) -> str:
        """Name of a number that was given."""
        return self._names[number]

    def state(self) -> list[str]:
        """Names by number."""
        return self._names

    def restore(self, names: Iterable[str]) -> None:
        """Give the numbers of a saved state, and no others."""
        self._names, self._numbers = [], {}
        for name in names:
            self.number_of(name)


class TaskNumbers:
    """Tasks by a hash of their names: the same after any restart."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        """How many are known."""
        return len(self._names)

    def numbers_of(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Numbers of tasks, which may be new: int64 [N]."""
        return _numbers(names, self._numbers, self._learn)

    def names_of(self, numbers: Iterable[int]) -> list[str]:
        """Names of known numbers."""
        return [self._names[number] for number in numbers]

    def keep(self, numbers: set[int]) -> None:
        """Forget all others."""
        self._names = {task: name for task, name in self._names.items() if task in numbers}
        self._numbers = {name: task for task, name in self._names.items()}

    def _learn(self, name: str) -> int:
        digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        task = int.from_bytes(digest, "little", signed=True)
        self._names[task] = name
        self._numbers[name] = task
        return task


def _numbers(
    names: Sequence[str], known: dict[str, int], number: Callable[[str], int]
) -> NDArray[np.int64]:
    """Numbers of names; `number` is asked for those that are not known, and notes them."""
    try:
        return np.fromiter(map(known.__getitem__, names), np.int64, len(names))
    except KeyError:
        named = [known[name] if name in known else number(name) for name in names]
        return np.array(named, np.int64)
