"""Several emissions that follow each other as one: one transaction instead of many."""

from __future__ import annotations

from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING

from moescope.core.emission import Emission
from moescope.storage.histogram_rows import add_histograms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moescope.core.accounts import NodeStatus, PartitionProgress
    from moescope.core.emission import Histograms


def merged(
    emissions: Sequence[Emission],
    read_to: Mapping[str, int],
    unread: frozenset[str],
    handled_to: Mapping[str, int] = MappingProxyType({}),
) -> Emission:
    """One emission that has the effect of several, applied one after the other.

    Args:
        emissions: In order.
        read_to: How far the topic is read with them.
        unread: Partitions that are waited for.
        handled_to: Up to where all that ends there is in them.
    """
    progress: dict[str, PartitionProgress] = {}
    nodes: dict[tuple[str, str, int], NodeStatus] = {}
    histograms: Histograms = {}
    for emission in emissions:
        progress |= {each.partition: each for each in emission.progress}
        nodes |= {(each.partition, each.node, each.incarnation): each for each in emission.nodes}
        add_histograms(histograms, emission.histograms)
    return Emission(
        progress=tuple(progress.values()),
        windows=tuple(chain.from_iterable(each.windows for each in emissions)),
        histograms=histograms,
        deltas=tuple(chain.from_iterable(each.deltas for each in emissions)),
        batches=tuple(chain.from_iterable(each.batches for each in emissions)),
        dead_letters=tuple(chain.from_iterable(each.dead_letters for each in emissions)),
        placements=tuple(chain.from_iterable(each.placements for each in emissions)),
        references=tuple(chain.from_iterable(each.references for each in emissions)),
        nodes=tuple(nodes.values()),
        dead_letter_counts=tuple(
            chain.from_iterable(each.dead_letter_counts for each in emissions)
        ),
        unread=unread,
        read_to=read_to,
        handled_to=handled_to,
    )
