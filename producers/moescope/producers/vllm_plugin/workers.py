"""Hooks: from vLLM's workers to the model runner of each, once its model is loaded."""

from __future__ import annotations

import importlib
import logging
import os
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from moescope.core.errors import MoescopeError, one_line
from moescope.core.vocabulary import TokenIdKind
from moescope.producers.recorder import Recorder
from moescope.producers.token_ids import KeyedHash
from moescope.producers.vllm_plugin.capture import RoutingCapture, wrap_router
from moescope.producers.vllm_plugin.content import EngineContent, secret_of
from moescope.producers.vllm_plugin.experts import Experts, SettledExperts, experts_of
from moescope.producers.vllm_plugin.host import host_copies
from moescope.producers.vllm_plugin.identity import (
    engine_ranks,
    recorder_arguments,
    replays_graphs,
)
from moescope.producers.vllm_plugin.misspelt import misspelt_variables
from moescope.producers.vllm_plugin.probe import EngineProbe
from moescope.producers.vllm_plugin.requests import EngineRequests
from moescope.producers.vllm_plugin.routers import ModelRouting, model_routing
from moescope.producers.vllm_plugin.runners import layout_of
from moescope.producers.vllm_plugin.settings import PluginSettings, plugin_settings
from moescope.producers.vllm_plugin.start_line import start_line

if TYPE_CHECKING:
    from collections.abc import Callable

PROBE_ATTRIBUTE: Final = "moescope_probe"
"""Where a model runner keeps its probe."""

_MARK: Final = "_moescope_watches"
_COMPILE_MARK: Final = "moescope"
_OPAQUE_DEVICES: Final = frozenset({"cuda", "xpu"})

_log = logging.getLogger("moescope.producers")
_engine_log = logging.getLogger("vllm.moescope")
"""vLLM shows what its own loggers say while it starts."""


def watch_workers() -> None:
    """Have each worker that gets a device from now on attach a probe when its model is loaded.

    Raises:
        ImportError: This vLLM has no such workers.
        AttributeError: Likewise.
    """
    wrapper = importlib.import_module("vllm.v1.worker.worker_base").WorkerWrapperBase
    if getattr(wrapper, _MARK, False):
        return
    init_device = wrapper.init_device

    @wraps(init_device)
    def init_device_and_watch(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = init_device(self, *args, **kwargs)
        _quietly(watch_worker, self.worker)
        return result

    wrapper.init_device = init_device_and_watch
    setattr(wrapper, _MARK, True)


def watch_worker(worker: Any) -> None:
    """Attach a probe to a worker's runner when the worker has loaded its model."""
    load_model, warm_up = worker.load_model, worker.compile_or_warm_up_model
    shutdown = worker.shutdown

    @wraps(load_model)
    def load_model_and_attach(*args: Any, **kwargs: Any) -> Any:
        result = load_model(*args, **kwargs)
        _quietly(attach_probe, worker.model_runner)
        return result

    @wraps(warm_up)
    def warm_up_unseen(*args: Any, **kwargs: Any) -> Any:
        probe = getattr(worker.model_runner, PROBE_ATTRIBUTE, None)
        if probe is not None:
            probe.is_warming_up = True
        try:
            return warm_up(*args, **kwargs)
        finally:
            if probe is not None:
                probe.is_warming_up = False

    @wraps(shutdown)
    def close_and_shut_down(*args: Any, **kwargs: Any) -> Any:
        probe = getattr(worker.model_runner, PROBE_ATTRIBUTE, None)
        if probe is not None:
            probe.close()
        return shutdown(*args, **kwargs)

    worker.shutdown = close_and_shut_down
    worker.load_model = load_model_and_attach
    worker.compile_or_warm_up_model = warm_up_unseen


def attach_probe(
    runner: Any,
    settings: PluginSettings | None = None,
) -> EngineProbe | None:
    """Attach a probe to a model runner whose model is loaded.

    Args:
        runner: vLLM's model runner, of either generation.
        settings: By default those of the environment.

    Returns:
        None when there is nothing to record: a dense model, or not the first tensor-parallel
        rank, which sees all that the others see.

    Raises:
        SettingsError: A setting is not accepted.
        RingCreateError: The folder cannot be written or has no room for the ring.
    """
    earlier = getattr(runner, PROBE_ATTRIBUTE, None)
    if earlier is not None:
        earlier.close()
    config = runner.vllm_config
    groups = importlib.import_module("vllm.distributed.parallel_state")
    ranks = engine_ranks(config.parallel_config, groups)
    if ranks.tensor_parallel > 0:
        return None
    for variable, meant in misspelt_variables(os.environ):
        _engine_log.warning(
            "moescope: %s is not a setting and has no effect; did you mean %s?", variable, meant
        )
    settings = settings or plugin_settings()
    routing = model_routing(runner.get_model())
    if not routing.layers:
        _engine_log.info("moescope: the model has no MoE layers: nothing is recorded.")
        return None
    content = _content_of(settings)
    version = str(importlib.import_module("vllm").__version__)
    recorder = Recorder(**recorder_arguments(settings, config, routing, ranks, version))
    layout = layout_of(runner)
    refusal = routing.refusal or ("" if layout else f"unknown runner {type(runner).__name__}")
    capture = None if refusal else _capture(runner, routing)
    detach = _nothing if capture is None else _wrap(routing, capture)
    has_tokens = settings.token_ids is not TokenIdKind.OFF or content is not None
    probe = EngineProbe(
        recorder,
        EngineRequests(recorder, settings.scene, content),
        layout,
        capture,
        None if capture is None else host_copies(capture, with_token_ids=has_tokens),
        refusal=refusal,
        with_weights=settings.weights,
        hash_tokens=_hash_of(settings, config.model_config),
        detach=detach,
        experts=_experts(runner, routing, groups),
        content=content,
        held_passes=settings.held_passes,
    )
    hook_runner(runner, probe)
    has_keys = content is not None
    _engine_log.info("%s", start_line(recorder, settings.directory, refusal, has_keys=has_keys))
    return probe


def _capture(runner: Any, routing: ModelRouting) -> RoutingCapture:
    """Buffers for a runner's largest pass."""
    config = runner.vllm_config
    graph_sizes = getattr(config.compilation_config, "cudagraph_capture_sizes", None) or (0,)
    rows = max(int(config.scheduler_config.max_num_batched_tokens), *graph_sizes)
    capture = RoutingCapture(
        len(routing.layers),
        rows * int(config.parallel_config.data_parallel_size),
        routing.top_k,
        runner.device,
        is_replayed=replays_graphs(config.compilation_config),
    )
    # Where routers are compiled with the rest (a GPU calls them from an opaque operation), the
    # code is cached on disk, by this among others: with the probe's operation it is another code.
    if runner.device.type not in _OPAQUE_DEVICES and isinstance(config.additional_config, dict):
        config.additional_config[_COMPILE_MARK] = True
    return capture


def _wrap(routing: ModelRouting, capture: RoutingCapture) -> Callable[[], None]:
    """Wrap all routers; returns what takes the wrappers off again."""
    unwrappers = [
        wrap_router(layer.router, capture, index) for index, layer in enumerate(routing.layers)
    ]

    def unwrap_all() -> None:
        for unwrap in unwrappers:
            unwrap()

    return unwrap_all


def _experts(runner: Any, routing: ModelRouting, groups: Any) -> Experts:
    """Where a model's experts are; nowhere, said in the log, where that cannot be found out."""
    try:
        return experts_of(runner, routing, groups)
    except Exception:  # noqa: BLE001 - routing is worth recording without
        _log.warning("The placement of experts is not recorded.", exc_info=True)
        return SettledExperts(None)


def _nothing() -> None:
    """There is nothing to take off."""


def _hash_of(settings: PluginSettings, config: Any) -> KeyedHash | None:
    """What hashes token ids, as far as they are to be hashed."""
    if settings.token_key_file is None or settings.token_ids is not TokenIdKind.KEYED_HASH:
        return None
    return KeyedHash(settings.token_key_file, vocabulary=int(config.get_vocab_size()))


def _content_of(settings: PluginSettings) -> EngineContent | None:
    """What makes content keys, where they are wanted."""
    if settings.content_key_file is None:
        return None
    return EngineContent(secret_of(settings.content_key_file))


def hook_runner(runner: Any, probe: EngineProbe) -> None:
    """Put a probe around a runner's passes."""
    execute_model, sample_tokens = runner.execute_model, runner.sample_tokens

    @wraps(execute_model)
    def execute_model_seen(*args: Any, **kwargs: Any) -> Any:
        scheduled = args[0] if args else kwargs.get("scheduler_output")
        if not probe.before_pass(scheduled, args[1:], kwargs):
            return execute_model(*args, **kwargs)
        is_complete = False
        try:
            result = execute_model(*args, **kwargs)
            is_complete = True
        finally:
            probe.after_pass(scheduled, is_complete=is_complete)
        return result

    @wraps(sample_tokens)
    def sample_tokens_seen(*args: Any, **kwargs: Any) -> Any:
        output = sample_tokens(*args, **kwargs)
        probe.after_sampling(output)
        return output

    runner.execute_model = execute_model_seen
    if runner.vllm_config.speculative_config is not None:
        runner.sample_tokens = sample_tokens_seen
    setattr(runner, PROBE_ATTRIBUTE, probe)


def _quietly(act: Callable[[Any], Any], subject: Any) -> None:
    try:
        act(subject)
    except MoescopeError as error:  # its text says all: where it was raised does not matter
        _log.error("The engine is not watched by moescope: %s", one_line(error))
    except Exception:  # noqa: BLE001 - inference comes first
        _log.exception("The engine is not watched by moescope: the probe could not be attached.")
