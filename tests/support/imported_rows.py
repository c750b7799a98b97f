"""What an import wrote, row by row, in tests."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from support.decoded_logs import log_of

from moescope.core.vocabulary import RowFlag

if TYPE_CHECKING:
    from pathlib import Path


class Row(NamedTuple):
    """One counted row."""

    request: str
    position: int
    phase: int
    ids: list[list[int]]
    layers: tuple[int, ...]
    step: int | None


def imported_rows(root: Path) -> list[Row]:
    """Counted rows of all partitions; ids of a layer ascending."""
    found = []
    for batches in log_of(root).values():
        for batch, _ in batches:
            tokens, routes = batch.tokens, batch.routes
            if tokens is None or routes is None:
                continue
            for row in range(len(tokens)):
                if tokens.flags[row] & RowFlag.CONTEXT:
                    continue
                found.append(
                    Row(
                        batch.requests.ids[tokens.request[row]],
                        int(tokens.position[row]),
                        int(tokens.phase[row]),
                        [sorted(part) for part in routes.expert_ids[row].tolist()],
                        tuple(batch.header.layers.tolist()),
                        None if tokens.step is None else int(tokens.step[row]),
                    )
                )
    return found


class Piece(NamedTuple):
    """Counts of one request."""

    request: str
    phase: int
    tokens: int
    step: int | None
    counts: dict[int, list[int]]


def imported_pieces(root: Path) -> list[Piece]:
    """Pieces of counts of all partitions; counts by layer."""
    found = []
    for batches in log_of(root).values():
        for batch, _ in batches:
            blocks = batch.token_blocks
            if blocks is None:
                continue
            for row in range(len(blocks)):
                by_layer = zip(batch.header.layers, blocks.counts[row], strict=True)
                found.append(
                    Piece(
                        batch.requests.ids[blocks.request[row]],
                        int(blocks.phase[row]),
                        int(blocks.tokens[row]),
                        None if blocks.step is None else int(blocks.step[row]),
                        {int(layer): counts.tolist() for layer, counts in by_layer},
                    )
                )
    return found


def example_of(page: Path, language: str) -> str:
    """The first fenced block of a language on a page."""
    found = re.search(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert found, f"{page} has no example in {language}"
    return found[1]


def example_options(page: Path) -> dict[str, str]:
    """Options of the first import command on a page."""
    found = re.search(r"moescope import (.*)", page.read_text(encoding="utf-8"))
    assert found, f"{page} shows no command"
    pairs = [part.partition("=") for part in re.findall(r"-o (\S+)", found[1])]
    return {name: value for name, _, value in pairs}
