"""Agreement in words of the report, from sums."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from moescope.jobs.reports.comparison.agreement import MARGIN_EDGES, POSITION_EDGES
from moescope.jobs.reports.comparison.intervals import share_of
from moescope.jobs.reports.comparison.schema import (
    Estimate,
    LayerAgreement,
    MarginAgreement,
    Overall,
    PositionAgreement,
    Stability,
)
from moescope.processors.metrics import noise_floor, noise_floor_table, smoothed_reference
from moescope.processors.metrics.divergence import divergence_terms

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moescope.jobs.reports.comparison.agreement import AgreementSums
    from moescope.jobs.reports.comparison.reading import RouteShape


def agreement_by_layer(sums: AgreementSums, shape: RouteShape) -> list[LayerAgreement]:
    """Agreement at each layer, beside what a count metric sees of the same pairs."""
    requests, tokens = len(sums.requests), int(sums.tokens.sum())
    worth = _worth(shape.top_k)
    # Both are smoothed alike, so that equal counts have no divergence, however few they are.
    js, _ = divergence_terms(smoothed_reference(sums.counts_a), smoothed_reference(sums.counts_b))
    floors = noise_floor(noise_floor_table(sums.counts_a, shape.top_k).js, tokens)
    found = []
    for at, layer in enumerate(shape.layers):
        common = sums.common[:, at]
        found.append(
            LayerAgreement(
                layer=layer,
                overlap=_known(share_of(common @ worth.overlap, sums.tokens, requests)),
                jaccard=_known(share_of(common @ worth.jaccard, sums.tokens, requests)),
                same_set=_known(share_of(common[:, -1], sums.tokens, requests)),
                top1=share_of(sums.top1_same[:, at], sums.top1_known[:, at], requests),
                js_divergence=float(js[at].sum()),
                noise_floor=float(floors[at]),
                parts_here=int(sums.first_differing[at]) / tokens,
            )
        )
    return found


def overall(sums: AgreementSums, layers: list[LayerAgreement]) -> Overall:
    """Means over layers, and the share of tokens that agree in all of them."""
    requests, width = len(sums.requests), sums.common.shape[2]
    worth, common = _worth(width - 1), sums.common.sum(axis=1)
    pairs = sums.tokens * len(layers)
    return Overall(
        overlap=_known(share_of(common @ worth.overlap, pairs, requests)),
        jaccard=_known(share_of(common @ worth.jaccard, pairs, requests)),
        same_set=_known(share_of(common[:, -1], pairs, requests)),
        top1=share_of(sums.top1_same.sum(axis=1), sums.top1_known.sum(axis=1), requests),
        all_layers=_known(share_of(sums.agreeing, sums.tokens, requests)),
        worst_layer=min(layers, key=lambda each: each["overlap"]["value"])["layer"],
        largest_js_divergence=max(each["js_divergence"] for each in layers),
    )


def stability(sums: AgreementSums) -> Stability | None:
    """Agreement of later sightings with the first, over all layers; None if there are none."""
    requests, (_, layers, width) = len(sums.requests), sums.common.shape
    common = sums.common.sum(axis=1)
    same = share_of(common @ _worth(width - 1).jaccard, sums.tokens * layers, requests)
    if same is None:
        return None
    return Stability(
        tokens=int(sums.tokens.sum()),
        top1_stability=share_of(sums.top1_same.sum(axis=1), sums.top1_known.sum(axis=1), requests),
        jaccard_stability=same,
    )


def agreement_by_position(sums: AgreementSums) -> list[PositionAgreement]:
    """Agreement at positions with pairs; how far into a request differences build up."""
    worth = _worth(sums.by_position.shape[1] - 1)
    ends = (*(edge - 1 for edge in POSITION_EDGES[1:]), None)
    found = []
    for at, (first, last) in enumerate(zip(POSITION_EDGES, ends, strict=True)):
        agree = share_of(sums.position_agreeing[:, at], sums.position_tokens[:, at])
        if agree is None:
            continue
        common = sums.by_position[at]
        found.append(
            PositionAgreement(
                first=first,
                last=last,
                tokens=int(sums.position_tokens[:, at].sum()),
                overlap=float(common @ worth.overlap / common.sum()),
                all_layers=agree,
            )
        )
    return found


def agreement_by_margin(sums: AgreementSums) -> list[MarginAgreement]:
    """Whether sets differ where the choice was close, and only there."""
    differing = (sums.margin_known - sums.margin_same).sum(axis=0)
    so_far = np.cumsum(differing)
    found = []
    for at, (low, high) in enumerate(zip(MARGIN_EDGES, (*MARGIN_EDGES[1:], None), strict=True)):
        same = share_of(sums.margin_same[:, at], sums.margin_known[:, at])
        if same is not None:
            found.append(
                MarginAgreement(
                    at_least=low,
                    below=high,
                    token_layers=int(sums.margin_known[:, at].sum()),
                    differing=int(differing[at]),
                    same_set=same,
                    differing_so_far=int(so_far[at]) / int(so_far[-1]) if so_far[-1] else None,
                )
            )
    return found


class _Worth(NamedTuple):
    """What |S ∩ T| = 0 … k is worth, float64 [k + 1] each."""

    overlap: NDArray[np.float64]
    jaccard: NDArray[np.float64]


def _worth(top_k: int) -> _Worth:
    common = np.arange(top_k + 1)
    return _Worth(common / top_k, common / (2 * top_k - common))


def _known(estimate: Estimate | None) -> Estimate:
    """An estimate over all pairs, of which there are some."""
    assert estimate is not None  # noqa: S101 - there are pairs
    return estimate
