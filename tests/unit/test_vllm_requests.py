from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from support.plugin_rows import recorded

from moescope.producers import Recorder
from moescope.producers.content_keys import content_keys
from moescope.producers.vllm_plugin.content import EngineContent
from moescope.producers.vllm_plugin.requests import EngineRequests

if TYPE_CHECKING:
    from pathlib import Path

    from support.plugin_rows import RecordedRequest


def scheduled(engine_id: str, prompt: int = 4, cached: int = 0, **arguments: object) -> object:
    """The shape of vLLM's `NewRequestData`."""
    return SimpleNamespace(
        req_id=engine_id, prompt_token_ids=[1] * prompt, prompt_embeds=None,
        num_computed_tokens=cached,
        sampling_params=SimpleNamespace(extra_args=arguments or None, max_tokens=9),
    )  # fmt: skip


class Engine:
    """Requests, and a recorder that gets a row of each."""

    def __init__(self, folder: Path, content: EngineContent | None = None) -> None:
        self.folder = folder
        self.recorder = Recorder(
            model="m", revision="r", layers=[0], experts=4, top_k=2, directory=folder / "ring",
            ring_bytes=1 << 20,
        )  # fmt: skip
        self.requests = EngineRequests(self.recorder, "api", content)

    def compute(self, engine_id: str, position: int) -> None:
        """One row."""
        names = self.requests.named([engine_id]).names
        self.recorder.record(names, [position], [[[0, 1]]], "prefill")

    def recorded(self) -> dict[str, RecordedRequest]:
        """All that was recorded."""
        self.recorder.close()
        return recorded(self.folder / "ring", self.folder / "log").requests


def test_facts_of_requests_are_told_once_and_ends_are_told(tmp_path: Path) -> None:
    """A resumed request is no new one, and the arguments of a call say task and scene."""
    engine = Engine(tmp_path)
    new = scheduled("cmpl-x-0-00000000", 6, 2, moescope_task="talk", moescope_scene="chat")
    engine.requests.begin([new, scheduled("chatcmpl-y-00000000")])
    engine.requests.begin([scheduled("cmpl-x-0-00000000", 6, 4)])  # after preemption
    engine.compute("cmpl-x-0-00000000", 2)
    engine.compute("chatcmpl-y-00000000", 0)
    engine.requests.end(["cmpl-x-0-00000000", "cmpl-never-0-00000000"])
    found = engine.recorded()
    first, second = found["cmpl-x"], found["chatcmpl-y"]
    assert (first.task, first.scene) == ("talk", "chat")
    assert (first.prompt_tokens, first.cached_tokens) == (6, 2)
    assert (second.task, second.scene) == ("chatcmpl-y", "api")
    assert first.has_ended
    assert not second.has_ended


def test_equal_names_of_running_requests_are_kept_apart(tmp_path: Path) -> None:
    """Clients choose `X-Request-Id`, and may choose the same one twice."""
    engine = Engine(tmp_path)
    for digits in ("00000000", "11111111"):
        engine.requests.begin([scheduled(f"chatcmpl-x-{digits}")])
        engine.compute(f"chatcmpl-x-{digits}", 0)
    assert engine.recorded().keys() == {"chatcmpl-x", "chatcmpl-x-11111111"}


def test_an_engine_that_ends_ends_its_requests(tmp_path: Path) -> None:
    """No window waits for rows that never come."""
    engine = Engine(tmp_path)
    engine.requests.begin([scheduled("chatcmpl-x-00000000"), scheduled("chatcmpl-y-00000000")])
    engine.compute("chatcmpl-x-00000000", 0)
    engine.compute("chatcmpl-y-00000000", 0)
    engine.requests.end_all()
    assert len(engine.requests) == 0
    assert all(request.has_ended for request in engine.recorded().values())


def test_a_session_that_is_sent_more_input_has_a_longer_prompt(tmp_path: Path) -> None:
    """Decode starts behind all of it."""
    engine = Engine(tmp_path)
    engine.requests.begin([scheduled("chatcmpl-x-00000000", 3)])
    engine.requests.begin([scheduled("chatcmpl-x-00000000", 8)])
    engine.compute("chatcmpl-x-00000000", 5)
    assert engine.recorded()["chatcmpl-x"].prompt_tokens == 8


def test_the_content_of_a_session_is_all_that_it_was_sent(tmp_path: Path) -> None:
    """Tokens that came later are known like those of any prompt, also where a cache had them."""
    engine = Engine(tmp_path, EngineContent(b"0123456789abcdef"))
    engine.requests.begin([scheduled("chatcmpl-x-00000000", 3)])
    engine.requests.begin([scheduled("chatcmpl-x-00000000", 8)])
    (request,) = engine.requests.named(["chatcmpl-x-00000000"]).requests
    assert request.content is not None
    key = request.content.keys(8, (7).to_bytes(4, "little"), 1)
    wanted = content_keys([1] * 8 + [7], key=b"0123456789abcdef")[-1]
    assert key == int(wanted).to_bytes(8, "little")
    engine.recorder.close()


def test_requests_that_never_began_are_not_guessed(tmp_path: Path) -> None:
    """A pass of an unknown request is refused by whoever asks."""
    engine = Engine(tmp_path)
    with pytest.raises(KeyError):
        engine.requests.named(["chatcmpl-x-00000000"])
    engine.recorder.close()


def test_what_a_client_sends_never_costs_its_request_the_rows(tmp_path: Path) -> None:
    """Long ids and tasks get short names, a scene that cannot be stored becomes unknown."""
    engine = Engine(tmp_path)
    engine_id = f"cmpl-{'x' * 5_000}-0-00000000"
    engine.requests.begin(
        [scheduled(engine_id, 6, 2, moescope_task="t" * 600, moescope_scene="\ud800")]
    )
    engine.compute(engine_id, 2)
    engine.requests.end([engine_id])
    assert engine.recorder.counters().rejected_rows == 0
    ((name, request),) = engine.recorded().items()
    assert name.startswith("cmpl-xxx")
    assert request.task.startswith("ttt")
    assert request.scene == "unknown"
    assert len(engine.requests) == 0
