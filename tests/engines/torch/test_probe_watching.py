"""What watching a router does to the module, and what others do to a watched one."""

from __future__ import annotations

import copy
import io
import types
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
pytest.importorskip("transformers", reason="`make engines` has transformers")

from support.torch_models import Recording, assert_routed_as, expected_routing, make_model

from moescope.core.errors import InputError
from moescope.producers import attach
from moescope.producers.torch_probe import probe_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.engines
TOKENS = [5, 9, 41, 7, 30, 2, 11]


@pytest.fixture
def model() -> Any:
    """A tiny OLMoE."""
    return make_model("olmoe")


@pytest.fixture
def recording(model: Any, tmp_path: Path) -> Recording:
    """Its recorder."""
    return Recording(model, tmp_path)


def logits(model: Any) -> Any:
    """Of one pass over the tokens."""
    with torch.no_grad():
        return model(torch.tensor([TOKENS]), use_cache=False).logits


def gate_of(model: Any, layer: int = 0) -> Any:
    """The router of a layer."""
    return model.model.layers[layer].mlp.gate


def test_detach_leaves_each_module_as_it_was(model: Any, recording: Recording) -> None:
    """Class and attributes of every module are those from before."""
    before = [(type(module), dict(vars(module))) for module in model.modules()]
    with attach(model, recording.recorder) as probe, probe.request("one"):
        assert type(gate_of(model)) is not before[0][0]
        logits(model)
    assert [(type(module), dict(vars(module))) for module in model.modules()] == before


def test_a_watched_router_looks_like_its_own_class(model: Any, recording: Recording) -> None:
    """Who asks for its kind or its name, or reads the signature of forward, is told the same."""
    kind, text = type(gate_of(model)), repr(model)
    with attach(model, recording.recorder):
        gate = gate_of(model)
        assert isinstance(gate, kind)
        assert (type(gate).__name__, type(gate).__module__) == (kind.__name__, kind.__module__)
        assert gate.forward.__wrapped__ is kind.forward
        assert repr(model) == text


def saved_and_loaded(model: Any) -> Any:
    """A model by way of a file of torch."""
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, saved_and_loaded], ids=["deepcopy", "save"])
def test_a_copy_has_the_plain_class(
    model: Any, recording: Recording, copied: Callable[[Any], Any]
) -> None:
    """A copy knows nothing of moescope, and can have a probe of its own."""
    kind = type(gate_of(model))
    with attach(model, recording.recorder):
        twin = copied(model)
        assert type(gate_of(twin)) is kind
        assert probe_of(twin) is None
        with attach(twin, Recording(twin, recording.folder / "twin").recorder) as probe:
            with probe.request("one"):
                logits(twin)
            assert probe.counters.passed_rows == len(TOKENS)


def prefer_experts(wanted: list[int]) -> Callable[..., Any]:
    """A hook that sends every row to the same experts."""

    def send(_module: Any, _args: Any, output: Any) -> Any:
        scores, weights, ids = output
        return scores, weights, torch.tensor(wanted).expand_as(ids).contiguous()

    return send


@pytest.mark.parametrize("when", ["before", "after", "globally"])
def test_what_other_hooks_make_of_a_router_is_recorded(
    model: Any, recording: Recording, when: str, verified: Any
) -> None:
    """Who steers experts by a forward hook is shown what the model then did, from the start on."""
    wanted = [6, 0, 3]
    gate = gate_of(model)
    handles = []
    if when == "before":
        handles.append(gate.register_forward_hook(prefer_experts(wanted)))
    with attach(model, recording.recorder) as probe:
        if when == "after":
            handles.append(gate.register_forward_hook(prefer_experts(wanted)))
        if when == "globally":
            steer = prefer_experts(wanted)

            def only_here(module: Any, args: Any, output: Any) -> Any:
                return steer(module, args, output) if module is gate else None

            handles.append(torch.nn.modules.module.register_module_forward_hook(only_here))
        with probe.request("one"):
            logits(model)
        assert probe.counters.incomplete_passes == 0
        assert probe.counters.passed_rows == len(TOKENS)
    for handle in handles:
        handle.remove()
    assert not gate._forward_hooks
    rows = recording.rows()
    assert [row.experts[0] for row in rows] == [set(wanted)] * len(TOKENS)
    assert [row.experts[1] for row in rows] != [set(wanted)] * len(TOKENS)
    verified(subject="torch probe", what=f"a router with other hooks, made {when}")


def test_a_router_with_a_forward_of_its_own_is_hooked(model: Any, recording: Recording) -> None:
    """Libraries that put a forward on a module itself keep it, and the probe sees through it."""
    gate = gate_of(model)
    plain = gate.forward
    calls: list[int] = []

    def own(module: Any, rows: Any) -> Any:
        assert module is gate
        calls.append(len(rows))
        return plain(rows)

    gate.forward = types.MethodType(own, gate)
    before = dict(vars(gate))
    with attach(model, recording.recorder) as probe, probe.request("one"):
        logits(model)
        assert probe.counters.passed_rows == len(TOKENS)
    assert dict(vars(gate)) == before
    assert calls == [len(TOKENS)]


def test_a_class_that_is_derived_meanwhile_stays(model: Any, recording: Recording) -> None:
    """A parametrization exchanges the class, too: it lives on when the probe is gone."""
    gate = gate_of(model)
    with attach(model, recording.recorder) as probe:
        torch.nn.utils.parametrize.register_parametrization(gate, "weight", torch.nn.Identity())
        with probe.request("one"):
            watched = logits(model)
        assert probe.counters.passed_rows == len(TOKENS)
        twin = copy.deepcopy(model)
        assert torch.equal(logits(twin), watched)
    assert torch.nn.utils.parametrize.is_parametrized(gate)
    assert torch.equal(logits(model), watched)
    with attach(model, Recording(model, recording.folder / "again").recorder) as probe:
        with probe.request("two"):
            logits(model)
        assert probe.counters.passed_rows == len(TOKENS)


def test_replicas_compute_with_their_own_weights(model: Any, recording: Recording) -> None:
    """A replica as DataParallel makes them is no second name of the watched router."""
    gate = gate_of(model)
    rows = torch.randn(4, gate.weight.shape[1])
    with attach(model, recording.recorder) as probe, probe.request("one"), torch.no_grad():
        replica = gate._replicate_for_data_parallel()
        replica.weight = torch.nn.Parameter(-gate.weight)
        assert torch.equal(replica(rows)[0], torch.nn.functional.linear(rows, -gate.weight)) or (
            not torch.equal(replica(rows)[0], gate(rows)[0])
        )
        logits(model)
        assert probe.counters.passed_rows == len(TOKENS)


def test_a_second_probe_is_refused_and_the_first_one_found(
    model: Any, recording: Recording
) -> None:
    """A watched router has no hook that could be looked for, and is known all the same."""
    with attach(model, recording.recorder) as probe:
        assert probe_of(gate_of(model, 1)) is probe
        with pytest.raises(InputError, match="has a probe already"):
            attach(model, recording.recorder)
        with probe.request("one"):
            logits(model)
    assert probe_of(model) is None
    assert_routed_as(recording.rows(), expected_routing(model, TOKENS), range(len(TOKENS)))
