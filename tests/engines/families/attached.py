"""One pass of a model that a probe is attached to, and the rows that arrive in its batch log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from moescope.core.batchlog import BatchLogReader
from moescope.core.quantise import entropies_of, margins_of, weights_of
from moescope.core.wire import decode_batch
from moescope.producers import Recorder, attach
from moescope.producers.agent import Agent
from moescope.producers.torch_probe import ProbeCounters, RequestFacts, probe_of, router_shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from moescope.core.batch import RoutingBatch

RING_BYTES = 1 << 18


class Rows(NamedTuple):
    """Recorded rows of one pass, request by request, each by ascending position.

    Attributes:
        request: str [T].
        position: int [T].
        phase: int [T].
        top1: int [T, L].
        ids: int [T, L, k], ascending.
        weights: [T, L, k], of the same experts.
        dropped: bool [T, L, k], likewise; all False where the batch says nothing of it.
        entropy: [T, L].
        margin: [T, L].
    """

    request: list[str]
    position: list[int]
    phase: list[int]
    top1: NDArray[np.int64]
    ids: NDArray[np.int64]
    weights: NDArray[np.float64]
    dropped: NDArray[np.bool_]
    entropy: NDArray[np.float64]
    margin: NDArray[np.float64]


def recorded(
    model: Any, forward: Callable[[], Any], requests: Sequence[str], folder: Path
) -> tuple[Rows, ProbeCounters, Any]:
    """Attach to a model and run one pass of these requests: its rows, what was counted, its output.

    Args:
        model: With transformers' or OLMo-core's routers.
        forward: One forward of it.
        requests: One for each row of the batch.
        folder: For the ring and the log.
    """
    shape = router_shape(model)
    with Recorder(
        model="tiny", revision="r1", layers=shape.layers, experts=shape.experts,
        top_k=shape.top_k, rank_order=shape.rank_order, score_kind=shape.score_kind,
        weight_bits=16, directory=folder / "rings", node="node", ring_bytes=RING_BYTES,
    ) as recorder:  # fmt: skip
        with attach(model, recorder, weights=True) as probe:
            assert probe_of(model) is probe
            with probe.batch([RequestFacts(id=request) for request in requests]):
                output = forward()
        counters = probe.counters
    assert probe_of(model) is None
    with Agent(folder / "rings", folder / "log") as agent:
        agent.drain()
    with BatchLogReader(folder / "log", "node") as reader:
        batches = [decode_batch(record.payload) for record in reader.read(0).records]
    found = [row for batch in batches for row in _rows_of(batch)]
    assert found, counters
    found.sort(key=lambda row: (requests.index(row[0]), row[1]))
    request, position, phase, *columns = zip(*found, strict=True)
    return (
        Rows(list(request), list(position), list(phase), *map(np.stack, columns)),
        counters,
        output,
    )


def _rows_of(batch: RoutingBatch) -> Iterator[tuple[Any, ...]]:
    tokens, routes = batch.tokens, batch.routes
    if tokens is None or routes is None:
        return
    assert routes.top1 is not None
    assert routes.weights is not None
    assert routes.entropy is not None
    assert routes.margin is not None
    assert not (tokens.flags & 1).any()  # repeats of context, of which one pass has none
    ids = np.asarray(routes.expert_ids, np.int64)
    # Columns of the batch follow the experts' popularity.
    order = np.argsort(ids, axis=-1)
    top1 = np.take_along_axis(ids, routes.top1.T[:, :, None].astype(np.int64), -1)[..., 0]
    weights = weights_of(routes.weights).transpose(2, 1, 0)
    dropped = np.zeros(ids.shape, np.bool_)
    if routes.dropped is not None:
        dropped = routes.dropped.transpose(2, 1, 0)
    entropy = entropies_of(routes.entropy, routes.relabelling.shape[1]).T
    margin = margins_of(routes.margin).T
    for row in range(len(tokens)):
        yield (
            batch.requests.ids[tokens.request[row]],
            int(tokens.position[row]),
            int(tokens.phase[row]),
            top1[row],
            np.take_along_axis(ids[row], order[row], -1),
            np.take_along_axis(weights[row], order[row], -1),
            np.take_along_axis(dropped[row], order[row], -1),
            entropy[row],
            margin[row],
        )


def state_of(model: Any) -> list[tuple[type, dict[str, Any]]]:
    """Of every module: its class, its attributes, and what is in its dictionaries, as hooks are."""
    return [
        (
            type(module),
            {
                name: dict(value) if isinstance(value, dict) else value
                for name, value in vars(module).items()
            },
        )
        for module in model.modules()
    ]


def assert_as_before(model: Any, before: list[tuple[type, dict[str, Any]]]) -> None:
    """Every module has the class, the attributes, hooks, parameters and children that it had."""
    for (kind, attributes), (kind_now, attributes_now) in zip(before, state_of(model), strict=True):
        assert kind_now is kind
        assert attributes_now.keys() == attributes.keys()
        for name, value in attributes.items():
            assert _is_same(attributes_now[name], value), (kind, name)


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(one[key] is other[key] for key in one)
    return one is other or (type(one) in {int, float} and one == other)
