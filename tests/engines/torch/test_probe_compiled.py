from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
transformers = pytest.importorskip("transformers", reason="`make engines` has transformers")

from support.torch_models import Recording, assert_routed_as, expected_routing, make_model

from moescope.core.vocabulary import Phase
from moescope.producers import attach
from moescope.producers.torch_probe import RequestFacts
from moescope.producers.torch_probe.watching import hook_on

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKENS = [5, 9, 11, 2, 40, 17, 33]
# Tracing, functionalisation and the ahead-of-time graph are Inductor's; generated code is not.
BACKEND = "aot_eager"


@pytest.fixture(autouse=True)
def _compiled_anew() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def model() -> Any:
    """A tiny OLMoE."""
    return make_model("olmoe")


@pytest.fixture
def recording(model: Any, tmp_path: Path) -> Recording:
    """Its recorder."""
    return Recording(model, tmp_path)


def test_a_model_compiled_before_is_recorded(
    model: Any, recording: Recording, verified: Any
) -> None:
    """Attaching to compiled code is seen by it; detaching leaves code without a trace."""
    ids = torch.tensor([TOKENS])
    compiled = torch.compile(model, backend=BACKEND, fullgraph=True)
    with torch.no_grad():
        plain = compiled(ids).logits
        with attach(model, recording.recorder) as probe:
            with probe.request("one"):
                watched = compiled(ids).logits
            assert probe.counters.passed_rows == len(TOKENS)
        after = compiled(ids).logits
    assert torch.equal(plain, watched)
    assert torch.equal(plain, after)
    assert probe.counters.errors == probe.counters.unattributed_rows == 0
    assert_routed_as(recording.rows(), expected_routing(model, TOKENS), range(len(TOKENS)))
    verified(subject="torch probe", what="compiled model, before attach")


def test_a_model_attached_in_inference_mode_is_compiled_outside_of_it(
    model: Any, recording: Recording
) -> None:
    """Loaders run in inference mode; what the probe made there must not break a model elsewhere."""
    ids = torch.tensor([TOKENS])
    with torch.no_grad():
        plain = model(ids).logits
    with torch.inference_mode():
        probe = attach(model, recording.recorder)
    compiled = torch.compile(model, backend=BACKEND, fullgraph=True)
    with probe, probe.request("one"), torch.no_grad():
        assert torch.equal(compiled(ids).logits, plain)
    assert [row.position for row in recording.rows()] == list(range(len(TOKENS)))


def test_steps_on_a_cache_are_recorded(model: Any, recording: Recording, verified: Any) -> None:
    """A prompt and a step behind it through compiled code, compiled while the probe watches."""
    cache = transformers.DynamicCache(config=model.config)
    whole = torch.tensor([TOKENS])
    with torch.no_grad():
        plain = model(whole, use_cache=False).logits[:, -1]
    with attach(model, recording.recorder) as probe, torch.no_grad():
        model.compile(backend=BACKEND, fullgraph=True)
        with probe.request("one"):
            model(whole[:, :-1], cache=cache, use_cache=True)
            watched = model(whole[:, -1:], cache=cache, use_cache=True).logits[:, -1]
        assert probe.counters.errors == probe.counters.refused_passes == 0
    torch.testing.assert_close(watched, plain)
    rows = recording.rows()
    assert_routed_as(rows, expected_routing(model, TOKENS), range(len(TOKENS)))
    assert [row.position for row in rows if row.phase is Phase.DECODE] == [len(TOKENS) - 1]
    verified(subject="torch probe", what="compiled model, after attach, on a cache")


def test_a_compiled_training_step_counts_once(
    model: Any, recording: Recording, verified: Any
) -> None:
    """Recomputation inside a compiled step is no second token, and the gradient is the same."""
    ids = torch.tensor([TOKENS])
    model.train()
    model.activation_checkpointing_enable()
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    gate = model.model.layers[0].mlp.gate.weight
    plain, gate.grad = gate.grad, None
    with attach(model, recording.recorder) as probe:
        compiled = torch.compile(model, backend=BACKEND)
        with probe.batch([RequestFacts(id="one")], phase=Phase.TRAIN, step=1):
            compiled(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        assert probe.counters.passed_rows == len(TOKENS)
        assert probe.counters.errors == 0
    torch.testing.assert_close(gate.grad, plain)
    verified(subject="torch probe", what="compiled training step")


def test_a_graph_break_loses_nothing(model: Any, recording: Recording, verified: Any) -> None:
    """Where the compiler gives up in the middle of a pass, both halves belong to it."""

    def speak(_module: Any, _args: Any, _output: Any) -> None:
        torch._dynamo.graph_break()

    model.model.layers[0].register_forward_hook(speak)
    ids = torch.tensor([TOKENS])
    with attach(model, recording.recorder) as probe, torch.no_grad(), probe.request("one"):
        torch.compile(model, backend=BACKEND)(ids)
        assert probe.counters.passed_rows == len(TOKENS)
    assert_routed_as(recording.rows(), expected_routing(model, TOKENS), range(len(TOKENS)))
    verified(subject="torch probe", what="graph breaks")


def test_a_router_that_cannot_be_read_stops_no_compiler(
    model: Any, recording: Recording, monkeypatch: pytest.MonkeyPatch, verified: Any
) -> None:
    """What goes wrong in a hook while it is traced becomes code that refuses the pass."""
    ids = torch.tensor([TOKENS])
    with torch.no_grad():
        plain = model(ids).logits
    with attach(model, recording.recorder) as probe, torch.no_grad(), probe.request("one"):
        hook = hook_on(model.model.layers[1].mlp.gate)
        assert hook is not None

        def fail(*_arguments: object) -> None:
            raise TypeError("of another version")

        monkeypatch.setattr(type(hook.family), "capture", fail)
        watched = torch.compile(model, backend=BACKEND, fullgraph=True)(ids).logits
        assert probe.counters.refused_passes > 0
        assert probe.counters.passed_rows == 0
    assert torch.equal(plain, watched)
    verified(subject="torch probe", what="an unreadable router stops no compiler")
