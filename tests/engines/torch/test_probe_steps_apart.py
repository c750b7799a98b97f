"""Steps that may not be read together, and what happens to those that wait meanwhile."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
transformers = pytest.importorskip("transformers", reason="`make engines` has transformers")

from support.torch_models import Recording, make_model

from moescope.core.vocabulary import Fidelity
from moescope.producers import attach
from moescope.producers.recording.budget import Rung
from moescope.producers.torch_probe import RequestFacts
from moescope.producers.torch_probe.requests import RunningBatch
from moescope.producers.waiting import HELD_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.engines
FACTS = [RequestFacts(id="a"), RequestFacts(id="b")]


def placed(recording: Recording) -> list[tuple[str, int]]:
    """Request and position of each row that was recorded."""
    return sorted((row.request, row.position) for row in recording.rows())


def steps_with_and_without_a_mask(folder: Path, held: int) -> list[tuple[str, int]]:
    """Three steps of two requests: only the second has a mask, and the second request none then."""
    model = make_model("olmoe")
    recording = Recording(model, folder)
    cache = transformers.DynamicCache(config=model.config)
    with attach(model, recording.recorder, held_steps=held) as probe, torch.no_grad():
        probe._clock = lambda: 0.0
        with probe.batch(FACTS):
            model(torch.tensor([[5, 9, 41], [7, 3, 2]]), cache=cache)
            model(torch.tensor([[11], [12]]), cache=cache)
            mask = torch.ones(2, 5, dtype=torch.long)
            mask[1, -1] = 0
            model(torch.tensor([[13], [0]]), attention_mask=mask, cache=cache)
            model(torch.tensor([[14], [15]]), cache=cache)
    return placed(recording)


def test_a_step_with_a_mask_is_not_read_with_those_that_have_none(tmp_path: Path) -> None:
    """Its padding would be taken for a token, and the next row for the one behind it."""
    alone = steps_with_and_without_a_mask(tmp_path / "alone", 1)
    assert ("b", 4) in alone
    assert ("b", 5) not in alone
    assert steps_with_and_without_a_mask(tmp_path / "together", 16) == alone


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_steps_in_autocast_do_not_wait(tmp_path: Path, device: str) -> None:
    """Logits computed again behind its end would be others, whatever device it holds for."""
    model = make_model("olmoe")
    recording = Recording(model, tmp_path)
    cache = transformers.DynamicCache(config=model.config)
    with attach(model, recording.recorder) as probe, torch.no_grad():
        probe._clock = lambda: 0.0
        with probe.request("one"):
            passed: list[int] = []
            for tokens in ([5, 9, 41], [11], [12], [13]):
                torch.set_autocast_enabled(device, len(passed) != 1)
                try:
                    model(torch.tensor([tokens]), cache=cache)
                finally:
                    torch.set_autocast_enabled(device, False)  # noqa: FBT003 - torch names no argument
                passed.append(probe.counters.passed_rows)
    assert passed == [3, 4, 5, 6]


@pytest.mark.parametrize("held", [1, 16])
def test_end_tokens_that_a_batch_names_count_without_any_of_the_model(
    held: int, tmp_path: Path
) -> None:
    """What a row is fed behind one is no token of it, whatever the model's settings say."""
    model = make_model("olmoe")
    model.generation_config.eos_token_id = None
    recording = Recording(model, tmp_path)
    cache = transformers.DynamicCache(config=model.config)
    with attach(model, recording.recorder, held_steps=held) as probe, torch.no_grad():
        probe._clock = lambda: 0.0
        with probe.batch(FACTS, end_tokens=[30]):
            model(torch.tensor([[5, 9, 41], [7, 3, 2]]), cache=cache)
            for tokens in ([11, 12], [13, 30], [14, 0], [15, 0]):
                model(torch.tensor(tokens)[:, None], cache=cache)
    assert placed(recording) == [
        *(("a", position) for position in range(7)),
        *(("b", position) for position in range(4)),
    ]


def test_a_budget_that_steps_down_takes_nothing_from_steps_before(tmp_path: Path) -> None:
    """They were computed while all was recorded, and are shipped like that."""
    model = make_model("olmoe")
    recording = Recording(model, tmp_path)
    cache = transformers.DynamicCache(config=model.config)
    with attach(model, recording.recorder) as probe, torch.no_grad():
        probe._clock = lambda: 0.0
        with probe.request("one"):
            model(torch.tensor([[5, 9, 41]]), cache=cache)
            for token in (11, 12, 13, 14):
                model(torch.tensor([[token]]), cache=cache)
            recording.recorder._follow(Rung(Fidelity.COUNTS, 1.0))
            model(torch.tensor([[15]]), cache=cache)
    assert [row.position for row in recording.rows()] == list(range(7))


def test_a_forked_child_does_not_wait_for_a_thread_that_it_has_not() -> None:
    """Whoever held a batch's lock when the process forked lets go of it in the parent alone."""
    running = RunningBatch(FACTS)
    may_end, has_it = threading.Event(), threading.Event()

    def hold() -> None:
        with running.lock:
            has_it.set()
            may_end.wait(60.0)

    holder = threading.Thread(target=hold)
    holder.start()
    assert has_it.wait(60.0)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        with running.lock:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    may_end.set()
    holder.join()
    assert status == 0


def test_another_thread_reads_steps_only_once_a_generation_pauses(tmp_path: Path) -> None:
    """Beside a model that computes it would cost turns of the interpreter: steps still come."""
    model = make_model("olmoe")
    recording = Recording(model, tmp_path)
    cache = transformers.DynamicCache(config=model.config)
    seconds = [0.0]
    with attach(model, recording.recorder) as probe, torch.no_grad():
        probe._late.stop()  # its turns are taken by hand
        probe._clock = lambda: seconds[0]
        with probe.request("one"):
            model(torch.tensor([[5, 9, 41]]), cache=cache)
            for token, at in ((11, 0.0), (12, 0.09), (13, 0.18)):
                seconds[0] = at
                model(torch.tensor([[token]]), cache=cache)
            before = probe.counters.passed_rows  # the first step came alone: it is read
            seconds[0] = 0.18 + HELD_SECONDS - 0.01  # the second has waited for longer
            assert probe.read_late()
            assert probe.counters.passed_rows == before
            seconds[0] = 0.18 + HELD_SECONDS + 0.01
            assert not probe.read_late()
            assert probe.counters.passed_rows == before + 2


def test_an_idle_probe_has_no_thread_until_steps_wait_and_none_behind_them(tmp_path: Path) -> None:
    """A model that computes nothing is watched at no cost; a thread sleeps until steps wait."""
    model = make_model("olmoe")
    recording = Recording(model, tmp_path)

    def late_threads() -> list[threading.Thread]:
        return [each for each in threading.enumerate() if each.name == "moescope-late-passes"]

    for thread in late_threads():  # of probes that tests before this one have detached
        thread.join(60.0)
    before = {*threading.enumerate()}
    with attach(model, recording.recorder) as probe, torch.no_grad():
        with probe.request("one"):
            model(torch.tensor([[5, 9, 41]]), use_cache=False)
        assert {*threading.enumerate()} == before
        cache = transformers.DynamicCache(config=model.config)
        with probe.request("two"):
            for token in (11, 12, 13):
                model(torch.tensor([[token]]), cache=cache)
        [late] = late_threads()
    late.join(60.0)
    assert late_threads() == []
