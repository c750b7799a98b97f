"""Which module is whose router: adapters by class name or by owner and attribute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moescope.core.errors import InputError
from moescope.producers.torch_probe.families import olmo_core, transformers

if TYPE_CHECKING:
    import torch

    from moescope.producers.torch_probe.families.adapter import RouterAdapter

_ADAPTERS: Final[dict[str, RouterAdapter]] = {}


def register_family(adapter: RouterAdapter) -> None:
    """Make routers of a declared kind known to `attach`.

    Args:
        adapter: Where the routers are, what they return and how they score.

    Raises:
        InputError: Another adapter has one of its sites already.
    """
    taken = [s for s in adapter.sites if _ADAPTERS.get(s, adapter) != adapter]
    if taken or not adapter.sites:
        raise InputError(
            f"The adapter {adapter.name!r} cannot be registered.",
            why=f"{', '.join(taken)} belong to {_ADAPTERS[taken[0]].name!r}."
            if taken
            else "It names no site.",
            next_step="Name classes of your own.",
        )
    _ADAPTERS.update(dict.fromkeys(adapter.sites, adapter))


def adapter_at(
    module: torch.nn.Module, owner: torch.nn.Module | None, attribute: str
) -> RouterAdapter | None:
    """The adapter of a module, by its class or by its place in its owner."""
    found = _ADAPTERS.get(type(module).__name__)
    if found is None and owner is not None:
        found = _ADAPTERS.get(f"{type(owner).__name__}.{attribute}")
    if found is None or found.only_where is None:
        return found
    sibling, kind = found.only_where
    return found if type(getattr(owner, sibling, None)).__name__ == kind else None


def refusal_at(module: torch.nn.Module) -> str:
    """Why a module is a router that is known not to be readable; empty if it is none."""
    return transformers.REFUSED.get(type(module).__name__, "")


for _adapter in (*transformers.ADAPTERS, *olmo_core.ADAPTERS):
    register_family(_adapter)
