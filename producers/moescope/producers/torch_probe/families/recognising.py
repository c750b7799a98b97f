"""Recognise a router that no family names, by what it does with rows that are known.

A router that returns (logits, weights, ids) is driven once with 64 random rows. It is read like
a known kind if exactly one of them makes the same choice and the same weights (up to a factor
for each row) of its logits; otherwise it stays unknown.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from moescope.producers.torch_probe.families.adapter import RouterAdapter
from moescope.producers.torch_probe.families.bound import BoundFamily
from moescope.producers.torch_probe.families.forms import TRIPLE
from moescope.producers.torch_probe.families.scoring import Groups, Scoring, score_logits
from moescope.producers.torch_probe.families.settings import (
    BIASES,
    EXPERTS,
    GROUPS,
    TOP_K,
    Places,
)

if TYPE_CHECKING:
    import torch

_ROWS: Final = 64
_TOLERANCE: Final = 2e-2
"""Relative, for weights: routers in half precision round them to 2⁻⁸."""

_log = logging.getLogger("moescope.producers")


def recognise(places: Places) -> RouterAdapter | None:
    """The adapter of an unknown router, if one and only one kind does what it does.

    Args:
        places: The router, its block and its config. Its forward is called once, past its hooks.
    """
    experts, top_k = _shape(places)
    if not 1 < top_k < experts:
        # With one expert a row, weights do not tell the score apart.
        return None
    try:
        driven = _drive(places.router, experts)
    except Exception:  # noqa: BLE001 - it is no router, or one with arguments of its own
        return None
    if driven is None:
        return None
    fitting = [adapter for adapter in _candidates(places) if _fits(adapter, places, driven)]
    if len(fitting) != 1:
        return None
    _log.info("Read %s as %s", type(places.router).__name__, fitting[0].name)
    return fitting[0]


def _shape(places: Places) -> tuple[int, int]:
    router = Places(places.router, None, None)
    experts, top_k = router.find(EXPERTS[:-1]), router.find(TOP_K)
    both = isinstance(experts, int) and isinstance(top_k, int)
    return (experts, top_k) if both else (0, 0)


def _candidates(places: Places) -> list[RouterAdapter]:
    has_bias = places.holder(BIASES) is not None
    groups = places.find(GROUPS)
    limits = [Groups("two_best"), Groups("best")] if groups is not None and groups > 1 else [None]
    return [
        RouterAdapter(
            name=f"{score}{' with a bias' if has_bias else ''}"
            f"{f', in groups ({limit.by})' if limit else ''}",
            sites=(type(places.router).__name__,),
            forms=TRIPLE,
            scoring=Scoring(score, has_bias=has_bias, groups=limit),
            is_sorted=False,
        )
        for score in ("softmax", "sigmoid", "sqrtsoftplus")
        for limit in limits
    ]


class _Driven:
    """What a router made of random rows, in single precision on its device."""

    def __init__(self, logits: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> None:
        self.logits, self.weights, self.ids = logits.float(), weights.float(), ids


def _drive(router: torch.nn.Module, experts: int) -> _Driven | None:
    import torch  # noqa: PLC0415 - imports without torch

    (weight,) = [p for p in router.parameters() if p.ndim == 2 and len(p) == experts]  # noqa: PLR2004 - a matrix
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(_ROWS, weight.shape[1], generator=generator).to(weight)
    with torch.no_grad():
        output = router.forward(rows)
    family = (output[0].shape, output[1].shape) == ((_ROWS, experts), output[2].shape)
    if len(output) != 3 or not family or output[2].is_floating_point():  # noqa: PLR2004 - the triple
        return None
    expected = torch.nn.functional.linear(rows, weight).float()
    if not torch.allclose(output[0].float(), expected, rtol=_TOLERANCE, atol=_TOLERANCE):
        return None
    return _Driven(*output)


def _fits(adapter: RouterAdapter, places: Places, driven: _Driven) -> bool:
    import torch  # noqa: PLC0415 - imports without torch

    experts, top_k = driven.logits.shape[-1], driven.ids.shape[-1]
    family = BoundFamily("unknown", adapter, [places], experts, top_k)
    logits = driven.logits.unsqueeze(1)
    scored = score_logits(
        logits,
        adapter.scoring.score,
        bias=family.bias_of([places.router]),
        limit=family.limit,
    )
    ids = scored.selection.topk(top_k, dim=-1).indices.squeeze(1)
    if not torch.equal(ids.sort(-1).values, driven.ids.sort(-1).values):
        return False
    factors = driven.weights / scored.scores.squeeze(1).gather(-1, driven.ids)
    return bool(((factors / factors[:, :1] - 1).abs() < _TOLERANCE).all())
