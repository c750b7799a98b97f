"""Responses of a vLLM server that was asked to return routed experts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from moescope.producers.importers.format import ImportFormat, ParsedFile
from moescope.producers.importers.json_responses import as_response, read_responses
from moescope.producers.importers.looking import look_at
from moescope.producers.importers.sequence_rows import SEQUENCE_OPTIONS, parse_sequences
from moescope.producers.importers.vllm_responses import sequences_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from moescope.producers.importers.identity import ImportIdentity
    from moescope.producers.importers.report import Rejects


def parse(
    path: Path,
    identity: ImportIdentity,
    options: Mapping[str, Any],
    rejects: Rejects,
    on_line: Callable[[int], None],
) -> ParsedFile:
    """Read a file of responses; see `docs/reference/importers/vllm-routes.md`.

    Raises:
        ImportFormatError: No response can be used.
    """
    return parse_sequences(
        path,
        identity,
        options,
        rejects,
        on_line,
        take_apart=partial(sequences_of, experts=options["experts"]),
        engine="vllm",
    )


def look(path: Path, options: Mapping[str, Any]) -> None:  # noqa: ARG001 (a `LookAtFile`)
    """See whether a file has responses with routes; as `LookAtFile`."""
    look_at(
        path,
        VLLM_ROUTES.name,
        lambda rejects: read_responses(path, rejects),
        lambda response: list(sequences_of(as_response(response), "response")),
    )


VLLM_ROUTES = ImportFormat(
    "vllm-routes",
    "Responses of a vLLM server with routed experts, as JSON or JSON lines.",
    SEQUENCE_OPTIONS,
    parse,
    look=look,
)
