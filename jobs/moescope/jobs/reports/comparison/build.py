"""Compare two sides, or one with itself: from batch logs to a report."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from moescope.core.errors import InputError, InsufficientDataError
from moescope.core.vocabulary import RankOrder
from moescope.jobs.reports.comparison.agreement import AgreementSums
from moescope.jobs.reports.comparison.pairing import (
    PairingCounts,
    Workspace,
    paired_rows,
    repeated_rows,
)
from moescope.jobs.reports.comparison.reading import (
    Reading,
    SideFacts,
    existing_values,
    shape_of,
    side_rows,
)
from moescope.jobs.reports.comparison.results import (
    agreement_by_layer,
    agreement_by_margin,
    agreement_by_position,
    overall,
    stability,
)
from moescope.jobs.reports.comparison.schema import (
    SCHEMA,
    SCHEMA_VERSION,
    ComparisonReport,
    LimitReport,
    SideReport,
)
from moescope.jobs.reports.comparison.sentences import findings, notes, summary
from moescope.jobs.reports.comparison.spilling import RowParts
from moescope.jobs.reports.comparison.words import some_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moescope.jobs.reports.comparison.reading import JoinBy, RouteShape
    from moescope.jobs.reports.comparison.schema import Estimate, Overall
    from moescope.jobs.reports.comparison.sides import Selection, Side

FEWEST_PAIRS: Final = 100
MEMORY_BYTES: Final = 512 * 1024 * 1024
_BUFFER_SHARE: Final = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """What the agreement has to reach; None asks for nothing.

    Attributes:
        overlap: Of the layer that agrees least.
        all_layers: Share of tokens that agree in all layers.
    """

    overlap: float | None = None
    all_layers: float | None = None


def compare(
    a: Side,
    b: Side | None,
    *,
    by: JoinBy = "content",
    limits: Limits = Limits(),
    fewest_pairs: int = FEWEST_PAIRS,
    memory_bytes: int = MEMORY_BYTES,
    scratch: Path | None = None,
) -> ComparisonReport:
    """Compare the routing of the same tokens.

    Rows are joined on (content key, position), or on (request id, position). The first sighting
    of each side counts. Layers that only one side has (the other may be a pipeline stage) are left
    out, and told. Memory is bounded by `memory_bytes` and one batch, however long the logs
    are; what does not fit lies in temporary files of about 20 + (2 k + 6) · L bytes a row.

    Args:
        a: The reference: its margins and requests are those that the report speaks of.
        b: What is compared with it; None compares first sightings within A with later ones.
        by: What rows are joined on.
        limits: What the agreement has to reach.
        fewest_pairs: With fewer there is no report.
        memory_bytes: For rows.
        scratch: Where temporary files go; the system's place for them.

    Raises:
        InputError: The sides are of different shape, or have no layer, or else rows, in common.
        InsufficientDataError: There are too few pairs.
        BatchLogError: A log cannot be read.
        OSError: The disk refused a temporary file.
    """
    if b is not None and _place(a) == _place(b):
        raise _same_rows("A and B are one log with one selection.")
    if b is None and by == "request":
        raise InputError(
            "Repeats have other request ids each time.",
            next_step="Record content keys, and leave --by out.",
        )
    sides = {"A": a} if b is None else {"A": a, "B": b}
    facts = {name: SideFacts() for name in sides}
    counts = PairingCounts()
    # Before rows are joined: other ways to join them are advised where none can be.
    shape = _common_shape({name: shape_of(side) for name, side in sides.items()})
    reading = Reading(by, () if shape is None else shape.layers)
    with tempfile.TemporaryDirectory(prefix="moescope-compare-", dir=scratch) as name:
        space = Workspace(Path(name), memory_bytes)
        parts = [_dealt(key, side, reading, facts[key], space) for key, side in sides.items()]
        if b is not None and a.selection.overlaps(b.selection):
            _check_apart(facts["A"], facts["B"])
        assert shape is not None  # noqa: S101 (there are rows on both sides)
        sums = AgreementSums(shape)
        again = {name: AgreementSums(shape) for name in sides} if b is not None else {"A": sums}
        found = (
            repeated_rows(parts[0], counts, space)
            if b is None
            else paired_rows(
                parts[0], parts[1], counts, space, lambda name, pairs: again[name].add(pairs)
            )
        )
        for pairs in found:
            sums.add(pairs)
    if counts.pairs < max(1, fewest_pairs):
        raise _too_few(counts, facts, by, fewest_pairs)
    return _report(_Compared(sides, by, shape, facts, counts, sums, again), limits)


def _place(side: Side) -> tuple[Path, tuple[str, ...], Selection]:
    return side.root.resolve(), side.partitions, side.selection


def _check_apart(a: SideFacts, b: SideFacts) -> None:
    """A batch on both sides agrees with itself, wherever its copy lies.

    Raises:
        InputError: There is one.
    """
    shared = np.intersect1d(
        np.frombuffer(a.batches, np.uint64), np.frombuffer(b.batches, np.uint64)
    )
    if len(shared):
        raise _same_rows(
            f"{len(shared):,} of the {len(set(a.batches)):,} batches of A are in B, too: by node, "
            "incarnation and sequence number they are the same. One log is a copy of the other, or "
            "a part of it."
        )


def _same_rows(why: str) -> InputError:
    return InputError(
        "Both sides are the same rows.",
        why=why,
        next_step="Name logs of two runs, tell the sides apart with --a and --b, or give "
        "--repeats.",
    )


class _Compared(NamedTuple):
    """What a report is made from, by side: A, and B unless A is compared with itself."""

    sides: dict[str, Side]
    by: JoinBy
    shape: RouteShape
    facts: dict[str, SideFacts]
    counts: PairingCounts
    sums: AgreementSums
    again: dict[str, AgreementSums]


def _dealt(name: str, side: Side, reading: Reading, facts: SideFacts, space: Workspace) -> RowParts:
    """All rows of a side in parts.

    Raises:
        InsufficientDataError: There is none.
    """
    parts = None
    for rows in side_rows(side, reading, facts, name):
        if parts is None:
            own = space.folder / name
            own.mkdir()
            parts = RowParts(own, rows.dtype, buffer_bytes=space.memory_bytes // _BUFFER_SHARE)
        parts.add(rows)
    if parts is None:
        raise _no_rows(name, side, facts)
    return parts


def _common_shape(shapes: Mapping[str, RouteShape | None]) -> RouteShape | None:
    """The shape of all sides that have one, with the layers that all of them have.

    Raises:
        InputError: Two differ in more than layers, or have no layer in common.
    """
    known = {name: shape for name, shape in shapes.items() if shape is not None}
    if not known:
        return None
    first, *others = known.values()
    told = " ".join(f"{name}: {shape.words()}." for name, shape in known.items())
    if any(other._replace(layers=first.layers) != first for other in others):
        raise InputError(
            "The two sides are of different shape.",
            why=told,
            next_step="Compare logs of one architecture and one kind of ids.",
        )
    both = set(first.layers).intersection(*(other.layers for other in others))
    if not both:
        raise InputError(
            "The two sides have no layer in common.",
            why=told,
            next_step="Compare a pipeline stage with the same stage, or with a log of all layers.",
        )
    return first._replace(layers=tuple(layer for layer in first.layers if layer in both))


def _no_rows(name: str, side: Side, facts: SideFacts) -> InsufficientDataError:
    if facts.keyless_rows:
        return InsufficientDataError(
            f"Side {name} has {facts.keyless_rows:,} rows, and none with a content key.",
            why="Rows are joined on (content key, position).",
            next_step="If both sides have the same request ids, join on those: --by request. Else "
            "record with content keys: MOESCOPE_CONTENT_KEY_FILE with vLLM, "
            "attach(…, content_key=…) with the torch probe and training loops, "
            "RoutingCallback(…, content_key=…) with transformers' Trainer.",
        )
    reasons = {
        "batches of counts fidelity, which hold no rows": facts.count_batches,
        "faulty rows": facts.faulty_rows,
        "rows that never count (context, padding, recomputed, warm-up, draft)": (
            facts.uncounted_rows
        ),
        "unreadable records": facts.log.unreadable_records,
    }
    found = ", ".join(f"{number:,} {what}" for what, number in reasons.items() if number)
    asked = side.selection.conditions()
    there = "; ".join(f"{key}: {some_of(has)}" for key, has in existing_values(side).items())
    why = [f"It has {found}."] if found else []
    if facts.log.tail_bytes:
        why.append(facts.log.tail_words())
    if asked:
        why += ["No row satisfies its conditions."] if not why else []
        why += [f"The log has {there}."]
    return InsufficientDataError(
        f"Side {name} has no row to compare.",
        why=" ".join(why) or "Its log holds no routes.",
        next_step="Restore the log from a copy, or record again: damaged records cannot be mended."
        if facts.log.is_damaged
        else "Check the path and the conditions; record with fidelity full.",
    )


def _too_few(
    counts: PairingCounts, facts: dict[str, SideFacts], by: JoinBy, fewest: int
) -> InsufficientDataError:
    lost = "".join(f" {words}" for name, side in facts.items() if (words := side.log.words(name)))
    if len(facts) == 1:
        return InsufficientDataError(
            f"Only {counts.pairs:,} of A's {facts['A'].rows:,} rows are repeats; "
            f"at least {fewest:,} are needed.",
            why="A repeat has the content key and position of an earlier row. What comes from a"
            f" prefix cache is never computed again.{lost}",
            next_step="Send the same prompts again with prefix caching off.",
        )
    why = (
        f"A has {facts['A'].rows:,} rows, {counts.a_unmatched:,} of them unmatched; "
        f"B has {facts['B'].rows:,}, {counts.b_unmatched:,} unmatched."
    )
    if counts.other_content:
        why += (
            f" {counts.other_content:,} more have the same request and position, but other content"
            " keys: other tokens, or keys made with another secret."
        )
    advice = (
        "Check that both sides computed the same prompts and made their keys with the same secret."
        if by == "content"
        else "Check that both sides use the same request ids; vLLM's begin with cmpl- or chatcmpl-."
    )
    return InsufficientDataError(
        f"Only {counts.pairs:,} tokens are on both sides; at least {fewest:,} are needed.",
        why=why + lost,
        next_step=advice,
    )


def _report(compared: _Compared, limits: Limits) -> ComparisonReport:
    sides, by, shape, facts, counts, sums, _ = compared
    layers = agreement_by_layer(sums, shape)
    whole = overall(sums, layers)
    report = ComparisonReport(
        schema=SCHEMA,
        schema_version=SCHEMA_VERSION,
        mode="pairs" if "B" in sides else "repeats",
        by=by,
        a=_side(compared, "A", counts.a_unmatched, counts.a_duplicates),
        b=_side(compared, "B", counts.b_unmatched, counts.b_duplicates) if "B" in sides else None,
        experts=shape.experts,
        top_k=shape.top_k,
        layer_indices=list(shape.layers),
        tokens=counts.pairs,
        requests=len(sums.requests),
        other_content=counts.other_content,
        overall=whole,
        layers=layers,
        by_position=agreement_by_position(sums),
        by_margin=agreement_by_margin(sums) if facts["A"].has_margins else None,
        differing_layers=sums.differing_layers.tolist(),
        limits=_limits(limits, whole, min((each["overlap"] for each in layers), key=_value)),
        findings=[],
        notes=[],
        summary=[],
    )
    report["notes"] = notes(report)
    report["findings"] = findings(report)
    report["summary"] = summary(report)
    return report


def _value(estimate: Estimate) -> float:
    return estimate["value"]


def _side(compared: _Compared, name: str, unmatched: int, duplicates: int) -> SideReport:
    side, facts = compared.sides[name], compared.facts[name]
    recorded = () if facts.shape is None else facts.shape.layers
    return SideReport(
        path=str(side.path),
        selection=side.selection.words(),
        models=sorted(facts.models),
        revisions=sorted(facts.revisions),
        nodes=sorted(facts.nodes),
        engines=sorted(filter(None, facts.engines)),
        origins=sorted(facts.origins),
        rank_orders=[RankOrder(order).name.lower() for order in sorted(facts.rank_orders)],
        left_out_layers=[layer for layer in recorded if layer not in compared.shape.layers],
        rows=facts.rows,
        unmatched=unmatched,
        duplicates=duplicates,
        faulty_rows=facts.faulty_rows,
        keyless_rows=facts.keyless_rows,
        uncounted_rows=facts.uncounted_rows,
        count_batches=facts.count_batches,
        records=facts.log.records,
        unreadable_records=facts.log.unreadable_records,
        removed_records=facts.log.removed_records,
        log_bytes=facts.log.log_bytes,
        unreadable_bytes=facts.log.unreadable_bytes,
        tail_bytes=facts.log.tail_bytes,
        # One request and position with other tokens would be taken for the same one.
        stability=stability(compared.again[name]) if compared.by == "content" else None,
    )


def _limits(limits: Limits, whole: Overall, worst: Estimate) -> list[LimitReport]:
    asked = (
        ("overlap of the layer that agrees least", limits.overlap, worst),
        ("tokens that agree in all layers", limits.all_layers, whole["all_layers"]),
    )
    return [
        LimitReport(
            name=name,
            limit=limit,
            value=found["value"],
            met=found["value"] >= limit,
            within_chance=found["low"] is None
            or found["high"] is None
            or found["low"] <= limit <= found["high"],
        )
        for name, limit, found in asked
        if limit is not None
    ]
