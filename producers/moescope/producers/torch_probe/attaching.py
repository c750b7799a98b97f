"""Attach a probe to a model: find its routers, and see that the recorder describes them."""

from __future__ import annotations

from dataclasses import fields, replace
from enum import Enum
from typing import TYPE_CHECKING

from moescope.core.errors import InputError
from moescope.core.vocabulary import ScoreKind, TokenIdKind
from moescope.producers.content_keys import checked_secret
from moescope.producers.torch_probe.attribution import Attribution
from moescope.producers.torch_probe.compiled import forget_compiled_code, register_operators
from moescope.producers.torch_probe.families import RouterShape, find_routers
from moescope.producers.torch_probe.passes import Wanted
from moescope.producers.torch_probe.probe import Probe
from moescope.producers.torch_probe.replays import StaticBuffers
from moescope.producers.torch_probe.steps import HELD_STEPS
from moescope.producers.torch_probe.tower import device_of, endings_of, tower_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from moescope.producers.profile import Profile
    from moescope.producers.torch_probe.families import LayerRouter
    from moescope.producers.torch_probe.requests import RoutingSink


def attach(
    model: torch.nn.Module,
    recorder: RoutingSink,
    *,
    weights: bool = False,
    scores: bool = True,
    token_hash: Callable[[NDArray[np.int64]], NDArray[np.uint64]] | None = None,
    content_key: bytes | None = None,
    static_rows: int | None = None,
    held_steps: int = HELD_STEPS,
) -> Probe:
    """Hook a probe onto a model's routers; a context manager that detaches it.

    Args:
        model: A MoE model of transformers or OLMo-core, or one whose router was declared with
            `register_family`; compiled or not.
        recorder: A `Recorder` made with `router_shape(model)`: layers, experts, top-k, score kind
            and rank order.
        weights: Whether routing weights are recorded.
        scores: Whether router entropy and margin are recorded.
        token_hash: Makes of token ids [T] what is recorded of them, where the recorder's
            `token_id_kind` is `keyed_hash`.
        content_key: The secret of content keys, 16 to 64 bytes; they are recorded of passes whose
            requests were seen from their first token on. By default none are.
        static_rows: The most rows of a pass that the program captures into a CUDA graph of its own;
            needed for `Probe.after_replay`.
        held_steps: The most decode steps of a batch that wait to be recorded together, for up to
            three quarters of a second; 1 records each at once, at a higher cost.

    Raises:
        InputError: The model's routers are not known, it has a probe already, the recorder is for
            another model, or the content key is no secret.
    """
    if type(held_steps) is not int or held_steps < 1:
        raise InputError(
            f"held_steps is {held_steps!r}.", next_step="Give a whole number, 1 or more."
        )
    if content_key is not None:
        checked_secret(content_key)
    routers = find_routers(model)
    tower = tower_of(model, [router.module for router in routers])
    _check_free(tower, routers)
    _check_recorder(recorder.profile, routers)
    kind = recorder.profile.token_id_kind
    if (kind is TokenIdKind.KEYED_HASH) != (token_hash is not None):
        raise InputError(
            f"The recorder's token_id_kind is {kind.name.lower()}, "
            f"and {'no' if token_hash is None else 'a'} token_hash was given.",
            why="Hashes are made of token ids before they reach the recorder.",
            next_step="Give both, token_id_kind='keyed_hash' and a token_hash, or neither.",
        )
    token_ids = (lambda tokens: tokens) if kind is TokenIdKind.PLAIN else token_hash
    attribution = Attribution(
        recorder, routers[0].experts, endings_of(model), token_ids, content_key
    )
    register_operators()
    forget_compiled_code()
    wanted = Wanted(weights=weights, scores=scores, tokens=attribution.wants_tokens)
    buffers = _buffers(static_rows, len(routers), device_of(routers[0].module, tower))
    return Probe(
        tower, routers, attribution, recorder, wanted, buffers=buffers, held_steps=held_steps
    )


def _buffers(static_rows: int | None, layers: int, device: torch.device) -> StaticBuffers | None:
    if static_rows is None:
        return None
    if static_rows < 1:
        raise InputError(
            f"static_rows is {static_rows}.",
            next_step="Give the most rows of a captured pass: requests times columns.",
        )
    import torch  # noqa: PLC0415 - an inference node without torch imports this module, too

    with torch.inference_mode(mode=False):  # they are changed outside of it, too
        return StaticBuffers(static_rows, layers, device)


def probe_of(model: torch.nn.Module) -> Probe | None:
    """The probe that watches a model or a part of it, if there is one: for who has lost it."""
    return _probe_on(model.modules())


def _check_free(tower: torch.nn.Module, routers: list[LayerRouter]) -> None:
    if _probe_on([tower, *(router.module for router in routers)]) is not None:
        raise InputError(
            "This model has a probe already.",
            why="A second one would record every token twice.",
            next_step="Use the first one, which moescope.producers.torch_probe.probe_of(model) "
            "returns, or call its detach().",
        )


def _probe_on(modules: Iterable[torch.nn.Module]) -> Probe | None:
    from moescope.producers.torch_probe.hooks import Hook  # noqa: PLC0415 - it needs torch
    from moescope.producers.torch_probe.watching import hook_on  # noqa: PLC0415 - as above

    for module in modules:
        watching = hook_on(module)
        if watching is not None:
            return watching.probe
        for hook in module._forward_hooks.values():  # noqa: SLF001 - the only list
            if isinstance(hook, Hook):
                return hook.probe
    return None


def _check_recorder(profile: Profile, routers: list[LayerRouter]) -> None:
    first = routers[0]
    found = RouterShape(
        tuple(router.layer for router in routers), first.experts, first.top_k,
        first.family.score_kind, first.family.rank_order,
    )  # fmt: skip
    told = RouterShape(
        profile.layers, profile.experts, profile.top_k, profile.score_kind, profile.rank_order
    )
    # Who leaves the score kind out is told nothing wrong, only less.
    if told.score_kind is ScoreKind.UNKNOWN:
        found = replace(found, score_kind=ScoreKind.UNKNOWN)
    if told != found:
        raise InputError(
            "The recorder does not describe this model.",
            why=_what_differs(found, told),
            next_step="Make it with layers, experts, top_k, score_kind and rank_order of "
            "router_shape(model).",
        )


def _what_differs(found: RouterShape, told: RouterShape) -> str:
    names = [field.name for field in fields(found)]
    values = [(name, getattr(found, name), getattr(told, name)) for name in names]
    differing = [
        f"{name} {_plain(of_model)} (the recorder was told {_plain(of_recorder)})"
        for name, of_model, of_recorder in values
        if of_model != of_recorder
    ]
    return f"The model has {', '.join(differing)}."


def _plain(value: object) -> str:
    return value.name.lower() if isinstance(value, Enum) else str(value)
