"""Versions of transformers whose routers may return probabilities where others return logits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from moescope.core.errors import InputError
from moescope.producers.torch_probe.families.forms import form_of

if TYPE_CHECKING:
    import torch

    from moescope.producers.torch_probe.families.adapter import RouterAdapter
    from moescope.producers.torch_probe.families.contract import RouterFamily
    from moescope.producers.torch_probe.families.settings import Places

FIRST_DOUBTFUL: Final = (5, 0)
FIRST_MENDED: Final = (5, 6)

_ROWS: Final = 4
_TOLERANCE: Final = 1e-2
"""Of a sum of probabilities in half precision."""


def require_logits(
    family: RouterFamily, adapter: RouterAdapter, places: Places, experts: int, version: str
) -> None:
    """See that a router returns logits, in versions where not all of them do.

    There its forward is called once, past its hooks, with rows that are not all alike: what comes
    back are logits unless each row of them is a distribution. Of probabilities a second softmax
    would be recorded: right ids, and wrong entropies and weights.

    Args:
        family: The adapter, bound to the model.
        adapter: What the routers are.
        places: One of the routers.
        experts: E.
        version: Of transformers.

    Raises:
        InputError: It returns probabilities, or does not let itself be asked.
    """
    if not FIRST_DOUBTFUL <= _numbers(version) < FIRST_MENDED or adapter.captures == "arguments":
        return
    if not any(form.logits is not None for form in adapter.forms.values()):
        return
    try:
        is_certain = _returns_logits(family, adapter, places.router, experts)
    except Exception:  # noqa: BLE001 - a router with arguments of its own
        is_certain = False
    if not is_certain:
        raise InputError(
            f"The probe cannot read {family.name} of transformers {version}.",
            why="Routers of transformers 5.0 to 5.5 may return probabilities in place of logits, "
            "and this one was not seen to return logits: entropy, margin and weights would be "
            "wrong.",
            next_step="Use transformers 5.6 or later, or 4.57.",
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _returns_logits(
    family: RouterFamily, adapter: RouterAdapter, router: torch.nn.Module, experts: int
) -> bool:
    import torch  # noqa: PLC0415 - imports without torch

    weight = next(p for p in router.parameters() if p.ndim == 2 and len(p) == experts)  # noqa: PLR2004 - a matrix
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(1, _ROWS, weight.shape[1], generator=generator).to(weight)
    with torch.no_grad():
        output = router.forward(rows)
    captured = family.capture(router, (rows,), {}, output)
    place = form_of(adapter.forms, captured, experts).logits
    if place is None:
        return True
    told = captured[place].float()
    is_distribution = (told >= 0).all() & ((told.sum(-1) - 1).abs() < _TOLERANCE).all()
    return not bool(is_distribution)
