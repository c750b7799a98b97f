"""Find a model's routers: by the registry, or by how an unknown router behaves."""

from __future__ import annotations

import re
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from moescope.core.errors import InputError
from moescope.producers.torch_probe.families.bound import BoundFamily
from moescope.producers.torch_probe.families.contract import LayerRouter, RouterShape
from moescope.producers.torch_probe.families.recognising import recognise
from moescope.producers.torch_probe.families.registry import adapter_at, refusal_at
from moescope.producers.torch_probe.families.settings import EXPERTS, TOP_K, Places
from moescope.producers.torch_probe.families.versions import require_logits

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from moescope.producers.torch_probe.families.adapter import RouterAdapter

_LAYER: Final = re.compile(r"(?:^|\.)(?:layers|layer|blocks|block|h)\.(\d+)\.")


def find_routers(
    model: torch.nn.Module, *, transformers_version: str | None = None
) -> list[LayerRouter]:
    """The routers of a model, by ascending decoder layer.

    Of a model with several towers (vision and text, thinker and talker, encoder and decoder) hand
    over the one that is meant: layer numbers are those within it.

    Args:
        model: A MoE model.
        transformers_version: Of the package that the model's routers come from; by default the
            installed one.

    Raises:
        InputError: The model has no router that is known, several in one layer, routers of
            different shapes, or routers whose logits cannot be had (transformers 5.0 to 5.5).
    """
    name = str(getattr(getattr(model, "config", None), "model_type", type(model).__name__))
    if _is_encoder_decoder(model):
        raise InputError(
            f"The probe cannot record encoder and decoder of this {name} model at once.",
            why="Their passes compute different rows.",
            next_step="Attach to model.get_encoder() or model.get_decoder(), each with a recorder "
            "of its own.",
        )
    found = list(_known_routers(model)) or list(_recognised_routers(model))
    if not found:
        raise _unknown(model, name)
    adapters = {id(adapter): adapter for _, adapter, _ in found}
    if len(adapters) != 1:
        raise InputError(
            f"The probe found routers of {len(adapters)} kinds in this {name} model.",
            why=f"Kinds {', '.join(a.name for a in adapters.values())}: one recorder has one.",
            next_step="Attach to the part of the model that is meant, with a recorder of its own.",
        )
    (adapter,) = adapters.values()
    layers = [layer for layer, _, _ in found]
    if len(set(layers)) != len(layers):
        raise InputError(
            f"The probe found more than one router in a layer of this {name} model.",
            why=f"Layers {sorted(layers)}: the model has several towers.",
            next_step="Attach to one of them (model.encoder, model.decoder, model.thinker, …), "
            "with a recorder of its own.",
        )
    found.sort(key=lambda router: router[0])
    places = [place for _, _, place in found]
    shapes = {(_experts(adapter, place), _top_k(adapter, place)) for place in places}
    if len(shapes) != 1:
        raise InputError(
            f"The routers of this {name} model have different shapes.",
            why=f"Experts and top-k are {sorted(shapes)}; a recorder has one number of each.",
            next_step="Record the layers that agree with Recorder.record().",
        )
    ((experts, top_k),) = shapes
    family = BoundFamily(name, adapter, places, experts, top_k)
    if any(
        type(part).__module__.startswith("transformers.")
        for part in (places[0].router, places[0].owner)
    ):
        version = transformers_version or metadata.version("transformers")
        require_logits(family, adapter, places[0], experts, version)
    return [LayerRouter(layer, place.router, experts, top_k, family) for layer, _, place in found]


def router_shape(model: torch.nn.Module) -> RouterShape:
    """Layers, experts, top-k and scores of a model, as `Recorder` wants to know them.

    Raises:
        InputError: As of `find_routers`.
    """
    routers = find_routers(model)
    first = routers[0]
    return RouterShape(
        tuple(router.layer for router in routers),
        first.experts,
        first.top_k,
        first.family.score_kind,
        first.family.rank_order,
    )


def _known_routers(
    model: torch.nn.Module,
) -> Iterator[tuple[int, RouterAdapter, Places]]:
    modules = dict(model.named_modules())
    for name, module in modules.items():
        layer = _LAYER.search(name)
        path, _, attribute = name.rpartition(".")
        owner = modules.get(path)
        adapter = adapter_at(module, owner, attribute)
        if layer and adapter is not None:
            config = _config_of(model, module, owner)
            yield int(layer[1]), adapter, Places(module, owner, config)


def _recognised_routers(
    model: torch.nn.Module,
) -> Iterator[tuple[int, RouterAdapter, Places]]:
    modules = dict(model.named_modules())
    adapters: dict[type, RouterAdapter | None] = {}
    for name, module in modules.items():
        layer = _LAYER.search(name)
        if layer is None or refusal_at(module):
            continue
        owner = modules.get(name.rpartition(".")[0])
        places = Places(module, owner, _config_of(model, module, owner))
        if type(module) not in adapters:
            adapters[type(module)] = recognise(places)
        adapter = adapters[type(module)]
        if adapter is not None:
            yield int(layer[1]), adapter, places


def _is_encoder_decoder(model: torch.nn.Module) -> bool:
    whole = getattr(model, "base_model", model)
    return all(hasattr(whole, tower) for tower in ("encoder", "decoder"))


def _config_of(model: Any, module: Any, owner: Any) -> object:  # noqa: ANN401 - any module
    for place in (module, owner):
        if getattr(place, "config", None) is not None:
            return place.config
    config = getattr(model, "config", None)
    return getattr(config, "text_config", None) or config


def _experts(adapter: RouterAdapter, places: Places) -> int:
    return int(places.find(adapter.experts or EXPERTS)) + adapter.extra_experts


def _top_k(adapter: RouterAdapter, places: Places) -> int:
    if isinstance(adapter.top_k, int):
        return adapter.top_k
    return int(places.find(adapter.top_k or TOP_K))


def _unknown(model: torch.nn.Module, name: str) -> InputError:
    for module in model.modules():
        why = refusal_at(module)
        if why:
            return InputError(
                f"The probe cannot read the router of a model of the family {name!r}.",
                why=why,
                next_step="Record the expert ids yourself with Recorder.record().",
            )
    return InputError(
        f"The probe does not know the router of a model of the family {name!r}.",
        why="None of its modules is a router of a registered family, or does what one does.",
        next_step="Declare it with register_family(RouterAdapter(…)), or record the expert ids "
        "yourself with Recorder.record().",
    )
