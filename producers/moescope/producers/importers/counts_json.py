"""Expert counts by model, section, domain and layer: one task per model and domain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.batch import (
    NO_START,
    BatchError,
    BatchHeader,
    Requests,
    RoutingBatch,
    TokenBlocks,
)
from moescope.core.vocabulary import MAX_EXPERTS, Fidelity, Phase, RowFlag
from moescope.producers.importers.errors import ImportFormatError, RejectedLineError
from moescope.producers.importers.format import ImportFormat, ParsedFile
from moescope.producers.importers.json_values import parse_object, shown
from moescope.producers.importers.options import (
    MAX_REJECTED,
    REVISION,
    Option,
    choice,
)
from moescope.producers.importers.source_files import read_document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from moescope.producers.importers.identity import ImportIdentity
    from moescope.producers.importers.report import Rejects

AGGREGATE_PHASE = Phase.EVAL
"""Counts without positions must not form token windows: eval with an unknown start forms none,
and its rows enter task windows like any others."""

_SECTIONS = ("expert_counts", "expert_counts_top1")
_NO_TOP_K = "unknown top-k"
_LARGEST_COUNT = 2**32 - 1
_LARGEST_TOKENS = 2**31 - 1
_LONGEST_LAYER_NAME = 20


def _top_k_by_model(text: str) -> dict[str, int]:
    """`8`, or `olmoe=8,mistral=2`; the empty name stands for all other models."""
    found: dict[str, int] = {}
    for part in text.split(","):
        model, sign, number = part.rpartition("=")
        value = int(number)
        if value < 1 or (sign and not model.strip()):
            message = "It has to be a number from 1, or MODEL=NUMBER pairs."
            raise ValueError(message)
        found[model.strip()] = value
    return found


OPTIONS = (
    Option(
        "section",
        choice({"expert_counts": _SECTIONS[:1], "expert_counts_top1": _SECTIONS[1:],
                "all": _SECTIONS}),
        _SECTIONS[:1],
        "expert_counts (all selections), expert_counts_top1 (first choices, as model "
        "NAME-top1 with top-k 1), or all.",
    ),
    Option(
        "top_k",
        _top_k_by_model,
        {},
        "Experts per token: MODEL=NUMBER pairs, or a number for models of which the file does not "
        "tell it; it does where expert_counts_top1 is given.",
    ),
    REVISION,
    MAX_REJECTED,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Group:
    """Counts of one model and domain.

    Attributes:
        counts: uint32 [L, E]; tokens: Σ counts of a layer / k.
    """

    model: str
    domain: str
    top_k: int
    layers: tuple[int, ...]
    counts: NDArray[np.uint32]
    tokens: int


def parse(
    path: Path,
    identity: ImportIdentity,
    options: Mapping[str, Any],
    rejects: Rejects,
    on_line: Callable[[int], None],
) -> ParsedFile:
    """Read a file of counts; see `docs/reference/importers/counts-json.md`.

    Raises:
        ImportFormatError: It is no JSON object, or no group of it can be used.
    """
    try:
        document = parse_object(read_document(path))
    except RejectedLineError as error:
        raise ImportFormatError(
            f"{path}:1: {error.reason}.",
            why=error.detail,
            next_step="counts-json is an object: model → expert_counts → domain → layer → counts.",
        ) from error
    groups: list[_Group] = []
    for section in options["section"]:
        for model, sections in document.items():
            if isinstance(sections, dict) and section not in sections:
                continue
            groups += _groups_of_model(model, sections, section, options["top_k"], rejects)
    on_line(1)
    batches: list[RoutingBatch] = []
    for group in groups:
        try:
            batches.append(_batch(group, identity, len(batches), options["revision"]))
        except BatchError as error:
            at = f"{group.model}/{group.domain}: {error.what}"
            rejects.add(1, RejectedLineError("counts that no batch can hold", at))
    if not batches:
        raise ImportFormatError(
            f"No counts of {path} can be imported.",
            why=str(rejects.first[0]) if rejects.first else "No model has such a section.",
            next_step=_advice(rejects),
        )
    return ParsedFile(
        batches=batches,
        rows=sum(_tokens_of(batch) for batch in batches),
        requests=len(batches),
        suspicious={},
        notes=("Counts have no positions and no times: they form task windows only.",),
    )


def _advice(rejects: Rejects) -> str:
    """What to check; all models that lack their k at once."""
    lacking = [one.detail.partition(":")[0] for one in rejects.first if one.reason == _NO_TOP_K]
    if not lacking:
        return "Check -o section=… and -o top_k=…"
    given = ",".join(f"{model}=NUMBER" for model in lacking)
    return f"Give the experts per token of each model: -o top_k={given}"


def _groups_of_model(
    model: str,
    sections: Any,
    section: str,
    top_k: Mapping[str, int],
    rejects: Rejects,
) -> Iterator[_Group]:
    try:
        if not isinstance(sections, dict) or not isinstance(sections[section], dict):
            raise RejectedLineError("a model without sections of counts", model)
        is_top1 = section == "expert_counts_top1"
        k = 1 if is_top1 else _top_k(model, sections, top_k)
    except RejectedLineError as error:
        rejects.add(1, error)
        return
    for domain, by_layer in sections[section].items():
        try:
            name = f"{model}-top1" if is_top1 else model
            yield _group(name, domain, by_layer, k)
        except RejectedLineError as error:
            rejects.add(
                1, RejectedLineError(error.reason, f"{model}/{section}/{domain}: {error.detail}")
            )


def _top_k(model: str, sections: dict[str, Any], given: Mapping[str, int]) -> int:
    """The model's k: as given for it, as both sections agree, or as given for all models."""
    if model in given:
        return given[model]
    ratios = set(_ratios(sections.get("expert_counts"), sections.get("expert_counts_top1")))
    if len(ratios) == 1:
        return ratios.pop()
    if "" in given:
        return given[""]
    raise RejectedLineError(_NO_TOP_K, f"{model}: give -o top_k={model}=NUMBER")


def _ratios(selected: Any, first_choices: Any) -> Iterator[int]:
    """Σ counts / Σ first choices of every domain and layer that has both, where it is whole."""
    if not isinstance(selected, dict) or not isinstance(first_choices, dict):
        return
    for domain, by_layer in selected.items():
        other = first_choices.get(domain)
        if not isinstance(by_layer, dict) or not isinstance(other, dict):
            continue
        for layer in by_layer.keys() & other.keys():
            try:
                total, first = sum(_counts(by_layer[layer])), sum(_counts(other[layer]))
            except RejectedLineError:
                continue
            if first and total % first == 0:
                yield total // first


def _group(
    model: str,
    domain: str,
    by_layer: Any,
    top_k: int,
) -> _Group:
    if not isinstance(by_layer, dict) or not by_layer:
        raise RejectedLineError("a domain without layers")
    layers = sorted((_layer(name), name) for name in by_layer)
    if len({layer for layer, _ in layers}) < len(layers):
        raise RejectedLineError("the same layer twice")
    columns = [_counts(by_layer[name]) for _, name in layers]
    if len({len(column) for column in columns}) > 1:
        raise RejectedLineError("layers with different numbers of experts")
    counts = np.array(columns, np.uint32)
    totals = {int(total) for total in counts.sum(axis=1, dtype=np.uint64)}
    if len(totals) > 1:
        raise RejectedLineError("layers with different totals", str(sorted(totals)))
    [total] = totals
    if total % top_k or not 0 < total // top_k <= _LARGEST_TOKENS:
        raise RejectedLineError("counts that are no whole number of tokens", f"{total} / {top_k}")
    if top_k > counts.shape[1] or int(counts.max()) > total // top_k:
        raise RejectedLineError("an expert selected more often than there are tokens")
    return _Group(model, domain, top_k, tuple(layer for layer, _ in layers), counts, total // top_k)


def _layer(name: str) -> int:
    # Python refuses to read a number of thousands of digits.
    is_short = name.isascii() and name.isdecimal() and len(name) <= _LONGEST_LAYER_NAME
    if not (is_short and int(name) <= MAX_EXPERTS):
        raise RejectedLineError("a layer that is no index", shown(name))
    return int(name)


def _counts(values: Any) -> list[int]:
    if not isinstance(values, list) or not 1 <= len(values) <= MAX_EXPERTS:
        raise RejectedLineError("a layer without a list of counts")
    for value in values:
        if type(value) is not int or not 0 <= value <= _LARGEST_COUNT:
            raise RejectedLineError("a count that is no whole number", shown(value))
    return values


def _tokens_of(batch: RoutingBatch) -> int:
    return 0 if batch.token_blocks is None else int(batch.token_blocks.tokens.sum())


def _batch(group: _Group, identity: ImportIdentity, sequence: int, revision: str) -> RoutingBatch:
    name = f"{group.model}/{group.domain}"
    return RoutingBatch(
        header=BatchHeader(
            node=identity.node,
            incarnation=identity.incarnation,
            sequence=sequence,
            model=group.model,
            revision=revision,
            experts=group.counts.shape[1],
            top_k=group.top_k,
            layers=np.array(group.layers, np.uint16),
            engine="import-counts-json",
            fidelity=Fidelity.COUNTS,
        ),
        requests=Requests(
            ids=(name,),
            tasks=(name,),
            scenes=(group.domain,),
            phase_starts=np.full((1, len(Phase)), NO_START, np.int32),
            cached_tokens=np.zeros(1, np.int32),
        ),
        token_blocks=TokenBlocks(
            request=np.zeros(1, np.int32),
            phase=np.full(1, AGGREGATE_PHASE, np.uint8),
            flags=np.full(1, RowFlag.LAST_OF_REQUEST | RowFlag.LAST_OF_TASK, np.uint8),
            start_position=np.zeros(1, np.int32),
            tokens=np.array([group.tokens], np.int32),
            counts=group.counts[None],
        ),
    )


COUNTS_JSON = ImportFormat(
    "counts-json", "Tokens per expert: model, section, domain, layer.", OPTIONS, parse
)
