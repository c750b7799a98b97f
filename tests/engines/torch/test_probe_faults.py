from __future__ import annotations

import copy
import pickle
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
pytest.importorskip("transformers", reason="`make engines` has transformers")

from support.torch_models import (
    EXPERTS,
    Recording,
    assert_routed_as,
    expected_routing,
    make_model,
)

from moescope.core.errors import InputError
from moescope.producers import attach
from moescope.producers.torch_probe.unrecorded import ERRORS_ALLOWED
from moescope.producers.torch_probe.watching import hook_on

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TOKENS = [5, 9, 11, 2, 40, 17, 33]


@pytest.fixture
def model() -> Any:
    """A tiny OLMoE."""
    return make_model("olmoe")


@pytest.fixture
def recording(model: Any, tmp_path: Path) -> Recording:
    """Its recorder."""
    return Recording(model, tmp_path)


def logits(model: Any, tokens: list[int] = TOKENS) -> Any:
    """One forward pass."""
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits


def wait_for(recording: Recording, *, is_recording: bool) -> None:
    """The recorder looks at its switch once a second."""
    for _ in range(100):
        if recording.recorder.is_recording is is_recording:
            return
        time.sleep(0.05)
    pytest.fail("the recorder never looked")


def unseen(recording: Recording) -> int:
    """Rows that lower the coverage."""
    return recording.recorder.counters().unseen_rows


def test_two_probes_on_one_model_are_refused(
    model: Any, recording: Recording, verified: Any
) -> None:
    """A second probe would count every token twice; after detaching there is room for one."""
    with attach(model, recording.recorder), pytest.raises(InputError, match="has a probe already"):
        attach(model, recording.recorder)
    with attach(model, recording.recorder) as probe, probe.request("one"):
        logits(model)
    assert len(recording.rows()) == len(TOKENS)
    verified(subject="torch probe", what="refused: a second probe")


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_scores_that_are_no_numbers_are_left_out(
    model: Any, recording: Recording, broken: float, verified: Any
) -> None:
    """A router that computes nonsense is told as unseen, not as routing; the output stays."""
    model.model.layers[1].mlp.gate.weight.data[2] = broken
    plain = logits(model)
    with attach(model, recording.recorder) as probe:
        with probe.request("one"):
            watched = logits(model)
        assert probe.counters.invalid_rows == len(TOKENS)
        assert probe.counters.passed_rows == 0
    assert torch.equal(plain, watched) or torch.isnan(plain).equal(torch.isnan(watched))
    assert unseen(recording) == len(TOKENS)
    assert recording.rows() == []
    verified(subject="torch probe", what=f"same output, and counted: scores of {broken}")


def test_experts_that_do_not_exist_are_left_out(
    model: Any, recording: Recording, monkeypatch: pytest.MonkeyPatch, verified: Any
) -> None:
    """Ids out of range never reach the counts; the rows beside them do."""
    plain = logits(model)
    with attach(model, recording.recorder) as probe:
        hook = hook_on(model.model.layers[0].mlp.gate)
        assert hook is not None
        read = type(hook.family).interpret

        def lie(*arguments: Any, **named: Any) -> Any:
            routing = read(*arguments, **named)
            wrong = routing.expert_ids.clone()
            wrong[3, 0, 1] = EXPERTS
            wrong[4, 0, 0] = -1
            return routing._replace(expert_ids=wrong)

        monkeypatch.setattr(type(hook.family), "interpret", lie)
        with probe.request("one"):
            watched = logits(model)
        assert (probe.counters.invalid_rows, probe.counters.passed_rows) == (2, len(TOKENS) - 2)
    assert torch.equal(plain, watched)
    assert [row.position for row in recording.rows()] == [0, 1, 2, 5, 6]
    verified(subject="torch probe", what="same output, and counted: experts that do not exist")


def test_a_probe_that_keeps_failing_switches_itself_off(
    model: Any,
    recording: Recording,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    verified: Any,
) -> None:
    """Errors inside hooks never change the output, are counted, and end with one line."""
    plain = logits(model)
    with attach(model, recording.recorder) as probe:
        hook = hook_on(model.model.layers[1].mlp.gate)
        assert hook is not None

        def fail(*_arguments: object, **_named: object) -> None:
            raise RuntimeError("no such luck")

        monkeypatch.setattr(type(hook.family), "interpret", fail)
        outputs = []
        for name in range(ERRORS_ALLOWED + 5):
            with probe.request(str(name)):
                outputs.append(logits(model))
        assert probe.counters.errors == ERRORS_ALLOWED
    assert all(torch.equal(plain, output) for output in outputs)
    assert [r.message for r in caplog.records if "no such luck" in r.message] == [
        "Not recorded (said once, then only counted): RuntimeError: no such luck"
    ]
    assert len([r for r in caplog.records if "switched off" in r.message]) == 1
    verified(subject="torch probe", what="same output, and counted: a failing probe")


def test_a_closed_recorder_changes_nothing(model: Any, recording: Recording, verified: Any) -> None:
    """A recorder that is closed while the model computes is no one's error."""
    plain = logits(model)
    with attach(model, recording.recorder) as probe, probe.request("one"):
        recording.recorder.close()
        assert torch.equal(logits(model), plain)
    assert probe.counters.errors == 0
    verified(subject="torch probe", what="same output: a closed recorder")


def test_a_switch_that_comes_back_guesses_nothing(model: Any, recording: Recording) -> None:
    """A request whose prompt went by unrecorded has no phases; the next request is whole."""
    switch = recording.folder / "rings" / "disable"
    with attach(model, recording.recorder) as probe:
        with probe.request("unseen"):
            switch.touch()
            wait_for(recording, is_recording=False)
            logits(model)
            switch.unlink()
            wait_for(recording, is_recording=True)
            logits(model)
        assert (probe.counters.passed_rows, probe.counters.refused_passes) == (0, 1)
        with probe.request("seen"):
            logits(model)
    assert {row.request for row in recording.rows()} == {"seen"}


def test_a_pass_that_fails_leaves_no_trace(model: Any, recording: Recording) -> None:
    """An exception of the model's own reaches the caller; the next pass is recorded whole."""
    last = model.model.layers[1].mlp

    def break_once(_module: Any, _args: Any) -> None:
        raise RuntimeError("out of memory")

    with attach(model, recording.recorder) as probe, probe.request("one"):
        handle = last.register_forward_pre_hook(break_once)
        with pytest.raises(RuntimeError, match="out of memory"):
            logits(model)
        handle.remove()
        logits(model)
        assert probe.counters.errors == 0
    assert_routed_as(recording.rows(), expected_routing(model, TOKENS), range(len(TOKENS)))


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))],  # noqa: S301 - its own bytes
    ids=["deepcopy", "pickle"],
)
def test_copies_of_a_watched_model_are_not_watched(
    model: Any, recording: Recording, copied: Callable[[Any], Any], verified: Any
) -> None:
    """A copy works as the original does, and records nothing, even under the same request."""
    plain = logits(model)
    with attach(model, recording.recorder) as probe, probe.request("one"):
        twin = copied(model)
        assert torch.equal(logits(twin), plain)
        assert probe.counters.passed_rows == probe.counters.incomplete_passes == 0
        logits(model)
        assert probe.counters.passed_rows == len(TOKENS)
    assert torch.equal(logits(twin), plain)
    verified(subject="torch probe", what="copies of the model")


def test_a_model_that_changes_type_is_watched_on(
    model: Any, recording: Recording, verified: Any
) -> None:
    """Moving or converting the weights while attached leaves the hooks where they are."""
    with attach(model, recording.recorder) as probe, probe.request("one"):
        model.to(torch.bfloat16)
        logits(model)
        assert probe.counters.passed_rows == len(TOKENS)
    verified(subject="torch probe", what="a model that is converted")


def test_threads_are_never_mixed_up(model: Any, recording: Recording, verified: Any) -> None:
    """Two threads inside one model, each with its request, and one that announced nothing."""
    sequences = {"left": TOKENS, "right": [7, 7, 21, 3, 3, 18, 44], "nobody": [1, 2, 3, 4]}
    meet = threading.Barrier(len(sequences), timeout=60)
    gate = model.model.layers[0].mlp.gate

    def wait(_module: Any, _args: Any, _output: Any) -> None:
        meet.wait()  # every thread is inside its pass now

    with attach(model, recording.recorder) as probe:
        handle = gate.register_forward_hook(wait)

        def compute(name: str) -> None:
            if name == "nobody":
                logits(model, sequences[name])
                return
            with probe.request(name):
                logits(model, sequences[name])

        threads = [threading.Thread(target=compute, args=(name,)) for name in sequences]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
        handle.remove()
        assert probe.counters.unattributed_rows == len(sequences["nobody"])
        assert probe.counters.errors == probe.counters.incomplete_passes == 0
    rows = recording.rows()
    for name in ("left", "right"):
        mine = [row for row in rows if row.request == name]
        assert_routed_as(mine, expected_routing(model, sequences[name]), range(len(TOKENS)))
    assert len(rows) == 2 * len(TOKENS)
    verified(subject="torch probe", what="two threads")
