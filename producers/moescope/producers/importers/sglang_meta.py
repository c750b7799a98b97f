"""Responses of an SGLang server that was asked to return routed experts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from moescope.core.batch_checks import MAX_LAYERS, MAX_TOP_K
from moescope.producers.importers.errors import ImportFormatError
from moescope.producers.importers.format import ImportFormat, ParsedFile
from moescope.producers.importers.options import Option, integer
from moescope.producers.importers.sequence_rows import SEQUENCE_OPTIONS, parse_sequences
from moescope.producers.importers.sglang_responses import sequences_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from moescope.producers.importers.identity import ImportIdentity
    from moescope.producers.importers.report import Rejects

OPTIONS = (
    Option(
        "hidden_layers",
        integer(1, MAX_LAYERS),
        None,
        "All decoder layers of the model, dense ones included; the bytes do not tell.",
    ),
    Option("top_k", integer(1, MAX_TOP_K), None, "Experts per token; the bytes do not tell."),
    *SEQUENCE_OPTIONS,
)


def parse(
    path: Path,
    identity: ImportIdentity,
    options: Mapping[str, Any],
    rejects: Rejects,
    on_line: Callable[[int], None],
) -> ParsedFile:
    """Read a file of responses; see `docs/reference/importers/sglang-meta.md`.

    Raises:
        ImportFormatError: Layers, experts or k are not given, or no response can be used.
    """
    if options["hidden_layers"] is None or options["top_k"] is None:
        raise ImportFormatError(
            f"The shape of the routes of {path} is not known.",
            why="They are numbers without a header.",
            next_step="Give num_hidden_layers and num_experts_per_tok of the model's config, for "
            "example -o hidden_layers=48 -o top_k=8.",
        )
    take_apart = partial(
        sequences_of,
        hidden_layers=options["hidden_layers"],
        top_k=options["top_k"],
        experts=options["experts"],
    )
    return parse_sequences(
        path, identity, options, rejects, on_line, take_apart=take_apart, engine="sglang"
    )


SGLANG_META = ImportFormat(
    "sglang-meta",
    "Responses of an SGLang server with routed experts, as JSON or JSON lines.",
    OPTIONS,
    parse,
)
