"""Bytes on the wire against log2 C(E, k), the entropy of uniform routing."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, replace
from math import comb, log2
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.figures import Figure, Result
from benchmarks.harness import Scale, main
from benchmarks.logs import payloads, write_simulation
from benchmarks.machine import ROOT
from benchmarks.streams import EXPERTS, LAYERS, TOP_K, Stream, draw_ids, zipf_popularity
from moescope.core.batch import Routes, RoutingBatch
from moescope.core.vocabulary import RowFlag
from moescope.core.wire import decode_batch, encode_batch
from moescope.core.wire.layout import CHECKSUM, ENVELOPE, SECTION_HEAD, SectionId

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

REAL_COUNTS = ROOT / "tests" / "data" / "olmoe_mixtral_expert_counts.json"
REAL_TOKENS = 4096
IDS = (SectionId.RELABELLING, SectionId.GAPS)

TEXT = """
A target is a size relative to log2 C(E, k), what the ids of one token at one layer would take if
every set of k experts were equally likely. *ids* are the sections that hold ids and the order of
experts; *whole batch* adds positions, times, requests, header and checksum. Rows that repeat a
token because a batch needs its predecessor (context rows) are left out of *ids* and *whole batch*:
batches are encoded again without them; *with context rows* is what is really sent, per token that
counts. *Real popularity*: ids drawn at the real per-layer expert frequencies of OLMoE and Mixtral
(three layers, several domains; 4,096 tokens per batch), by Pareto sampling (Rosén 1997): without
replacement within a token, each expert with very nearly its real frequency. Those counts hold no
order of tokens and no pairs of experts, so what neighbouring tokens share is lost; gap planes do
not use it.
"""


@dataclass
class _Sizes:
    tokens: int = 0
    token_layers: int = 0
    ids: int = 0
    whole: int = 0
    sent: int = 0

    def add(self, batch: RoutingBatch, sent: int) -> None:
        assert batch.tokens is not None  # noqa: S101 (narrowing)
        payload = encode_batch(batch)
        self.tokens += len(batch.tokens)
        self.token_layers += len(batch.tokens) * len(batch.header.layers)
        self.ids += ids_bytes(payload)
        self.whole += len(payload)
        self.sent += sent


def ids_bytes(payload: bytes) -> int:
    """Bytes of the sections that hold ids, heads included."""
    name_bytes = ENVELOPE.unpack_from(payload)[3]
    position, total = ENVELOPE.size + name_bytes, 0
    while position < len(payload) - CHECKSUM.size:
        section, _, _, stored, _ = SECTION_HEAD.unpack_from(payload, position)
        if section in IDS:
            total += SECTION_HEAD.size + stored
        position += SECTION_HEAD.size + stored
    return total


def without_context(batch: RoutingBatch) -> RoutingBatch | None:
    """The batch without context rows; None when nothing is left."""
    tokens, routes = batch.tokens, batch.routes
    if tokens is None or routes is None:
        return None
    kept = (tokens.flags & RowFlag.CONTEXT) == 0
    if not kept.any():
        return None
    columns: dict[str, Any] = {
        name: column if column is None else column[kept]
        for name in tokens.__dataclass_fields__
        for column in [getattr(tokens, name)]
    }
    return RoutingBatch(
        header=batch.header,
        requests=batch.requests,
        tokens=replace(tokens, **columns),
        routes=Routes.from_ids(routes.expert_ids[kept], batch.header.experts),
    )


def sizes_of(records: Iterable[bytes]) -> tuple[_Sizes, int, int]:
    """Sizes of a log's batches, and its E and k."""
    sizes, shape = _Sizes(), (0, 0)
    for payload in records:
        batch = without_context(decode_batch(payload))
        if batch is None:
            sizes.sent += len(payload)
            continue
        sizes.add(batch, len(payload))
        shape = (batch.header.experts, batch.header.top_k)
    return sizes, *shape


def pareto_ids(
    tokens: int, frequency: NDArray[np.float64], top_k: int, seed: int
) -> NDArray[np.uint8]:
    """Distinct ids [T, L, k] with given inclusion frequencies [L, E], each layer summing to k.

    Pareto sampling: the k smallest of u/(1 − u) · (1 − λ)/λ. B. Rosén, "On sampling with
    probability proportional to size", Journal of Statistical Planning and Inference 62 (1997).
    """
    rng = np.random.default_rng(seed)
    layers, experts = frequency.shape
    wanted = np.clip(frequency, 1e-6, 1 - 1e-6)
    ids = np.empty((tokens, layers, top_k), np.uint8)
    for layer in range(layers):
        u = rng.random((tokens, experts))
        rank = u / (1 - u) * ((1 - wanted[layer]) / wanted[layer])
        ids[:, layer] = np.argpartition(rank, top_k - 1, axis=1)[:, :top_k]
    return ids


def real_sizes(model: str, top_k: int, tokens: int) -> dict[str, _Sizes]:
    """Sizes per domain of a model of the test data."""
    domains = json.loads(REAL_COUNTS.read_text(encoding="utf-8"))[model]["expert_counts"]
    found = {}
    for seed, (domain, by_layer) in enumerate(domains.items()):
        counts = np.array(list(by_layer.values()), np.float64)
        frequency = counts / counts.sum(axis=1, keepdims=True) * top_k
        ids = pareto_ids(tokens, frequency, top_k, seed)
        found[domain] = _one_batch(ids, counts.shape[1], top_k)
    return found


def _one_batch(ids: NDArray[np.uint8], experts: int, top_k: int) -> _Sizes:
    tokens, layers, _ = ids.shape
    per_request = min(128, tokens)
    stream = Stream(
        tokens // per_request, per_request, tokens // per_request, 100_000,
        layers=layers, experts=experts, top_k=top_k,
    )  # fmt: skip
    stream.__dict__["routes"] = [Routes.from_ids(ids, experts)]
    batch = stream.batch(0)
    sizes = _Sizes()
    sizes.add(batch, len(encode_batch(batch)))
    return sizes


def _figures(name: str, sizes: _Sizes, experts: int, top_k: int) -> list[Figure]:
    bits = log2(comb(experts, top_k))
    relative = f"of log2 C({experts}, {top_k}) = {bits / 8:.2f} bytes"
    ids = 8 * sizes.ids / sizes.token_layers
    whole = 8 * sizes.whole / sizes.token_layers
    figures = [
        Figure(
            what=f"{name}: ids, {ids / 8:.2f} bytes per token and layer", unit=relative,
            values=[ids / bits], better="lower", target=1.10,
        ),
        Figure(
            what=f"{name}: whole batch, {whole / 8:.2f} bytes", unit=relative,
            values=[whole / bits], better="lower",
        ),
    ]  # fmt: skip
    if sizes.sent != sizes.whole:
        sent = 8 * sizes.sent / sizes.token_layers
        figures.append(
            Figure(
                what=f"{name}: with context rows, {sent / 8:.2f} bytes", unit=relative,
                values=[sent / bits], better="lower",
            )
        )  # fmt: skip
    return figures


def measure(scale: Scale) -> Result:
    """Measure the topic."""
    figures: list[Figure] = []
    for scenario in ("healthy", "demo"):
        with tempfile.TemporaryDirectory() as folder:
            seconds = scale.pick(60, 10)
            log = write_simulation(Path(folder), scenario, seconds=seconds, nodes=scale.pick(4, 1))
            sizes, experts, top_k = sizes_of(payloads(log.root))
        figures += _figures(f"simulated fleet, {scenario}", sizes, experts, top_k)
    tokens = scale.pick(REAL_TOKENS, 512)
    for label, skew in (("uniform routing", 0.0), ("Zipf popularity, exponent 1", 1.0)):
        ids = draw_ids(tokens, zipf_popularity(LAYERS, EXPERTS, skew), TOP_K, seed=3)
        figures += _figures(label, _one_batch(ids, EXPERTS, TOP_K), EXPERTS, TOP_K)
    for label, model, experts, top_k in (("OLMoE", "olmoe", 64, 8), ("Mixtral", "mistral", 8, 2)):
        by_domain = real_sizes(model, top_k, tokens)
        worst = max(by_domain, key=lambda domain: by_domain[domain].ids)
        best = min(by_domain, key=lambda domain: by_domain[domain].ids)
        for which, domain in (("largest", worst), ("smallest", best)):
            name = f"real popularity, {label}, {which} of {len(by_domain)} domains ({domain})"
            figures += _figures(name, by_domain[domain], experts, top_k)
    return Result(topic="wire_size", title="Size on the wire", text=TEXT, order=6, figures=figures)


if __name__ == "__main__":
    main("wire_size", measure)
