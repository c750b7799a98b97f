from __future__ import annotations

import math

import numpy as np
import pytest

from moescope.core.errors import InputError
from moescope.processors.metrics import (
    FLOOR_TOKENS,
    count_metrics,
    divergence,
    noise_floor,
    noise_floor_table,
    smoothed_reference,
    uniform_floor_table,
    uniform_reference,
)
from moescope.processors.metrics.noise import inclusion_probabilities

AT_128 = int(np.flatnonzero(FLOOR_TOKENS == 128)[0])


def _simulated_counts(
    weights: np.ndarray, top_k: int, tokens: int, windows: int, seed: int
) -> np.ndarray:
    """Counts [windows, E] of tokens that draw k experts without replacement (Gumbel top-k)."""
    noise = np.random.default_rng(seed).gumbel(size=(windows, tokens, len(weights)))
    ids = np.argsort(-(noise + np.log(weights)), axis=-1)[..., :top_k]
    return np.stack([np.bincount(window.ravel(), minlength=len(weights)) for window in ids])


def _agrees(sample: np.ndarray, expected: float) -> bool:
    """Within four standard errors of the Monte-Carlo mean."""
    return bool(abs(sample.mean() - expected) < 4 * sample.std() / math.sqrt(len(sample)))


def test_published_floors_of_uniform_routing() -> None:
    """256 experts, top-8, 128 tokens: 0.098 nats; 128 experts, top-1: 0.21 nats."""
    assert uniform_floor_table(256, 8).kl[AT_128] == pytest.approx(0.098, abs=0.001)
    assert uniform_floor_table(128, 1).kl[AT_128] == pytest.approx(0.21, abs=0.005)


@pytest.mark.parametrize(("experts", "top_k", "windows"), [(256, 8, 60), (128, 1, 200)])
def test_floor_is_the_mean_over_simulated_uniform_windows(
    experts: int, top_k: int, windows: int
) -> None:
    """The closed form agrees with drawing tokens and averaging the estimator."""
    counts = _simulated_counts(np.ones(experts), top_k, 128, windows, seed=7)
    js, kl = divergence(counts, uniform_reference(experts))
    table = uniform_floor_table(experts, top_k)
    assert _agrees(kl, table.kl[AT_128])
    assert _agrees(js, table.js[AT_128])


def test_chance_alone_looks_imbalanced() -> None:
    """Perfectly uniform routing, 256 experts, top-8, 128 tokens: gini 0.27, and so on."""
    counts = _simulated_counts(np.ones(256), 8, 128, 60, seed=11)
    values = count_metrics(counts, 8)
    assert values["gini"].mean() == pytest.approx(0.27, abs=0.01)
    assert values["max_violation"].mean() == pytest.approx(1.66, abs=0.2)
    assert values["cold_expert_share"].mean() == pytest.approx(0.017, abs=0.004)


def test_floor_of_a_skewed_reference() -> None:
    """Only the experts' inclusion frequencies matter, not how k experts exclude each other."""
    weights = np.exp(np.random.default_rng(3).normal(size=24) * 1.2)
    frequencies = _simulated_counts(weights, 4, 4_000, 25, seed=5).sum(axis=0)
    q = smoothed_reference(frequencies)
    js, kl = divergence(_simulated_counts(weights, 4, 64, 500, seed=6), q)
    table = noise_floor_table(q, 4)
    at_64 = int(np.flatnonzero(FLOOR_TOKENS == 64)[0])
    assert _agrees(kl, table.kl[at_64])
    assert _agrees(js, table.js[at_64])


@pytest.mark.parametrize("tokens", [1, 8, 1024, 16_384])
def test_thinned_sum_equals_the_full_binomial_sum(tokens: int) -> None:
    """Taking every few counts within nine standard deviations loses nothing that matters."""
    q, top_k = [0.02, 0.08, 0.2, 0.3, 0.4], 2
    total = 0.0
    for share in q:
        chance = top_k * share
        for count in range(tokens + 1):
            log_probability = (
                math.lgamma(tokens + 1) - math.lgamma(count + 1) - math.lgamma(tokens - count + 1)
                + count * math.log(chance) + (tokens - count) * math.log(1 - chance)
            )  # fmt: skip
            p = (count + 2.5 * share) / (tokens * top_k + 2.5)
            total += math.exp(log_probability) * (p * math.log(p / share) - p + share)
    table = noise_floor_table(np.array(q), top_k)
    assert table.kl[list(FLOOR_TOKENS).index(tokens)] == pytest.approx(total, rel=1e-7)


def test_floor_follows_the_textbook_for_many_tokens() -> None:
    """(E − k)/(2n) nats holds where every expert has plenty of assignments, also off the table."""
    table = uniform_floor_table(64, 8)
    for tokens in (5_000, 16_384, 100_000, 3_000_000):
        expected = (64 - 8) / (2 * tokens * 8)
        assert noise_floor(table.kl, tokens) == pytest.approx(expected, rel=0.01)


def test_interpolation_is_exact_on_the_grid_and_close_between() -> None:
    """Between powers of two the floor is off by a few percent at most, where it bends."""
    q = smoothed_reference(np.arange(1, 33))
    table = noise_floor_table(q, 4)
    assert noise_floor(table.kl, FLOOR_TOKENS) == pytest.approx(table.kl, rel=1e-12)
    js, _ = divergence(_simulated_counts(np.ones(32), 4, 96, 2_000, seed=2), uniform_reference(32))
    assert noise_floor(uniform_floor_table(32, 4).js, 96) == pytest.approx(js.mean(), rel=0.03)


def test_floor_of_an_inevitable_selection_is_zero() -> None:
    """With k = E every token selects every expert: chance has no part."""
    table = uniform_floor_table(6, 6)
    assert np.array_equal(noise_floor(table.kl, [1, 3, 100, 10**6]), np.zeros(4))


def test_no_reference_or_no_tokens_has_no_floor() -> None:
    """Nothing is known, so the floor is null."""
    assert np.isnan(noise_floor(uniform_floor_table(8, 2).js, [0, -1])).all()
    absent = noise_floor_table(np.full((1, 4), math.nan), 2)
    assert np.isnan(noise_floor(absent.kl, 100)).all()


def test_leading_axes_broadcast() -> None:
    """A table per layer and tokens per window and layer give a floor per window and layer."""
    q = smoothed_reference(np.array([[5, 5, 5, 5], [1, 2, 3, 10], [9, 1, 1, 1]]))
    table = noise_floor_table(q, 2)
    tokens = np.array([[8, 16, 100], [128, 5, 20_000]])
    floors = noise_floor(table.js, tokens)
    assert floors.shape == (2, 3)
    for window in range(2):
        for layer in range(3):
            alone = noise_floor(table.js[layer], tokens[window, layer])
            assert floors[window, layer] == alone


def test_inclusion_probabilities_are_capped_at_certainty() -> None:
    """An expert cannot be selected more than once per token; the rest is shared in proportion."""
    selected = inclusion_probabilities(np.array([0.7, 0.2, 0.06, 0.04]), 2)
    assert selected == pytest.approx([1.0, 2 / 3, 0.2, 0.4 / 3])
    assert inclusion_probabilities(np.full(5, 0.2), 5).tolist() == [1.0] * 5
    twice = inclusion_probabilities(np.array([0.6, 0.3, 0.05, 0.05]), 3)
    assert twice == pytest.approx([1.0, 1.0, 0.5, 0.5])


def test_the_same_table_every_time() -> None:
    """Floors are stored: they depend on the reference alone, with no random part."""
    q = smoothed_reference(np.arange(1, 17))
    assert np.array_equal(noise_floor_table(q, 2).kl, noise_floor_table(q, 2).kl)
    stacked = noise_floor_table(np.stack([q, q[::-1]]), 2)
    assert np.array_equal(stacked.kl[0], noise_floor_table(q, 2).kl)


@pytest.mark.parametrize("top_k", [0, 5])
def test_impossible_top_k_is_refused(top_k: int) -> None:
    """A token selects between 1 and E experts."""
    with pytest.raises(InputError, match="between 1 and E = 4"):
        noise_floor_table(np.full(4, 0.25), top_k)
