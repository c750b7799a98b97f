from __future__ import annotations

import numpy as np
import pytest
from oracles.wire_v1_plain import entropy_value, weight_value

from moescope.core.batch import Quantised
from moescope.core.batch_checks import BatchError
from moescope.core.quantise import (
    entropies_of,
    margins_of,
    quantise_entropy,
    quantise_log,
    weights_of,
)

ALL_CODES = {4: 16, 8: 256, 16: 1 << 16}


def all_codes(bits: int) -> Quantised:
    """Every code of a width, once."""
    if bits == 16:
        return Quantised(codes=np.arange(1 << 16).astype(np.uint16), bits=bits)
    return Quantised(codes=np.arange(ALL_CODES[bits]).astype(np.uint8), bits=bits)


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_codes_mean_what_the_specification_says(bits: int) -> None:
    """Another reader computes the same weights, margins and entropies."""
    quantised = all_codes(bits)
    weights = [weight_value(code, bits) for code in range(ALL_CODES[bits])]
    entropies = [entropy_value(code, bits, 60) for code in range(ALL_CODES[bits])]
    np.testing.assert_allclose(weights_of(quantised), weights, rtol=1e-6)
    np.testing.assert_allclose(margins_of(quantised), weights, rtol=1e-6)
    np.testing.assert_allclose(entropies_of(quantised, 60), entropies, rtol=1e-6)


@pytest.mark.parametrize("bits", [4, 8])
def test_codes_survive_being_quantised_again(bits: int) -> None:
    """Decoding and encoding again does not drift."""
    quantised = all_codes(bits)
    assert np.array_equal(quantise_log(weights_of(quantised), bits), quantised.codes)
    again = quantise_entropy(entropies_of(quantised, 60), bits, 60)
    assert np.array_equal(again, quantised.codes)


@pytest.mark.parametrize(
    ("bits", "smallest", "largest", "mean", "worst"),
    [
        (4, 0.036, 1.7, 0.075, 0.149),
        (8, 0.0006, 3.9, 0.0095, 0.0175),
        (16, 0.0006, 3.9, 0.0003, 0.0005),
    ],
)
def test_weights_are_as_exact_as_documented(
    bits: int, smallest: float, largest: float, mean: float, worst: float
) -> None:
    """The errors that the specification promises hold over the whole range."""
    weights = np.geomspace(smallest, largest, 10_001).astype(np.float32)
    read = weights_of(Quantised(codes=quantise_log(weights, bits), bits=bits))
    errors = np.abs(read / weights - 1)
    assert errors.mean() <= mean
    assert errors.max() <= worst


def test_out_of_range_values_go_to_the_ends() -> None:
    """Zeros, infinities and not-a-numbers from a broken router do not break the producer."""
    odd = np.array([0.0, -1.0, np.nan, 1e-300, 1e300, np.inf, -np.inf])
    assert quantise_log(odd, 8).tolist() == [0, 0, 0, 0, 255, 255, 0]
    assert quantise_entropy(odd, 8, 64).tolist() == [0, 0, 0, 0, 255, 255, 0]
    half = weights_of(Quantised(codes=quantise_log(odd, 16), bits=16))
    np.testing.assert_array_equal(half, [0, -1, np.nan, 0, np.inf, np.inf, -np.inf])


def test_one_expert_has_no_entropy() -> None:
    """Ln 1 = 0 divides nothing."""
    codes = quantise_entropy(np.array([0.0, 3.0]), 8, 1)
    assert codes.tolist() == [0, 0]
    assert entropies_of(Quantised(codes=codes, bits=8), 1).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("bits", [0, 5, 32])
def test_other_widths_are_refused(bits: int) -> None:
    """Only the widths of the specification exist."""
    with pytest.raises(BatchError, match="bits"):
        quantise_log(np.ones(3), bits)
    with pytest.raises(BatchError, match="bits"):
        quantise_entropy(np.ones(3), bits, 8)
