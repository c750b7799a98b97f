"""Which layers and experts a rank of a Megatron run has, and reading its files line by line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moescope.core.batch_checks import MAX_LAYERS
from moescope.producers.importers.errors import ImportFormatError, RejectedLineError
from moescope.producers.importers.json_values import as_integer, parse_object, shown
from moescope.producers.importers.options import Option, integer, layer_list
from moescope.producers.importers.source_files import read_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from moescope.producers.importers.report import Rejects

LARGEST_RANK = 2**20
LARGEST_STEP = 2**53
_REPORT_EVERY = 1024

STAGE_STARTS = Option(
    "stage_starts",
    layer_list,
    (0,),
    "First decoder layer of each pipeline stage, such as 0,8,16,24: ranks number the layers of "
    "their own stage from 0.",
)
WORLD_SIZE = Option(
    "world_size",
    integer(1, LARGEST_RANK),
    None,
    "Ranks of the run; by default the highest rank of the files and one.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterName:
    """Which router of the model a line is about.

    Attributes:
        head: Number of the multi-token-prediction head, −1 in the decoder.
        layer: In the decoder of the whole model; of a head, as the file has it.
    """

    head: int
    layer: int


@dataclass(frozen=True, slots=True)
class Stages:
    """Pipeline stages of a run: consecutive ranks, as many in each.

    Attributes:
        starts: First decoder layer of each stage.
        ranks: Of a stage.
    """

    starts: tuple[int, ...]
    ranks: int

    @classmethod
    def of(cls, options: Mapping[str, Any], highest_rank: int, path: Path) -> Stages:
        """Stages as the options give them.

        Raises:
            ImportFormatError: The ranks cannot be divided into so many stages.
        """
        world = options["world_size"] or highest_rank + 1
        starts = options["stage_starts"]
        if world % len(starts) or highest_rank >= world:
            raise ImportFormatError(
                f"{path}: {world} ranks cannot be {len(starts)} stages.",
                why=f"The highest rank in the files is {highest_rank}.",
                next_step="Give -o world_size=… and -o stage_starts=… as the run had them.",
            )
        return cls(starts, world // len(starts))

    def place(self, rank: int, router: RouterName) -> tuple[int, RouterName]:
        """The rank within its stage, and the router with its layer in the whole model."""
        stage, within = divmod(rank, self.ranks)
        if router.head >= 0:
            return within, router
        layer = self.starts[stage] + router.layer
        if stage + 1 < len(self.starts) and layer >= self.starts[stage + 1]:
            raise RejectedLineError(
                "a layer of the next stage", f"layer {router.layer} of stage {stage}"
            )
        return within, RouterName(head=-1, layer=layer)


def read_records(
    files: Sequence[Path], rejects: Rejects, on_line: Callable[[int], None]
) -> Iterator[tuple[Path, int, dict[str, Any]]]:
    """Objects of files of JSON lines, with file and line; other lines are rejected.

    Raises:
        ImportFormatError: A file cannot be read.
    """
    for file in files:
        for line, text in read_lines(file, rejects):
            if line % _REPORT_EVERY == 0:
                on_line(line)
            try:
                record = parse_object(text)
            except RejectedLineError as error:
                rejects.add(line, error, file)
                continue
            yield file, line, record


def router_of(record: dict[str, Any]) -> RouterName:
    """Which router a line is about.

    Raises:
        RejectedLineError: It does not say, or names a block that is not known.
    """
    layer = as_integer(record.get("layer"), "layer", MAX_LAYERS)
    block = record.get("block", "decoder")
    if block == "decoder":
        return RouterName(head=-1, layer=layer)
    if block != "mtp":
        raise RejectedLineError("an unknown block", shown(block))
    head = as_integer(record.get("mtp_idx", 0), "mtp_idx", MAX_LAYERS)
    return RouterName(head=head, layer=layer)


def layers_of(routers: Sequence[RouterName]) -> tuple[int, ...]:
    """Layer numbers of routers in order: of the decoder its layers, of heads a count from 0."""
    if routers and routers[0].head >= 0:
        return tuple(range(len(routers)))
    return tuple(router.layer for router in routers)
