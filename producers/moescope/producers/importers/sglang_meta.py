"""Responses of an SGLang server that was asked to return routed experts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from moescope.core.batch_checks import MAX_LAYERS, MAX_TOP_K
from moescope.producers.importers.format import ImportFormat, ParsedFile
from moescope.producers.importers.json_responses import as_response, read_responses
from moescope.producers.importers.looking import look_at
from moescope.producers.importers.options import Option, integer
from moescope.producers.importers.sequence_rows import SEQUENCE_OPTIONS, parse_sequences
from moescope.producers.importers.sglang_responses import check_has_routes, sequences_of

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
        "All decoder layers of the model, dense ones included (num_hidden_layers of its config); "
        "the bytes do not tell.",
        example="48",
    ),
    Option(
        "top_k",
        integer(1, MAX_TOP_K),
        None,
        "Experts per token (num_experts_per_tok of its config); the bytes do not tell.",
        example="8",
    ),
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
        ImportFormatError: No response can be used.
    """
    take_apart = partial(
        sequences_of,
        hidden_layers=options["hidden_layers"],
        top_k=options["top_k"],
        experts=options["experts"],
    )
    return parse_sequences(
        path, identity, options, rejects, on_line, take_apart=take_apart, engine="sglang"
    )


def look(path: Path, options: Mapping[str, Any]) -> None:  # noqa: ARG001 (a `LookAtFile`)
    """See whether a file has responses with routes; as `LookAtFile`."""
    look_at(
        path,
        SGLANG_META.name,
        lambda rejects: read_responses(path, rejects),
        lambda response: check_has_routes(as_response(response)),
    )


SGLANG_META = ImportFormat(
    "sglang-meta",
    "Responses of an SGLang server with routed experts, as JSON or JSON lines.",
    OPTIONS,
    parse,
    look=look,
)
