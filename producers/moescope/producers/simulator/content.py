"""What requests say, as far as a router sees it: rows (request, position) → expert ids.

Everything is a function of the content's seed and the position in it. Two requests with the
same prefix seed take the same route through the prefix; a generation that loops repeats its
routes; cutting the rows differently changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moescope.producers.simulator.hashing import combine, mix, seed_from, unit_interval
from moescope.producers.simulator.model import DOMAINS
from moescope.producers.simulator.router import FAVOURITE_TABLE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moescope.producers.simulator.model import RouterSpec
    from moescope.producers.simulator.requests import RequestTable
    from moescope.producers.simulator.router import ExpertIds, Router

_PULL_BITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowContent:
    """What T rows say.

    Attributes:
        pull_seed: uint64 [T], seed of the favourite experts.
        pull_domain: intp [T], domain whose preferences the favourites are drawn from.
        forced_pull: float64 [T], share of pairs pulled to a favourite; 0: the seed decides.
        place: int64 [T], place in the content that `pull_seed` belongs to.
        domain, topic: intp [T].
        stretch_hash: uint64 [T], the same within a stretch of coherent text.
    """

    pull_seed: NDArray[np.uint64]
    pull_domain: NDArray[np.intp]
    forced_pull: NDArray[np.float64]
    place: NDArray[np.int64]
    domain: NDArray[np.intp]
    topic: NDArray[np.intp]
    stretch_hash: NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRoutes:
    """Routes of T rows.

    Attributes:
        ids: uint8 or uint16 [T, L, k], by falling selection score.
        entropy: float32 [T, L], nats; None unless the router works it out.
    """

    ids: ExpertIds
    entropy: NDArray[np.float32] | None


def route_rows(
    router: Router,
    table: RequestTable,
    request: NDArray[np.intp],
    position: NDArray[np.int64],
) -> RowRoutes:
    """Expert ids of T rows.

    Args:
        router: The state of the router in force for these rows.
        table: Contents by request index.
        request: intp [T], index into `table`.
        position: int64 [T].
    """
    spec, model = router.spec, router.model
    content = _content_of_rows(spec, table, request, position)
    factors = _layer_factors(router.seed, len(model.layers))
    topic_tokens = spec.pool_tokens // spec.topics
    shift = np.uint64(64 - (topic_tokens.bit_length() - 1))
    walk = (content.stretch_hash[:, None] * factors) >> shift
    walk += content.place[:, None].astype(np.uint64)
    walk &= np.uint64(topic_tokens - 1)
    layer_base = np.arange(len(model.layers)) * (len(DOMAINS) * spec.pool_tokens)
    rows = walk.astype(np.intp)
    rows += layer_base[None, :]
    rows += (content.domain * spec.pool_tokens + content.topic * topic_tokens)[:, None]
    ids = np.take(router.routes, rows, axis=0)
    _pull_to_favourites(router, ids, content, factors)
    entropy = None if router.entropy is None else np.take(router.entropy, rows)
    return RowRoutes(ids=ids, entropy=entropy)


def _content_of_rows(
    spec: RouterSpec, table: RequestTable, request: NDArray[np.intp], position: NDArray[np.int64]
) -> _RowContent:
    column = table.column
    period = column("loop_period")[request]
    start = column("loop_start")[request]
    looping = (period > 0) & (position >= start)
    place = np.where(looping, start + (position - start) % np.maximum(period, 1), position)
    prefix = column("prefix_tokens")[request]
    in_prefix = place < prefix
    place = np.where(in_prefix, place, place - prefix)
    seed = np.where(in_prefix, column("prefix_seed")[request], column("content_seed")[request])
    pull_seed = np.where(in_prefix, seed, column("pull_seed")[request])
    phase_of_content = (seed >> np.uint64(40)).astype(np.int64) % spec.stretch
    stretch_hash = combine(seed, ((place + phase_of_content) // spec.stretch).astype(np.uint64))
    digression = unit_interval(mix(stretch_hash)) < column("second_share")[request]
    domain = np.where(digression, column("second_domain")[request], column("domain")[request])
    domain = np.where(in_prefix, column("prefix_domain")[request], domain)
    half = column("pulse_half_period")[request]
    generated = position - column("prompt_tokens")[request]
    in_pulse = (half > 0) & (generated >= 0) & (generated // np.maximum(half, 1) % 2 == 1)
    domain = np.where(in_pulse, column("pulse_domain")[request], domain).astype(np.intp)
    forced_pull = np.where(in_prefix, 0.0, column("forced_pull")[request])
    pull_domain = np.where(forced_pull > 0, column("prefix_domain")[request], domain)
    return _RowContent(
        pull_seed=pull_seed,
        pull_domain=pull_domain.astype(np.intp),
        forced_pull=forced_pull,
        place=place,
        domain=domain,
        topic=_topics(seed, stretch_hash, spec.topics),
        stretch_hash=stretch_hash,
    )


def _topics(
    seed: NDArray[np.uint64], stretch_hash: NDArray[np.uint64], topics: int
) -> NDArray[np.intp]:
    """Of each row's stretch: one of the two topics that its content mixes, intp [T]."""
    taste = mix(seed ^ np.uint64(0x5C))
    main_share = unit_interval(mix(taste))
    on_main = unit_interval(mix(stretch_hash + np.uint64(1))) < main_share
    chosen = np.where(on_main, taste, taste >> np.uint64(32))
    return (chosen % np.uint64(topics)).astype(np.intp)


def _layer_factors(seed: int, layers: int) -> NDArray[np.uint64]:
    return mix(np.arange(layers, dtype=np.uint64) + np.uint64(seed_from(seed, 3))) | np.uint64(1)


def _pull_to_favourites(
    router: Router, ids: ExpertIds, content: _RowContent, factors: NDArray[np.uint64]
) -> None:
    """Replace, in place, one expert of some (row, layer) pairs by a favourite of the request."""
    spec, model = router.spec, router.model
    pull_seed = content.pull_seed
    taste = unit_interval(mix(pull_seed)) ** 2 * spec.request_pull
    share = np.where(content.forced_pull > 0, content.forced_pull, taste)
    draw = combine(pull_seed, content.place.astype(np.uint64))[:, None] * factors
    limit = (share * (1 << _PULL_BITS)).astype(np.uint64)
    row, layer = np.nonzero((draw >> np.uint64(64 - _PULL_BITS)) < limit[:, None])
    if not len(row):
        return
    bits = mix(draw[row, layer])
    which = bits % np.uint64(spec.favourites)
    favourite_hash = combine(pull_seed[row] ^ which, factors[layer])
    cell = (favourite_hash >> np.uint64(32)).astype(np.intp) % FAVOURITE_TABLE
    cell += (layer * len(DOMAINS) + content.pull_domain[row]) * FAVOURITE_TABLE
    favourite = router.favourites[cell]
    absent = ~(ids[row, layer] == favourite[:, None]).any(axis=1)
    slot = (bits >> np.uint64(48)).astype(np.intp) % model.top_k
    ids[row[absent], layer[absent], slot[absent]] = favourite[absent]
