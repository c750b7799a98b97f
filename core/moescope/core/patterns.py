"""The patterns that detectors and comparisons name: code, commands and documents share them."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


PAIRING: Final = "`moescope pattern pair`"
COMPARING: Final = "`moescope report compare`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """A shape that windows can take, and what it means.

    Attributes:
        name: What findings and commands call it.
        summary: One sentence: what is going on.
        evidence: What a detector needs to see.
        likely_cause: In words.
        next_step: What to do about it.
        pages: Whether it is a fault that may page somebody.
        paired: Found only by comparing two sets of requests, or two logs, that a person names.
        found_by: What looks for it.
        experimental: Its false alarms are not known well enough to rely on it.
    """

    name: str
    summary: str
    evidence: str
    likely_cause: str
    next_step: str
    pages: bool
    paired: bool = False
    found_by: str = "the job `patterns`"
    experimental: bool = False


PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        name="fixed_prefix",
        summary="Different requests choose the same experts at the same positions.",
        evidence="`positional_agreement` past its red line in at least half of the layers, in two "
        "of three 60 s windows or four of five 5 s windows in a row.",
        likely_cause="Requests begin with the same text (a system prompt, a template), and the "
        "engine computes it again for each of them.",
        next_step="Switch prefix caching on, or check why it misses: with the cache the prefix is "
        "computed once, and the pattern is gone.",
        pages=True,
    ),
    Pattern(
        name="concurrency_collision",
        summary="Requests that run side by side load the same experts.",
        evidence="`request_similarity`, `positional_agreement` and `routing_shift` past their red "
        "lines in at least half of the layers, and `mix_shift` not (requests of one domain are "
        "alike without any fault), in the same window of at most 5 s; two such windows of four in "
        "a row.",
        likely_cause="Requests about one document, or with one prefix, were scheduled together.",
        next_step="Cache the common prefix, or spread such requests over time or replicas.",
        pages=True,
    ),
    Pattern(
        name="late_convergence",
        summary="Long generations narrow to a few experts, the later the more.",
        evidence="In a minute, at least half of the requests that got past their first token "
        "window (at least 5) have a later one with `routing_shift`, `router_entropy` or "
        "`topk_overlap` past its red line in at least half of the layers.",
        likely_cause="Greedy or low-temperature decoding that has fallen into a loop.",
        next_step="Look at what these requests generate; use a repetition penalty, a higher "
        "temperature, or a shorter limit.",
        pages=True,
    ),
    Pattern(
        name="mix_shift",
        summary="The traffic changed, and the router did what it always does with such traffic.",
        evidence="`mix_shift` past its red line in at least half of the layers while "
        "`routing_shift` is not, in three of four time windows in a row.",
        likely_cause="Another share of scenes: a new customer, a batch job, a time of day.",
        next_step="No fault. If it lasts, calibrate anew with the new mix; watch `rank_load`.",
        pages=False,
    ),
    Pattern(
        name="engine_fault",
        summary="What the producer sends cannot be the router's choice.",
        evidence="More than one in a thousand (token, layer) pairs of a node's minute repeat an "
        "expert, name one that does not exist, are all zero, or repeat the row before for long "
        "(generations that loop do that by themselves and do not count).",
        likely_cause="A fused kernel that bypasses the hook, warm-up or padding rows that are not "
        "marked, physical ids, or an overwritten buffer.",
        next_step="`moescope doctor` and the view `coverage` show the node and the reason; "
        "compare the ids with a run of the same prompt without the kernel.",
        pages=True,
    ),
    Pattern(
        name="few_shot_pull",
        summary="Examples in the prompt pull different questions to the same experts.",
        evidence="Paired: the same questions with and without examples. The similarity between "
        "requests is greater with them, by more than relabelling the pairs at random gives in one "
        "of a hundred trials, in at least half of the layers. The small recorded model does not "
        "show it.",
        likely_cause="The examples' form decides the routing of what follows.",
        next_step="Vary the examples, or accept it and calibrate the few-shot scene on its own.",
        pages=False,
        paired=True,
        found_by=PAIRING,
    ),
    Pattern(
        name="framework_skew",
        summary="The engine executes other experts than the router chose.",
        evidence="Paired: the same tokens in a log of origin `model` (what the router chose) and "
        "in one of origin `framework` (what the engine executed). A token with other experts in at "
        "least one layer that both logs have is skew. Where both are of one pass any such token is "
        "a fault; counts hardly show it.",
        likely_cause="Another precision or kernel of the router in the engine, a correction bias "
        "or group limit that one side leaves out, capacity drops, physical ids taken for logical "
        "ones, or, where the logs are of two passes, their rounding.",
        next_step="See in the report at which layer tokens first differ, and at which margins: "
        "close choices alone are rounding; others are another router. Make both sides compute it "
        "alike, and hold that with `--min-all-layers`.",
        pages=False,
        paired=True,
        found_by=COMPARING,
    ),
    Pattern(
        name="periodic_pulse",
        summary="A request's experts come back at a fixed distance.",
        evidence="The lag overlap at some lag of 8 … 64 stands out from its neighbours by more "
        "than in 99 of 100 healthy windows, in at least half of the layers, in three of four "
        "windows in a row.",
        likely_cause="Structured output (JSON records, tables) with a fixed period.",
        next_step="Nothing by itself; look at `request_similarity` if many requests do it at once.",
        pages=False,
        experimental=True,
    ),
    Pattern(
        name="data_order_drift",
        summary="A training run gets its data in an order, and the routing follows.",
        evidence="Against the run's own step windows before: the mix of sources is no longer that "
        "of shuffled data, and the load moves further than it used to, both past the sums that a "
        "shuffled run reaches once in a thousand windows.",
        likely_cause="Data that are sorted, sharded by source, or shuffled in too small a buffer; "
        "or a curriculum.",
        next_step="If it is no curriculum, shuffle across sources; compare the steps that the "
        "finding names with the data loader's log.",
        pages=False,
    ),
    Pattern(
        name="expert_collapse",
        summary="A layer of a training run loses experts.",
        evidence="Against the run's own step windows before: the load entropy of a layer falls "
        "past the sum that a steady run reaches once in a thousand windows, more of its experts "
        "are cold than ever before, and the mix of sources does not explain it. Where sources are "
        "not told, an order of the data can look the same: half the confidence.",
        likely_cause="An auxiliary loss that is too weak or was switched off, a learning rate that "
        "is too high for the router, or a correction bias that runs away.",
        next_step="Look at the layer in `layer_health`, at the auxiliary losses, and at the bias "
        "update; go back to the checkpoint before the first step that the finding names.",
        pages=False,
    ),
)
"""Every pattern that this version can find."""

PATTERN_BY_NAME: Mapping[str, Pattern] = MappingProxyType(
    {pattern.name: pattern for pattern in PATTERNS}
)
