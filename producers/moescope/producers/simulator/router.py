"""The simulated router: pools of token routes per domain and layer, drawn once, read often.

Selecting the top k of noisy logits for every simulated token would cost a microsecond per
layer. Instead each (domain, layer) has a pool of consecutive token routes, drawn exactly that
way; a request walks through stretches of the pools from starting points of its own, and some of
its experts are replaced by its favourites (:mod:`.content`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.producers.simulator.hashing import seed_from
from moescope.producers.simulator.model import DOMAINS, ModelSpec, RouterSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    ExpertIds = NDArray[np.unsignedinteger[Any]]

FAVOURITE_TABLE = 4096
_FAVOURITE_FLATTENING = 0.6
"""Favourites are drawn from flattened preferences: a request's taste is not the crowd's."""


def id_dtype(experts: int) -> type[np.uint8 | np.uint16]:
    """The smallest unsigned type that holds every expert id."""
    return np.uint8 if experts <= 256 else np.uint16  # noqa: PLR2004 (ids of one byte)


@dataclass(frozen=True, kw_only=True)
class LayerPools:
    """Routes of one layer.

    Attributes:
        routes: uint8 or uint16 [D, P, k], by falling selection score.
        entropy: float32 [D, P], nats, of the softmax over all experts; or None.
        favourites: uint8 or uint16 [D, FAVOURITE_TABLE].
    """

    routes: ExpertIds
    entropy: NDArray[np.float32] | None
    favourites: ExpertIds


@dataclass(frozen=True, kw_only=True)
class Router:
    """One state of the model's router; a fault or a new placement of experts is another state.

    Attributes:
        bias: Layer index → float64 [E] added to the logits.
        permutation: Layer index → intp [E]; the expert that takes the place of each.
        with_entropy: Whether score entropies are worked out too.
        shared: Pools of layers that this state has in common with another one.
    """

    model: ModelSpec
    spec: RouterSpec = field(default_factory=RouterSpec)
    seed: int = 0
    bias: Mapping[int, NDArray[np.float64]] = field(default_factory=dict)
    permutation: Mapping[int, NDArray[np.intp]] = field(default_factory=dict)
    with_entropy: bool = False
    shared: Mapping[int, LayerPools] = field(default_factory=dict)

    def with_bias(self, bias: Mapping[int, NDArray[np.float64]]) -> Router:
        """This router with logits raised or lowered at some layers; the noise stays the same."""
        changed = {layer: values + self.bias.get(layer, 0.0) for layer, values in bias.items()}
        return self._variant(bias={**self.bias, **changed}, touched=bias)

    def with_permutation(self, permutation: Mapping[int, NDArray[np.intp]]) -> Router:
        """This router with experts that take each other's place at some layers."""
        return self._variant(permutation={**self.permutation, **permutation}, touched=permutation)

    def _variant(
        self,
        *,
        touched: Mapping[int, object],
        bias: Mapping[int, NDArray[np.float64]] | None = None,
        permutation: Mapping[int, NDArray[np.intp]] | None = None,
    ) -> Router:
        return replace(
            self,
            bias=self.bias if bias is None else bias,
            permutation=self.permutation if permutation is None else permutation,
            shared={
                layer: pools
                for layer, pools in zip(self.model.layers, self.layer_pools, strict=True)
                if layer not in touched
            },
        )

    @cached_property
    def layer_pools(self) -> tuple[LayerPools, ...]:
        """Pools of every layer, in the order of the model's layers."""
        return tuple(
            self.shared[layer] if layer in self.shared else self._draw(layer)
            for layer in self.model.layers
        )

    @cached_property
    def routes(self) -> ExpertIds:
        """All routes, [L·D·P, k], for one gather per batch."""
        stacked = np.stack([pools.routes for pools in self.layer_pools])
        return stacked.reshape(-1, self.model.top_k)

    @cached_property
    def entropy(self) -> NDArray[np.float32] | None:
        """Entropy of each row of `routes`, float32 [L·D·P], or None."""
        entropies = [pools.entropy for pools in self.layer_pools if pools.entropy is not None]
        return np.stack(entropies).reshape(-1) if entropies else None

    @cached_property
    def favourites(self) -> ExpertIds:
        """Tables that favourites are drawn from, [L·D·FAVOURITE_TABLE]."""
        return np.stack([pools.favourites for pools in self.layer_pools]).reshape(-1)

    def _draw(self, layer: int) -> LayerPools:
        noise = _token_noise(self.model.experts, self.spec, seed_from(self.seed, layer, 1))
        topics = self._topic_logits(layer)
        generator = np.random.Generator(np.random.PCG64(seed_from(self.seed, layer, 2)))
        routes, entropies, favourites = [], [], []
        for logits in domain_logits(self.model.experts, self.spec, self.seed, layer):
            biased = logits + self.bias.get(layer, 0.0)
            scores = biased.astype(np.float32) + topics + noise
            routes.append(_select(scores, self.model.top_k))
            if self.with_entropy:
                entropies.append(_softmax_entropy(scores))
            favourites.append(_favourite_table(biased, generator))
        renamed = self.permutation.get(layer)
        table = np.arange(self.model.experts) if renamed is None else renamed
        narrow: ExpertIds = table.astype(id_dtype(self.model.experts))
        return LayerPools(
            routes=narrow[np.stack(routes)],
            entropy=np.stack(entropies) if entropies else None,
            favourites=narrow[np.stack(favourites)],
        )

    def _topic_logits(self, layer: int) -> NDArray[np.float32]:
        """Logits of the topic that each pool token belongs to, float32 [P, E]."""
        spec = self.spec
        generator = np.random.Generator(np.random.PCG64(seed_from(self.seed, layer, 4)))
        logits = generator.standard_normal((spec.topics, self.model.experts), np.float32)
        scaled = logits * np.float32(spec.topic_scale)
        return np.repeat(scaled, spec.pool_tokens // spec.topics, axis=0)


def domain_logits(
    experts: int, spec: RouterSpec, seed: int, layer: int
) -> Sequence[NDArray[np.float64]]:
    """Mean logits of each domain at a layer: float64 [D][E]."""
    popularity = _normal(experts, seed, layer, 11) * spec.popularity_scale
    families = sorted({domain.family for domain in DOMAINS})
    family_logits = {
        family: _normal(experts, seed, layer, 12, index) for index, family in enumerate(families)
    }
    shared, own = np.sqrt(spec.family_share), np.sqrt(1.0 - spec.family_share)
    return [
        popularity
        + spec.domain_scale
        * domain.strength
        * (shared * family_logits[domain.family] + own * _normal(experts, seed, layer, 13, index))
        for index, domain in enumerate(DOMAINS)
    ]


def _normal(experts: int, *seed: int) -> NDArray[np.float64]:
    generator = np.random.Generator(np.random.PCG64(seed_from(*seed)))
    return generator.standard_normal(experts)


def _token_noise(experts: int, spec: RouterSpec, seed: int) -> NDArray[np.float32]:
    """Noise of consecutive tokens, float32 [P, E], correlated with its neighbours, circular."""
    generator = np.random.Generator(np.random.PCG64(seed))
    fresh = generator.standard_normal((spec.pool_tokens, experts), np.float32)
    powers = np.power(spec.persistence, np.arange(6)) if spec.persistence else np.ones(1)
    weights = powers / np.sqrt((powers**2).sum())
    noise = np.zeros_like(fresh)
    for back, weight in enumerate(weights):
        noise += np.float32(weight * spec.noise_scale) * np.roll(fresh, back, axis=0)
    return noise


def _select(scores: NDArray[np.float32], top_k: int) -> NDArray[np.intp]:
    """Top k of each row by falling score, intp [P, k]."""
    experts = scores.shape[1]
    candidates = np.argpartition(scores, experts - top_k, axis=1)[:, experts - top_k :]
    order = np.argsort(-np.take_along_axis(scores, candidates, axis=1), axis=1, kind="stable")
    return np.take_along_axis(candidates, order, axis=1)


def _softmax_entropy(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Entropy of the softmax of each row, float32 [P], nats."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    weights = np.exp(shifted)
    total = weights.sum(axis=1)
    mean = (weights * shifted).sum(axis=1) / total
    entropy: NDArray[np.float32] = (np.log(total) - mean).astype(np.float32)
    return entropy


def _favourite_table(
    logits: NDArray[np.float64], generator: np.random.Generator
) -> NDArray[np.intp]:
    flattened = _FAVOURITE_FLATTENING * (logits - logits.max())
    weights = np.exp(flattened)
    return generator.choice(len(logits), FAVOURITE_TABLE, p=weights / weights.sum()).astype(np.intp)
