"""Whose rows a forward pass computes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from moescope.core.vocabulary import UNKNOWN_SCENE, Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from moescope.producers.profile import Profile
    from moescope.producers.torch_probe.placing import PlacedRows


class RoutingSink(Protocol):
    """Where a probe's rows go: `Recorder`, or something that stands in for it.

    Attributes:
        profile: Model, layers, experts and top-k.
    """

    profile: Profile

    def begin_request(
        self,
        request_id: str,
        prompt_tokens: int | None = None,
        cached_tokens: int = 0,
        task: str | None = None,
        scene: str = UNKNOWN_SCENE,
    ) -> None:
        """See `Recorder.begin_request`."""
        ...

    def record(
        self,
        request_ids: str | Sequence[str],
        positions: ArrayLike,
        expert_ids: ArrayLike,
        phase: Phase | str | ArrayLike,
        *,
        weights: ArrayLike | None = None,
        entropy: ArrayLike | None = None,
        margin: ArrayLike | None = None,
        step: int | ArrayLike | None = None,
        rows_per_request: ArrayLike | None = None,
    ) -> None:
        """See `Recorder.record`."""
        ...

    def end_request(self, request_id: str, *, last_of_task: bool = False) -> None:
        """See `Recorder.end_request`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """One row of a batch.

    Attributes:
        id: Unique among the running requests of the recorder.
        task: What it belongs to; by default itself.
        scene: Traffic class.
        prompt_tokens: Where decode starts. By default all tokens of the first pass (and those
            cached before it) are the prompt; give it when a prompt is computed in several passes.
        cached_tokens: Positions below it came from a prefix cache. By default the first position
            that is computed.
    """

    id: str
    task: str | None = None
    scene: str = UNKNOWN_SCENE
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(slots=True)
class RunningBatch:
    """The requests of the rows that the model computes now.

    Attributes:
        requests: One per row of the model's batch.
        phase: Of all rows; None when it follows from the prompt's length.
        step: Optimizer step, or None.
        prompt_tokens: int64 [B], once the first pass was seen.
        has_ended: bool [B], whose end token was seen.
    """

    requests: tuple[RequestFacts, ...]
    phase: Phase | None = None
    step: int | None = None
    prompt_tokens: NDArray[np.int64] | None = None
    has_ended: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        """Nothing has ended yet."""
        self.has_ended = np.zeros(len(self.requests), np.bool_)

    @property
    def ids(self) -> list[str]:
        """Request ids by row."""
        return [request.id for request in self.requests]

    def begin(self, sink: RoutingSink, placed: PlacedRows) -> NDArray[np.int64]:
        """Tell the sink about the requests when their first pass is here; prompt lengths [B]."""
        if self.prompt_tokens is not None:
            return self.prompt_tokens
        last = np.where(placed.is_token, placed.position, -1).max(axis=1)
        first = np.where(placed.is_token, placed.position, np.iinfo(np.int64).max).min(axis=1)
        prompts = []
        for request, first_position, last_position in zip(
            self.requests, first.tolist(), last.tolist(), strict=True
        ):
            given = request.prompt_tokens
            prompts.append(last_position + 1 if given is None else given)
            cached = request.cached_tokens
            sink.begin_request(
                request.id,
                prompts[-1],
                min(first_position, prompts[-1]) if cached is None else cached,
                request.task,
                request.scene,
            )
        self.prompt_tokens = np.array(prompts, np.int64)
        return self.prompt_tokens

    def end(self, sink: RoutingSink) -> None:
        """Tell the sink that all requests are over."""
        for request in self.requests:
            sink.end_request(request.id, last_of_task=request.task is None)
