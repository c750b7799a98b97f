"""The simulated router is skewed, persistent and domain-bound like measured ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from moescope.producers.simulator.content import route_rows
from moescope.producers.simulator.model import DOMAINS, ModelSpec, RouterSpec, SimulationError
from moescope.producers.simulator.requests import RequestPlan, RequestTable
from moescope.producers.simulator.router import Router

if TYPE_CHECKING:
    from numpy.typing import NDArray

MODEL = ModelSpec(layers=(0, 7))
REQUESTS = 40
TOKENS = 256


@pytest.fixture(scope="module")
def router() -> Router:
    """A router with the default behaviour."""
    return Router(model=MODEL, seed=3)


@pytest.fixture(scope="module")
def ids(router: Router) -> NDArray[np.unsignedinteger]:
    """Routes [domain, request, token, layer, k]."""
    table = RequestTable()
    for domain in range(len(DOMAINS)):
        for number in range(REQUESTS):
            table.add(
                RequestPlan(
                    id="r",
                    task="t",
                    scene="s",
                    prompt_tokens=TOKENS,
                    output_tokens=1,
                    content_seed=1_000 * domain + number,
                    domain=domain,
                )
            )
    request = np.repeat(np.arange(len(table)), TOKENS)
    routes = route_rows(router, table, request, np.tile(np.arange(TOKENS), len(table)))
    return routes.ids.reshape(len(DOMAINS), REQUESTS, TOKENS, len(MODEL.layers), MODEL.top_k)


def shares(ids: NDArray[np.unsignedinteger], layer: int) -> NDArray[np.float64]:
    """Share of the load per expert."""
    selected = ids[..., layer, :].ravel()
    return np.bincount(selected, minlength=MODEL.experts) / selected.size


def jensen_shannon(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """In bits, from the definition."""
    total = 0.0
    for p, q in zip(left, right, strict=True):
        middle = (p + q) / 2
        total += sum(0.5 * side * np.log2(side / middle) for side in (p, q) if side > 0)
    return float(total)


def test_skew_is_in_the_range_of_real_models(ids: NDArray[np.unsignedinteger]) -> None:
    """Healthy OLMoE traffic has a maximum over mean of 2.5 to 7.8 by domain and layer."""
    for domain in range(len(DOMAINS)):
        for layer in range(len(MODEL.layers)):
            assert 2.0 < shares(ids[domain], layer).max() * MODEL.experts < 8.0


def test_domains_differ_as_measured(ids: NDArray[np.unsignedinteger]) -> None:
    """Jensen-Shannon: families a few hundredths of a bit, other domains 0.1 to 0.4."""
    names = [domain.name for domain in DOMAINS]
    families = [domain.family for domain in DOMAINS]
    for a in range(len(names)):
        for b in range(a):
            for layer in range(len(MODEL.layers)):
                distance = jensen_shannon(shares(ids[a], layer), shares(ids[b], layer))
                if families[a] == families[b]:
                    assert 0.01 < distance < 0.15
                else:
                    assert 0.07 < distance < 0.4


def test_neighbouring_tokens_share_experts_well_above_chance(
    ids: NDArray[np.unsignedinteger],
) -> None:
    """Real adjacent overlap is about 0.39; chance is k times the sum of squared shares."""
    for layer in range(len(MODEL.layers)):
        now, before = ids[:, :, 1:, layer], ids[:, :, :-1, layer]
        same = (now[..., :, None] == before[..., None, :]).sum((-1, -2))
        overlap = same.mean() / MODEL.top_k
        chance = MODEL.top_k * np.mean(
            [(shares(ids[domain], layer) ** 2).sum() for domain in range(len(DOMAINS))]
        )
        assert chance + 0.1 < overlap < 0.55


def test_windows_of_one_request_are_alike(ids: NDArray[np.unsignedinteger]) -> None:
    """Requests have tastes of their own: what their halves have beyond the crowd correlates."""
    halves = ids[0].reshape(REQUESTS, 2, TOKENS // 2, len(MODEL.layers), MODEL.top_k)
    loads = np.array([[shares(half, 0) for half in request] for request in halves])
    beyond = loads - loads.mean(axis=(0, 1))
    own = np.mean([np.corrcoef(*request)[0, 1] for request in beyond])
    pairs = zip(beyond, np.roll(beyond, 1, axis=0), strict=True)
    others = np.mean([np.corrcoef(one[0], other[1])[0, 1] for one, other in pairs])
    assert own > 0.15
    assert abs(others) < 0.1


def test_rows_never_repeat_an_expert(ids: NDArray[np.unsignedinteger]) -> None:
    """Top-k is k distinct experts, favourites included."""
    ordered = np.sort(ids, axis=-1)
    assert (np.diff(ordered.astype(np.int64), axis=-1) > 0).all()


def test_routes_do_not_depend_on_how_rows_are_cut(router: Router) -> None:
    """Batches are cut by time; the route of a row must not know that."""
    table = RequestTable()
    plan = RequestPlan(
        id="r",
        task="t",
        scene="s",
        prompt_tokens=50,
        output_tokens=1,
        content_seed=5,
        domain=1,
    )
    table.add(plan)
    table.add(replace(plan, content_seed=6))
    request = np.tile([0, 1], 50)
    position = np.repeat(np.arange(50), 2)
    whole = route_rows(router, table, request, position).ids
    parts = [
        route_rows(router, table, request[cut], position[cut]).ids
        for cut in (slice(0, 1), slice(1, 37), slice(37, 100))
    ]
    assert (np.concatenate(parts) == whole).all()


def test_another_state_leaves_other_layers_alone(router: Router) -> None:
    """A biased layer is drawn again, with the same noise; the others are shared."""
    bias = np.zeros(MODEL.experts)
    bias[5] = 10.0
    biased = router.with_bias({7: bias})
    assert biased.layer_pools[0] is router.layer_pools[0]
    assert (biased.layer_pools[1].routes == 5).any(axis=-1).all()
    renamed = router.with_permutation({0: np.roll(np.arange(MODEL.experts), 1)})
    expected = (router.layer_pools[0].routes.astype(int) - 1) % MODEL.experts
    assert (renamed.layer_pools[0].routes == expected).all()


def test_entropy_is_that_of_the_softmax() -> None:
    """Uniform logits give ln E; without a request for them there are none."""
    flat = RouterSpec(
        popularity_scale=0,
        domain_scale=0,
        noise_scale=1e-6,
        persistence=0,
        topics=1,
        topic_scale=0,
        pool_tokens=4,
    )
    pools = Router(model=MODEL, spec=flat, with_entropy=True).layer_pools[0]
    assert pools.entropy is not None
    assert np.allclose(pools.entropy, np.log(MODEL.experts), atol=1e-4)
    assert Router(model=MODEL, spec=flat).entropy is None


def test_more_than_256_experts_fit() -> None:
    """512 experts overflow a byte: a well-known fault of other tools."""
    wide = ModelSpec(experts=512, top_k=10, layers=(0,))
    router = Router(model=wide, spec=RouterSpec(pool_tokens=256))
    assert router.routes.dtype == np.uint16
    assert router.routes.max() > 255


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: ModelSpec(top_k=9, experts=8),
        lambda: ModelSpec(layers=()),
        lambda: ModelSpec(layers=(3, 1)),
        lambda: RouterSpec(pool_tokens=1000),
        lambda: RouterSpec(pool_tokens=16),
        lambda: RouterSpec(topics=3),
        lambda: RouterSpec(persistence=1.0),
        lambda: RouterSpec(stretch=0),
    ],
)
def test_impossible_models_are_refused(wrong: type[ModelSpec]) -> None:
    """What no router could do is refused where it is declared."""
    with pytest.raises(SimulationError):
        wrong()
