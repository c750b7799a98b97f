"""Assignments that no expert computes because it had no room: told as dropped, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
pytest.importorskip("transformers", reason="`make engines` has transformers")

from engines.families.attached import Rows, recorded
from engines.families.capacity_oracle import Admitted, Nllb, admitted_by_switch
from engines.families.family_oracle import received_rows, shares_of, sorted_rows, watching
from engines.families.padded_batch import MASK, REQUESTS, run, tower_of
from engines.families.tiny_families import FAMILIES
from engines.families.tiny_models import build, version

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

TOKENS = MASK.flatten().bool().numpy()
WHAT = "capacity drops"
SWITCH, NLLB = "switch_transformers", "nllb_moe"


def is_received(seen: Any, admitted: Admitted, experts: int) -> bool:
    """Whether each expert of a layer computed the rows that were admitted, and no others."""
    kept = torch.from_numpy(np.where(admitted.dropped, -1, admitted.ids))
    return all(
        np.array_equal(sorted_rows(seen.rows_of.get(expert, seen.hidden[:0])), rows)
        for expert, rows in received_rows(seen.hidden, kept, experts).items()
    )


def assert_recorded(rows: Rows, layer: int, admitted: Admitted) -> None:
    """What arrived of one layer is what became of its rows' choices."""
    ids, dropped, weights = (part[TOKENS] for part in admitted)
    order = ids.argsort(-1)
    np.testing.assert_array_equal(rows.top1[:, layer], ids[:, 0])
    np.testing.assert_array_equal(rows.ids[:, layer], np.take_along_axis(ids, order, -1))
    np.testing.assert_array_equal(rows.dropped[:, layer], np.take_along_axis(dropped, order, -1))
    # Half precision.
    np.testing.assert_allclose(
        rows.weights[:, layer], np.take_along_axis(weights, order, -1), rtol=1e-3, atol=1e-6
    )


def told(
    name: str,
    settings: dict[str, Any],
    admit: Callable[[NDArray[np.float64]], Admitted],
    folder: Path,
) -> tuple[Admitted, bool]:
    """Record one forward of a family and compare it with the count at the experts' doors.

    Args:
        name: Of the family.
        settings: Its settings.
        admit: What becomes of rows with these shares.
        folder: For the ring and the log.

    Returns:
        What became of the tokens' choices, of all layers, and whether the experts computed that.
    """
    family = FAMILIES[name]
    tower = tower_of(name, build(name, **settings))
    alone = run(name, tower)
    rows, counters, output = recorded(tower, lambda: run(name, tower), REQUESTS, folder)
    assert torch.equal(output, alone)
    assert (counters.passed_rows, counters.invalid_rows) == (TOKENS.sum(), 0)
    with watching(tower, family) as seen:
        run(name, tower)
    layers, as_routed = [], []
    for at, layer in enumerate(family.layers):
        admitted = admit(shares_of(seen[layer], family))
        assert_recorded(rows, at, admitted)
        as_routed.append(is_received(seen[layer], admitted, family.experts))
        layers.append(admitted)
    parts = [np.concatenate([part[TOKENS] for part in each]) for each in zip(*layers, strict=True)]
    return Admitted(*parts), all(as_routed)


@pytest.mark.parametrize("capacity", [0, 1, 2])
def test_switch_drops_what_an_expert_has_no_room_for(
    capacity: int, tmp_path: Path, verified: Any, not_verified: Any
) -> None:
    """Row by row of each sequence, as the experts computed it; none where each row counts alone."""
    counts_rows_alone = (5, 0) <= version() < (5, 18)
    found, is_executed = told(
        SWITCH,
        {"expert_capacity": capacity},
        lambda shares: admitted_by_switch(
            shares, len(MASK), capacity, counts_rows_alone=counts_rows_alone
        ),
        tmp_path,
    )
    assert is_executed
    if capacity == 0:
        assert found.dropped.all()
    elif counts_rows_alone:
        assert not found.dropped.any()
        why = "it counts each row alone: it never drops one that an expert has any room for"
        not_verified(subject=SWITCH, what=WHAT, why=why)
    else:
        assert found.dropped.any()
        assert not found.dropped.all()
        verified(subject=SWITCH, what=WHAT)


@pytest.mark.parametrize(
    "nllb",
    [
        Nllb(share=0.15),
        Nllb(capacity=2),
        Nllb(capacity=2, prioritized=True),
        Nllb(capacity=2, normalised_before=True),
        Nllb(capacity=1, prioritized=True, normalised_before=True),
    ],
    ids=repr,
)
def test_nllb_drops_what_an_expert_has_no_room_for(
    nllb: Nllb, tmp_path: Path, verified: Any
) -> None:
    """First and second choices, in whichever order rows come and weights are shared out."""
    found, is_executed = told(
        NLLB, nllb.settings(), lambda shares: nllb.admitted(shares, TOKENS), tmp_path
    )
    # In transformers 5 the experts compute other rows than the router chose.
    assert is_executed is (version() < (5, 0))
    for choice in (0, 1):
        assert found.dropped[:, choice].any()
        assert not found.dropped[:, choice].all()
    verified(subject=NLLB, what=WHAT)


def test_nllb_drops_nothing_where_an_expert_has_room_for_all(tmp_path: Path) -> None:
    """Its default in evaluation: an expert takes as many rows as there are."""
    nllb = Nllb(share=1.0)
    found, _ = told(NLLB, nllb.settings(), lambda shares: nllb.admitted(shares, TOKENS), tmp_path)
    assert not found.dropped.any()
