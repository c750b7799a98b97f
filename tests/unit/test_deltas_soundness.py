"""Emissions that contradict themselves are told from those that processors make."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.shared_rows import LANE, SECOND, RowProcessor, make_records

from moescope.storage.deltas.soundness import objection

if TYPE_CHECKING:
    from moescope.core.emission import Emission


def made() -> Emission:
    """Of a processor, with deltas and accounts."""
    return RowProcessor("p-0").emission(make_records(3, 4, longest_us=20 * SECOND))


def test_what_a_processor_makes_is_sound() -> None:
    """Nothing that is written rightly is set aside."""
    assert objection(made()) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"counts": np.zeros((1, 1), np.uint32)},
        {"counts": np.zeros((2, 5), np.uint32)},
        {"dropped": np.zeros(3, np.uint64)},
        {"router": np.zeros((2, 1), np.int64)},
        {"request_gaps": np.zeros((1, 1), np.int64)},
        {"lane": replace(LANE, experts=9)},
    ],
)
def test_arrays_that_do_not_belong_to_their_lane_are_told(changed: dict[str, Any]) -> None:
    """Numpy would stretch a single number over all experts, and count it for each."""
    emission = made()
    wrong = replace(emission.deltas[0], **changed)
    assert "shape" in (objection(replace(emission, deltas=(wrong,))) or "")


def test_output_without_progress_is_told() -> None:
    """Nothing would say which records it was made of."""
    emission = made()
    assert "no progress" in (objection(replace(emission, progress=(), batches=())) or "")
    assert "beyond" in (objection(replace(emission, progress=(), deltas=())) or "")
    doubled = replace(emission, progress=emission.progress * 2)
    assert "twice" in (objection(doubled) or "")
