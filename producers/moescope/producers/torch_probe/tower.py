"""The module whose forward is a pass over all routers, and the tokens that end a generation."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from moescope.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from numpy.typing import NDArray

_NUMBERED: Final = re.compile(r"\.?[^.]+\.\d+(?:\.|$)")


class Endings(NamedTuple):
    """How a batched `generate` goes on with a row that has ended.

    Attributes:
        tokens: int64 [n], token ids that end it.
        following: int64 [m], token ids that it may be fed from then on.
    """

    tokens: NDArray[np.int64]
    following: NDArray[np.int64]


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


def device_of(*modules: torch.nn.Module) -> torch.device:
    """Where the first parameter or buffer is of the first module that has one; else the host."""
    import torch  # noqa: PLC0415 - an inference node without torch imports this module, too

    for module in modules:
        for tensor in itertools.chain(module.parameters(), module.buffers()):
            return tensor.device
    return torch.device("cpu")


def endings_of(model: Any) -> Endings:  # noqa: ANN401 - transformers has no types
    """How a generation of this model ends, unless a call of `generate` says otherwise."""
    settings = getattr(model, "generation_config", None)
    ends = _token_ids(getattr(settings, "eos_token_id", None))
    padding = _token_ids(getattr(settings, "pad_token_id", None))
    return Endings(ends, np.concatenate([ends, padding]))


def _token_ids(told: Any) -> NDArray[np.int64]:  # noqa: ANN401 - as above
    if told is None:
        return np.empty(0, np.int64)
    return np.array([told] if isinstance(told, int) else list(told), np.int64)
