"""Lines of a rank's tokens per expert: one step at one layer each."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moescope.core.vocabulary import MAX_EXPERTS
from moescope.producers.importers.count_batches import LARGEST_TOKENS
from moescope.producers.importers.errors import ImportFormatError, RejectedLineError
from moescope.producers.importers.json_tables import (
    NoIntegersError,
    RaggedListsError,
    integers_of,
)
from moescope.producers.importers.json_values import as_integer
from moescope.producers.importers.megatron_ranks import (
    LARGEST_RANK,
    LARGEST_STEP,
    RouterName,
    router_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

_RANK = re.compile(r"rank([0-9]{1,7})\.jsonl")


@dataclass(frozen=True, slots=True)
class CountLine:
    """One line.

    Attributes:
        file, number: Where it is.
        rank: Of the whole run.
        router: With the layer as its stage numbers it.
        batches: int64 [micro-batches, experts of the rank].
    """

    file: Path
    number: int
    rank: int
    step: int
    router: RouterName
    batches: NDArray[np.int64]

    @property
    def comes_in_pairs(self) -> bool:
        """Whether each micro-batch is there an even number of times."""
        return all(times % 2 == 0 for times in Counter(map(bytes, self.batches)).values())


def count_line(
    file: Path, number: int, record: dict[str, Any], options: Mapping[str, Any]
) -> CountLine:
    """Understand a line.

    Args:
        file: Of a rank; its name tells which.
        number: Of the line.
        record: The line, as parsed.
        options: Of the format.

    Raises:
        RejectedLineError: It holds no counts of this model, or cannot be placed.
    """
    rank = _rank_of(file)
    if rank is None:
        raise RejectedLineError("a file that is not called rank<number>.jsonl")
    if rank >= LARGEST_RANK:
        raise RejectedLineError("an impossible rank", str(rank))
    batches = counts_of(record)
    own, shares = batches.shape[1], options["expert_parallel"]
    if own * shares != options["experts"]:
        raise RejectedLineError(
            "another number of experts", f"{own} × {shares} ranks, not {options['experts']}"
        )
    return CountLine(
        file=file,
        number=number,
        rank=rank,
        step=as_integer(record.get("iter"), "iter", LARGEST_STEP),
        router=router_of(record),
        batches=batches,
    )


def check_ranks(files: Sequence[Path], path: Path) -> None:
    """Refuse a folder in which two files are of one rank, as a copy or a compressed one beside it.

    Raises:
        ImportFormatError: There are two.
    """
    file_of: dict[int, Path] = {}
    for file in files:
        rank = _rank_of(file)
        if rank is not None and file_of.setdefault(rank, file) != file:
            raise ImportFormatError(
                f"Two files of {path} are of rank {rank}: {file_of[rank].name} and {file.name}.",
                why="A rank writes one file, and nothing tells which of both is the run's.",
                next_step="Leave one of both in the folder.",
            )


def _rank_of(file: Path) -> int | None:
    """As its name says."""
    named = _RANK.search(file.name)
    return None if named is None else int(named[1])


def counts_of(record: dict[str, Any]) -> NDArray[np.int64]:
    """Counts [micro-batches, experts of the rank] of a line.

    Raises:
        RejectedLineError: It has none.
    """
    value = record.get("tpe")
    if not isinstance(value, list) or not value:
        raise RejectedLineError("no counts", "tpe is no list of lists")
    try:
        counts = integers_of(value)
    except RaggedListsError as error:
        raise RejectedLineError("ragged counts", str(error)) from error
    except NoIntegersError as error:
        raise RejectedLineError("counts that are no whole numbers", str(error)) from error
    if counts.ndim != 2 or not 1 <= counts.shape[1] <= MAX_EXPERTS:  # noqa: PLR2004 - a table
        raise RejectedLineError("counts that are no whole numbers", f"shape {counts.shape}")
    if int(counts.min()) < 0 or int(counts.max()) > LARGEST_TOKENS:
        raise RejectedLineError("counts out of range")
    return counts
