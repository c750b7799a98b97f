"""Operators that a compiled model calls in its hooks' place.

A compiler traces hooks into its graph, where no Python runs any more. So what a hook does there is
one call of an operator that the compiler cannot look into. Each is declared to change `anchor`, a
tensor that nothing else uses: thereby none is left out, and their order is kept.
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any, Final

from moescope.producers.torch_probe.inputs import PassInputs, RefusedPassError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from moescope.producers.torch_probe.probe import Probe

_SCHEMAS: Final = {
    "begin_pass": "(Tensor(a!) anchor, int probe, SymInt batch, SymInt length, Tensor? tokens, "
    "Tensor? mask, Tensor? attention, Tensor? positions, SymInt? past, Tensor? past_there) -> ()",
    "refuse_pass": "(Tensor(a!) anchor, int probe, str reason, SymInt rows) -> ()",
    "refuse_router": "(Tensor(a!) anchor, int probe, str reason) -> ()",
    "keep_router": "(Tensor(a!) anchor, int probe, int place, Tensor[] tensors) -> ()",
    "end_pass": "(Tensor(a!) anchor, int probe) -> ()",
}

_probes: weakref.WeakValueDictionary[int, Probe] = weakref.WeakValueDictionary()
_libraries: list[Any] = []


def register_operators() -> None:
    """Make `torch.ops.moescope` known, once."""
    if _libraries:
        return
    import torch  # noqa: PLC0415 - an inference node without torch imports this module, too

    library = torch.library.Library("moescope", "FRAGMENT")
    # In a CUDA graph Python does not run when the graph does: keep operators out of them.
    unsafe = getattr(torch.Tag, "cudagraph_unsafe", None)
    for name, schema in _SCHEMAS.items():
        library.define(name + schema, tags=() if unsafe is None else (unsafe,))
        library.impl(name, _RUN[name], "CompositeExplicitAutograd")
        torch.library.register_fake(f"moescope::{name}", _ignore, lib=library)
    _libraries.append(library)


def number_of(probe: Probe) -> int:
    """The number by which operators find a probe, as long as it lives."""
    number = id(probe)
    _probes[number] = probe
    return number


def forget(probe: Probe) -> None:
    """Operators that name this probe do nothing from now on."""
    _probes.pop(id(probe), None)


def forget_compiled_code() -> None:
    """Let compiled models be compiled anew: code that was made without hooks never asks for them.

    Does nothing where nothing was compiled.
    """
    if "torch._dynamo" in sys.modules:
        sys.modules["torch"].compiler.reset()


def _begin_pass(  # noqa: PLR0917 - a schema has no records
    _anchor: torch.Tensor,
    probe: int,
    batch: int,
    length: int,
    tokens: torch.Tensor | None,
    mask: torch.Tensor | None,
    attention: torch.Tensor | None,
    positions: torch.Tensor | None,
    past: int | None,
    past_there: torch.Tensor | None,
) -> None:
    found = _probes.get(probe)
    if found is not None:
        found.begin(
            PassInputs(
                batch, length, tokens, mask, attention, positions,
                past if past_there is None else past_there,
            )
        )  # fmt: skip


def _refuse_pass(_anchor: torch.Tensor, probe: int, reason: str, rows: int) -> None:
    found = _probes.get(probe)
    if found is not None:
        found.refuse_pass(RefusedPassError(reason), rows)


def _refuse_router(_anchor: torch.Tensor, probe: int, reason: str) -> None:
    found = _probes.get(probe)
    if found is not None:
        found.give_up(RefusedPassError(reason))


def _keep_router(
    _anchor: torch.Tensor, probe: int, place: int, tensors: Sequence[torch.Tensor]
) -> None:
    found = _probes.get(probe)
    if found is not None:
        found.keep(place, tuple(tensors))


def _end_pass(_anchor: torch.Tensor, probe: int) -> None:
    found = _probes.get(probe)
    if found is not None:
        found.end_pass()


def _ignore(*_arguments: object) -> None:
    return None


_RUN: Final = {
    "begin_pass": _begin_pass,
    "refuse_pass": _refuse_pass,
    "refuse_router": _refuse_router,
    "keep_router": _keep_router,
    "end_pass": _end_pass,
}
