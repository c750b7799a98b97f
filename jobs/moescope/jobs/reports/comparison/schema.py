"""What a comparison says, as plain data: the JSON file and the page are made from it alone."""

from __future__ import annotations

from typing import Final, TypedDict

SCHEMA: Final = "moescope.comparison"
SCHEMA_VERSION: Final = 1


class Estimate(TypedDict):
    """A share with its 95 % interval; no bounds when there are fewer than two requests."""

    value: float
    low: float | None
    high: float | None


class Stability(TypedDict):
    """How far a side agrees with itself: tokens seen again with the same content key.

    Attributes:
        tokens: Later sightings, each compared with the first.
        top1_stability: Share with one top-1, over all layers; None where rank order is unknown.
        jaccard_stability: Mean |S ∩ T| / (2k − |S ∩ T|), over all layers.
    """

    tokens: int
    top1_stability: Estimate | None
    jaccard_stability: Estimate


class SideReport(TypedDict):
    """What was read of a side.

    Attributes:
        path, selection: As given.
        models, revisions, nodes, engines, origins, rank_orders: What the headers say, sorted; a
            recorder that was given no name of its engine has none.
        left_out_layers: Layers of it that the other side does not have.
        rows: Counted tokens that could be paired.
        stability: None where nothing was seen again, or rows were not joined on content keys.
        unmatched, duplicates: First sightings without a partner; later sightings, left out.
        faulty_rows: Left out: an expert twice in a layer, or one that does not exist.
        keyless_rows: Left out: no content key.
        uncounted_rows: Left out: context, padding, recomputed, warm-up and draft rows.
        count_batches: Batches of counts fidelity, which hold no rows.
        records: Of the log, whatever became of them.
        unreadable_records: Of these damaged, or removed by the byte cap.
        removed_records: Of those removed by the byte cap.
        log_bytes: Of the log, as far as it is still there.
        unreadable_bytes: Of these, those of damaged records.
        tail_bytes: Of these, those behind the last complete record, damaged or just being written.
    """

    path: str
    selection: str
    models: list[str]
    revisions: list[str]
    nodes: list[str]
    engines: list[str]
    origins: list[str]
    rank_orders: list[str]
    left_out_layers: list[int]
    rows: int
    unmatched: int
    duplicates: int
    faulty_rows: int
    keyless_rows: int
    uncounted_rows: int
    count_batches: int
    records: int
    unreadable_records: int
    removed_records: int
    log_bytes: int
    unreadable_bytes: int
    tail_bytes: int
    stability: Stability | None


class LayerAgreement(TypedDict):
    """Agreement at one layer.

    Attributes:
        overlap: Mean |S ∩ T| / k.
        jaccard: Mean |S ∩ T| / (2k − |S ∩ T|).
        same_set: Share of tokens with S = T.
        top1: Share of tokens with one top-1; None where rank order is unknown.
        js_divergence: Of both sides' counts of the same tokens, base 2, each smoothed by half an
            assignment per expert: what a count metric can see.
        noise_floor: That of the metric `js_divergence` for a window of as many tokens: what chance
            alone makes.
        parts_here: Share of the tokens for which this is the first layer that differs.
    """

    layer: int
    overlap: Estimate
    jaccard: Estimate
    same_set: Estimate
    top1: Estimate | None
    js_divergence: float
    noise_floor: float
    parts_here: float


class Overall(TypedDict):
    """Agreement over all layers: means, and the share of tokens that agree everywhere."""

    overlap: Estimate
    jaccard: Estimate
    same_set: Estimate
    top1: Estimate | None
    all_layers: Estimate
    worst_layer: int
    largest_js_divergence: float


class PositionAgreement(TypedDict):
    """Agreement at positions `first` … `last` (None: no end)."""

    first: int
    last: int | None
    tokens: int
    overlap: float
    all_layers: Estimate


class MarginAgreement(TypedDict):
    """(token, layer) pairs by side A's margin, from `at_least` to under `below` (None: no end).

    Attributes:
        token_layers: How many.
        differing: Of them with other sets.
        same_set: Share with equal sets.
        differing_so_far: Share of all differing pairs with a margin under `below`.
    """

    at_least: float
    below: float | None
    token_layers: int
    differing: int
    same_set: Estimate
    differing_so_far: float | None


class LimitReport(TypedDict):
    """One limit, and whether it was met.

    Attributes:
        within_chance: The limit lies inside the value's interval.
    """

    name: str
    limit: float
    value: float
    met: bool
    within_chance: bool


class FindingText(TypedDict):
    """Something that the comparison shows, by the name of a declared pattern.

    Attributes:
        likely_cause, next_step: As the pattern says; None where it was looked for and is not there.
    """

    name: str
    text: str
    likely_cause: str | None
    next_step: str | None


class ComparisonReport(TypedDict):
    """Everything.

    Attributes:
        mode: `pairs` of two sides, or `repeats` within one.
        by: `content` or `request`.
        tokens: Pairs.
        requests: Of side A that have a pair.
        other_content: Pairs by request whose content keys differ, left out.
        differing_layers: Pairs by how many layers differ, 0 … L.
        notes: What to know before any number is read: the sides are of other models or revisions,
            or a log is not whole.
    """

    schema: str
    schema_version: int
    mode: str
    by: str
    a: SideReport
    b: SideReport | None
    experts: int
    top_k: int
    layer_indices: list[int]
    tokens: int
    requests: int
    other_content: int
    overall: Overall
    layers: list[LayerAgreement]
    by_position: list[PositionAgreement]
    by_margin: list[MarginAgreement] | None
    differing_layers: list[int]
    limits: list[LimitReport]
    findings: list[FindingText]
    notes: list[str]
    summary: list[str]
