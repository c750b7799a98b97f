"""The formats that can be imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moescope.producers.importers.counts_json import COUNTS_JSON
from moescope.producers.importers.errors import ImportFormatError
from moescope.producers.importers.jsonl import JSONL
from moescope.producers.importers.megatron_counts import MEGATRON_COUNTS
from moescope.producers.importers.megatron_trace import MEGATRON_TRACE
from moescope.producers.importers.sglang_meta import SGLANG_META
from moescope.producers.importers.sglang_records import SGLANG_RECORDS
from moescope.producers.importers.vllm_routes import VLLM_ROUTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moescope.producers.importers.format import ImportFormat

FORMATS: Final[Mapping[str, ImportFormat]] = {
    known.name: known
    for known in (
        JSONL,
        VLLM_ROUTES,
        SGLANG_META,
        SGLANG_RECORDS,
        MEGATRON_TRACE,
        MEGATRON_COUNTS,
        COUNTS_JSON,
    )
}


def format_named(name: str) -> ImportFormat:
    """A format of the registry.

    Raises:
        ImportFormatError: There is none of that name.
    """
    if name not in FORMATS:
        raise ImportFormatError(
            f"There is no import format {name!r}.", next_step=f"Choose from {', '.join(FORMATS)}."
        )
    return FORMATS[name]
