"""The module whose forward is a pass over all routers, and the tokens that end a generation."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from moescope.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from numpy.typing import NDArray

_NUMBERED: Final = re.compile(r"\.?[^.]+\.\d+(?:\.|$)")


def tower_of(model: torch.nn.Module, routers: Iterable[torch.nn.Module]) -> torch.nn.Module:
    """The module that owns the list of decoder layers (`layers.0`, `h.0`, …) of all routers.

    Raises:
        InputError: The routers lie in several such lists.
    """
    wanted = {id(router) for router in routers}
    owners = set()
    for name, module in model.named_modules():
        if id(module) in wanted:
            numbered = _NUMBERED.search(name)
            owners.add(name[: numbered.start()] if numbered else "")
    if len(owners) != 1:
        raise InputError(
            "The routers of this model belong to several stacks of layers.",
            why=f"They lie in {', '.join(sorted(owners)) or 'none that has a name'}.",
            next_step="Attach to one of these modules, with a recorder of its own.",
        )
    return model.get_submodule(owners.pop())


def end_tokens_of(model: Any) -> NDArray[np.int64]:  # noqa: ANN401 - transformers has no types
    """Token ids that end a generation of this model."""
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if ends is None:
        return np.empty(0, np.int64)
    return np.array([ends] if isinstance(ends, int) else list(ends), np.int64)
