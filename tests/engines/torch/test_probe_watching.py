"""What watching a router does to the module, and what others do to a watched one."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import threading
import time
import types
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
pytest.importorskip("transformers", reason="`make engines` has transformers")

from support.torch_models import Recording, assert_routed_as, expected_routing, make_model

from moescope.core.errors import InputError
from moescope.producers import attach
from moescope.producers.torch_probe import probe_of
from moescope.producers.torch_probe.hooks import AfterRouter
from moescope.producers.torch_probe.watching import hook_on, watch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.engines
Module: Any = torch.nn.Module
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
        assert [(type(module), dict(vars(module))) for module in model.modules()] != before
        logits(model)
    assert [(type(module), dict(vars(module))) for module in model.modules()] == before


def test_a_watched_router_looks_as_before(model: Any, recording: Recording) -> None:
    """Who asks for its class, its text or the signature of its forward is told the same."""
    gate = gate_of(model)
    kind, text, signature = type(gate), repr(model), inspect.signature(gate.forward)
    with attach(model, recording.recorder):
        assert type(gate) is kind
        assert inspect.signature(gate.forward) == signature
        assert repr(model) == text


def saved_and_loaded(model: Any) -> Any:
    """A model by way of a file of torch."""
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def oldest_pickle(model: Any) -> Any:
    """A model by way of pickle's first protocol."""
    return pickle.loads(pickle.dumps(model, protocol=0))  # noqa: S301 - its own bytes


@pytest.mark.parametrize("copied", [copy.deepcopy, saved_and_loaded, oldest_pickle])
def test_a_copy_is_a_plain_model(
    model: Any, recording: Recording, copied: Callable[[Any], Any]
) -> None:
    """A copy knows nothing of moescope, and can have a probe of its own."""
    names = set(vars(gate_of(model)))
    with attach(model, recording.recorder):
        twin = copied(model)
        assert set(vars(gate_of(twin))) == names
        twin.model._forward_hooks.clear()  # those of the tower do nothing
        twin.model._forward_pre_hooks.clear()
        with attach(twin, Recording(twin, recording.folder / "twin").recorder) as probe:
            with probe.request("one"):
                logits(twin)
            assert probe.counters.passed_rows == len(TOKENS)


def test_a_shallow_copy_of_a_router_is_not_watched(model: Any, recording: Recording) -> None:
    """Neither while the probe is there, nor afterwards."""
    gate = gate_of(model)
    with attach(model, recording.recorder):
        twin = copy.copy(gate)
    assert probe_of(twin) is None
    assert set(vars(twin)) == set(vars(gate))


def prefer_experts(wanted: list[int]) -> Callable[..., Any]:
    """A hook that sends every row to the same experts."""

    def send(_module: Any, _args: Any, output: Any) -> Any:
        scores, weights, ids = output
        return scores, weights, torch.tensor(wanted).expand_as(ids).contiguous()

    return send


@pytest.mark.parametrize("when", ["before", "after", "globally", "globally before"])
def test_what_other_hooks_make_of_a_router_is_recorded(
    model: Any, recording: Recording, when: str, verified: Any
) -> None:
    """Who steers experts by a forward hook is shown what the model then did, from the start on."""
    wanted = [6, 0, 3]
    gate = gate_of(model)

    def steer_globally() -> Any:
        steer = prefer_experts(wanted)

        def only_here(module: Any, args: Any, output: Any) -> Any:
            return steer(module, args, output) if module is gate else None

        return torch.nn.modules.module.register_module_forward_hook(only_here)

    handles = []
    if when == "before":
        handles.append(gate.register_forward_hook(prefer_experts(wanted)))
    if when == "globally before":
        handles.append(steer_globally())
    try:
        with attach(model, recording.recorder) as probe:
            if when == "after":
                handles.append(gate.register_forward_hook(prefer_experts(wanted)))
            if when == "globally":
                handles.append(steer_globally())
            with probe.request("one"):
                logits(model)
            assert probe.counters.incomplete_passes == probe.counters.refused_passes == 0
            assert probe.counters.passed_rows == len(TOKENS)
    finally:
        for handle in handles:
            handle.remove()
    assert not gate._forward_hooks
    rows = recording.rows()
    assert [row.experts[0] for row in rows] == [set(wanted)] * len(TOKENS)
    assert [row.experts[1] for row in rows] != [set(wanted)] * len(TOKENS)
    verified(subject="torch probe", what=f"a router with other hooks, made {when}")


def test_hooks_that_are_added_one_by_one_are_never_overlooked(
    model: Any, recording: Recording
) -> None:
    """A hook behind the probe's costs a pass, which is counted; what follows is the truth."""
    gate = gate_of(model)
    with attach(model, recording.recorder) as probe:
        gate.register_forward_hook(prefer_experts([1, 2, 3]))
        with probe.request("first"):
            logits(model)
        gate.register_forward_hook(prefer_experts([6, 0, 3]))
        with probe.request("lost"):
            logits(model)
        with probe.request("second"):
            logits(model)
        assert probe.counters.refused_passes == 1
    assert recording.recorder.counters().unseen_rows == len(TOKENS)
    found = {row.request: row.experts[0] for row in recording.rows()}
    assert found == {"first": {1, 2, 3}, "second": {6, 0, 3}}


def test_a_forward_that_is_put_around_is_noticed(model: Any, recording: Recording) -> None:
    """Who wraps a watched router's forward keeps a wrapper that works, and is shown what it did."""
    gate = gate_of(model)
    steer = prefer_experts([6, 0, 3])
    with attach(model, recording.recorder) as probe:
        inner = gate.forward
        gate.forward = lambda rows: steer(gate, (), inner(rows))
        with probe.request("lost"):
            wanted = logits(model)
        with probe.request("seen"):
            logits(model)
        assert probe.counters.incomplete_passes == 1
    assert recording.recorder.counters().unseen_rows == len(TOKENS)
    assert torch.equal(logits(model), wanted)
    assert {row.request: row.experts[0] for row in recording.rows()} == {"seen": {6, 0, 3}}


def test_a_class_that_is_patched_meanwhile_is_patched(model: Any, recording: Recording) -> None:
    """A patch of the routers' class while they are watched holds, is recorded, and can go again."""
    kind: Any = type(gate_of(model))
    plain = kind.forward
    steer = prefer_experts([6, 0, 3])
    before = logits(model)
    with attach(model, recording.recorder) as probe:
        kind.forward = lambda self, rows: steer(self, (), plain(self, rows))
        try:
            with probe.request("one"):
                logits(model)
        finally:
            kind.forward = plain
        assert probe.counters.passed_rows == len(TOKENS)
    assert torch.equal(logits(model), before)
    assert {frozenset(row.experts[0]) for row in recording.rows()} == {frozenset({6, 0, 3})}


def test_threads_compute_on_while_a_probe_comes_and_goes(model: Any, recording: Recording) -> None:
    """Detaching amid another thread's pass changes nothing for it."""
    plain = logits(model)
    is_over = threading.Event()
    wrong: list[object] = []

    def compute() -> None:
        while not is_over.is_set():
            try:
                if not torch.equal(logits(model), plain):
                    wrong.append("another output")
            except Exception as error:  # noqa: BLE001 - whatever it is, it is wrong
                wrong.append(error)

    threads = [threading.Thread(target=compute) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(60):
        with attach(model, recording.recorder):
            time.sleep(0.002)
    is_over.set()
    for thread in threads:
        thread.join(timeout=60)
    assert wrong == []


class Numbered(Module):  # type: ignore[misc] # torch is untyped here
    """A module whose class must not be derived from, and whose attributes must not be set."""

    def __init_subclass__(cls) -> None:
        """Refuse."""
        raise TypeError("of this class there is one")

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse, once it is frozen."""
        if getattr(self, "is_frozen", False):
            raise AttributeError(name)
        super().__setattr__(name, value)

    def forward(self, rows: Any) -> Any:
        """Its input."""
        return rows


def test_a_strict_module_can_be_watched(model: Any, recording: Recording) -> None:
    """A class that refuses subclasses, and an instance that refuses attributes."""
    strict = Numbered()
    strict.is_frozen = True
    before = dict(vars(strict))
    with attach(model, recording.recorder) as probe:
        hook = AfterRouter(probe, 0, hook_on(gate_of(model)).family, strict)  # type: ignore[union-attr] # there is one
        handle = watch(strict, hook)
        assert torch.equal(strict(torch.ones(2)), torch.ones(2))
        handle.remove()
    assert dict(vars(strict)) == before


def test_a_failing_attach_leaves_nothing(
    model: Any, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one router cannot be watched, the others are not either, and nothing is in the way."""
    before = [(type(module), dict(vars(module))) for module in model.modules()]
    last = gate_of(model, 1)

    def refuse(*_arguments: object, **_named: object) -> None:
        raise RuntimeError("not this one")

    last.register_forward_hook(lambda *_: None)  # so that a hook has to be taken
    with monkeypatch.context() as patched:
        patched.setattr(last, "register_forward_hook", refuse)
        with pytest.raises(RuntimeError, match="not this one"):
            attach(model, recording.recorder)
    last._forward_hooks.clear()
    assert [(type(module), dict(vars(module))) for module in model.modules()] == before
    with attach(model, recording.recorder):
        pass


def test_a_router_that_runs_twice_in_a_pass_is_counted(model: Any, recording: Recording) -> None:
    """Which of both choices the model used is not known."""
    with attach(model, recording.recorder) as probe, probe.request("one"):
        model.model.layers[1].mlp.register_forward_pre_hook(
            lambda block, given: block.gate(given[0].reshape(-1, given[0].shape[-1])) and None
        )
        logits(model)
        assert (probe.counters.incomplete_passes, probe.counters.passed_rows) == (1, 0)
    assert recording.recorder.counters().unseen_rows == len(TOKENS)


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
    other = copy.deepcopy(gate)
    with attach(model, recording.recorder), torch.no_grad():
        other.weight.neg_()
        replica = gate._replicate_for_data_parallel()
        replica.weight = torch.nn.Parameter(-gate.weight)
        for found, wanted in zip(replica(rows), other(rows), strict=True):
            assert torch.equal(found, wanted)
        assert not torch.equal(replica(rows)[0], gate(rows)[0])


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
