from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from support.plugin_rows import recorded
from support.rings import logged, rows_of

from moescope.core.vocabulary import RowFlag
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

    def ends(self) -> dict[str, RowFlag]:
        """By request: whether it ended, and its task with it."""
        self.recorded()
        ends, found = RowFlag.LAST_OF_REQUEST | RowFlag.LAST_OF_TASK, dict[str, RowFlag]()
        for row in rows_of(logged(self.folder / "log", self.recorder.node)):
            found[row.request] = found.get(row.request, RowFlag(0)) | RowFlag(row.flags) & ends
        return found


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


def test_a_call_ends_as_a_task_with_the_last_of_its_sequences(tmp_path: Path) -> None:
    """Samples of one call end one by one: health of the whole call is told when all of it is in."""
    engine = Engine(tmp_path)
    samples = [f"{sample}_chatcmpl-x-00000000" for sample in range(3)]
    for engine_id in (*samples, "chatcmpl-y-00000000"):
        engine.requests.begin([scheduled(engine_id)])
        engine.compute(engine_id, 0)
    for engine_id in (samples[1], samples[0], "chatcmpl-y-00000000", samples[2]):
        engine.requests.end([engine_id])
    only, both = RowFlag.LAST_OF_REQUEST, RowFlag.LAST_OF_REQUEST | RowFlag.LAST_OF_TASK
    assert engine.ends() == {
        "chatcmpl-x": only, "chatcmpl-x#1": only, "chatcmpl-x#2": both, "chatcmpl-y": both,
    }  # fmt: skip


def test_a_clients_own_task_ends_with_none_of_its_requests(tmp_path: Path) -> None:
    """A conversation goes on with its next call, also where no request of it runs meanwhile."""
    engine = Engine(tmp_path)
    for digits in ("00000000", "11111111"):
        engine_id = f"chatcmpl-{digits[0]}-{digits}"
        engine.requests.begin([scheduled(engine_id, moescope_task="talk")])
        engine.compute(engine_id, 0)
        engine.requests.end([engine_id])
    assert engine.ends() == dict.fromkeys(("chatcmpl-0", "chatcmpl-1"), RowFlag.LAST_OF_REQUEST)


def test_equal_names_of_running_requests_are_kept_apart(tmp_path: Path) -> None:
    """Clients choose `X-Request-Id`, and may choose the same one twice."""
    engine = Engine(tmp_path)
    for digits in ("00000000", "11111111"):
        engine.requests.begin([scheduled(f"chatcmpl-x-{digits}")])
        engine.compute(f"chatcmpl-x-{digits}", 0)
    assert engine.recorded().keys() == {"chatcmpl-x", "chatcmpl-x-11111111"}


def test_a_name_is_free_again_when_its_request_is_over(tmp_path: Path) -> None:
    """A client that sends an `X-Request-Id` again looks it up by that."""
    engine = Engine(tmp_path)
    for digits in ("00000000", "11111111"):
        engine_id = f"chatcmpl-x-{digits}"
        engine.requests.begin([scheduled(engine_id)])
        assert engine.requests.named([engine_id]).names == ["chatcmpl-x"]
        engine.requests.end([engine_id])
    engine.recorder.close()


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
    assert engine.requests.named(["chatcmpl-x-00000000"]).prompt_tokens.tolist() == [3]
    engine.requests.begin([scheduled("chatcmpl-x-00000000", 8)])
    assert engine.requests.named(["chatcmpl-x-00000000"]).prompt_tokens.tolist() == [8]
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
    """They are told from those that did, until they begin: again, after preemption."""
    engine = Engine(tmp_path)
    engine.requests.begin([scheduled("chatcmpl-y-00000000")])
    both = ["chatcmpl-x-00000000", "chatcmpl-y-00000000"]
    found = engine.requests.named(both)
    assert found.are_known is not None
    assert found.are_known.tolist() == [False, True]
    assert found.names[1] == "chatcmpl-y"
    engine.requests.begin([scheduled("chatcmpl-x-00000000")])
    assert engine.requests.named(both).are_known is None
    assert engine.requests.named(both).names == ["chatcmpl-x", "chatcmpl-y"]
    engine.requests.end(both)
    assert engine.requests.named(both[1:]).are_known is not None
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
