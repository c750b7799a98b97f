"""The engine's running requests, and what the recorder is told about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from moescope.producers.vllm_plugin.names import client_name, short_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from moescope.producers.recorder import Recorder
    from moescope.producers.vllm_plugin.content import EngineContent, RequestContent

TASK_ARGUMENT: Final = "moescope_task"
SCENE_ARGUMENT: Final = "moescope_scene"
UNLIMITED: Final = 2**31


@dataclass(slots=True)
class EngineRequest:
    """One running sequence.

    Attributes:
        name: As recorded.
        task: What it belongs to.
        cached_tokens: Positions below it came from a prefix cache.
        scene: Traffic class.
        is_own_task: Whether the task is the call that it belongs to, and ends with that.
        prompt_tokens: Length of its prompt.
        most_tokens: What may be generated.
        stop_tokens: Each of them ends it.
        content: What content keys are made from; None where none are.
    """

    name: str
    task: str
    cached_tokens: int
    scene: str
    is_own_task: bool
    prompt_tokens: int
    most_tokens: int = UNLIMITED
    stop_tokens: frozenset[int] = frozenset()
    content: RequestContent | None = None


@dataclass(frozen=True, slots=True)
class NamedRequests:
    """The requests of one pass.

    Attributes:
        engine_ids: The engine's ids [R].
        requests: [R].
        names: As recorded [R].
        prompt_tokens: int64 [R].
        are_known: Booleans [R], False for those of which nobody told when they began; None where
            all are known.
    """

    engine_ids: list[str]
    requests: list[EngineRequest]
    names: list[str]
    prompt_tokens: NDArray[np.int64]
    are_known: NDArray[np.bool_] | None


class EngineRequests:
    """Begins and ends requests as the scheduler does.

    Args:
        recorder: Told of each.
        scene: Of requests that name none.
        content: Begins the content of each; None where no content keys are recorded.
    """

    def __init__(
        self, recorder: Recorder, scene: str, content: EngineContent | None = None
    ) -> None:
        self._recorder = recorder
        self._scene = scene
        self._content = content
        self._running: dict[str, EngineRequest] = {}
        self._names: set[str] = set()
        self._of_task: dict[str, int] = {}
        self._latest: NamedRequests | None = None

    def __len__(self) -> int:
        """How many run."""
        return len(self._running)

    def begin(self, scheduled: Iterable[Any]) -> None:
        """Learn of requests that are scheduled for the first time, or again after preemption.

        Args:
            scheduled: `NewRequestData` of the scheduler.
        """
        for new in scheduled:
            known = self._running.get(new.req_id)
            if known is None:
                self._begin(new)
            elif known.prompt_tokens != _prompt_tokens(new):  # a session was sent more input
                known.prompt_tokens = _prompt_tokens(new)
                if self._content is not None:
                    known.content = self._content.go_on(known.content, new)
                self._tell(known)

    def end(self, engine_ids: Iterable[str]) -> None:
        """Forget requests that are over, finished or aborted."""
        for engine_id in engine_ids:
            self._latest = None
            request = self._running.pop(engine_id, None)
            if request is None:
                continue
            self._names.discard(request.name)
            left = self._of_task.pop(request.task) - 1
            if left:
                self._of_task[request.task] = left
            self._recorder.end_request(request.name, last_of_task=request.is_own_task and not left)

    def end_all(self) -> None:
        """Forget all of them: the engine ends."""
        self.end(list(self._running))

    def named(self, engine_ids: list[str]) -> NamedRequests:
        """Requests by the engine's ids; decoding engines ask for the same ones all the time."""
        latest = self._latest
        if latest is None or latest.engine_ids != engine_ids:
            running = self._running
            known = [engine_id in running for engine_id in engine_ids]
            requests = [running.get(engine_id) or _unknown(engine_id) for engine_id in engine_ids]
            latest = self._latest = NamedRequests(
                engine_ids,
                requests,
                [request.name for request in requests],
                np.array([request.prompt_tokens for request in requests], np.int64),
                None if all(known) else np.array(known),
            )
        return latest

    def _begin(self, new: Any) -> None:
        name, call = client_name(new.req_id)
        if name in self._names:  # a client that names two running requests alike
            name = call = short_name(new.req_id)
        sampling = new.sampling_params
        arguments = getattr(sampling, "extra_args", None) or {}
        stops = {*(getattr(sampling, "stop_token_ids", None) or ())}
        stops.add(getattr(sampling, "eos_token_id", None))
        task = short_name(_text(arguments.get(TASK_ARGUMENT)))
        request = EngineRequest(
            name=name,
            task=task or call,
            cached_tokens=int(new.num_computed_tokens),
            scene=_text(arguments.get(SCENE_ARGUMENT)) or self._scene,
            is_own_task=not task,
            prompt_tokens=_prompt_tokens(new),
            most_tokens=getattr(sampling, "max_tokens", None) or UNLIMITED,
            stop_tokens=frozenset(stop for stop in stops if stop is not None),
            content=None if self._content is None else self._content.begin(new),
        )
        self._running[new.req_id] = request
        self._names.add(name)
        self._of_task[request.task] = self._of_task.get(request.task, 0) + 1
        self._tell(request)

    def _tell(self, request: EngineRequest) -> None:
        self._latest = None
        self._recorder.begin_request(
            request.name,
            request.prompt_tokens,
            request.cached_tokens,
            request.task,
            request.scene,
        )


def _unknown(engine_id: str) -> EngineRequest:
    """A request of which nothing is known: its rows are not recorded."""
    return EngineRequest(
        name=short_name(engine_id), task="", cached_tokens=0, scene="", is_own_task=False,
        prompt_tokens=0,
    )  # fmt: skip


def _prompt_tokens(new: Any) -> int:
    prompt = new.prompt_token_ids if new.prompt_token_ids is not None else new.prompt_embeds
    return 0 if prompt is None else len(prompt)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
