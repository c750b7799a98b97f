"""Whose rows a forward pass computes."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from moescope.core.vocabulary import UNKNOWN_SCENE, Phase
from moescope.producers.recording.forks import watch_forks
from moescope.producers.torch_probe.inputs import RefusedPassError
from moescope.producers.torch_probe.steps import HeldSteps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import ArrayLike, NDArray

    from moescope.core.vocabulary import Fidelity
    from moescope.producers.profile import Profile
    from moescope.producers.torch_probe.content import ContentOfBatch
    from moescope.producers.torch_probe.inputs import PassInputs
    from moescope.producers.torch_probe.passes import ComputedPass
    from moescope.producers.torch_probe.placing import PlacedRows


class RoutingSink(Protocol):
    """Where a probe's rows go: `Recorder`, or something that stands in for it."""

    @property
    def profile(self) -> Profile:
        """Model, layers, experts and top-k."""
        ...

    @property
    def is_recording(self) -> bool:
        """False while it is closed or switched off: then nothing has to be brought to it."""
        ...

    @property
    def fidelity(self) -> Fidelity:
        """How much is shipped now."""
        ...

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
        pass_id: int | ArrayLike | None = None,
        step: int | ArrayLike | None = None,
        token_ids: ArrayLike | None = None,
        content_keys: ArrayLike | None = None,
        dropped: ArrayLike | None = None,
        rows_per_request: ArrayLike | None = None,
    ) -> None:
        """See `Recorder.record`."""
        ...

    def end_request(self, request_id: str, *, last_of_task: bool = False) -> None:
        """See `Recorder.end_request`."""
        ...

    def miss(self, rows: int, reason: str) -> None:
        """See `Recorder.miss`."""
        ...

    def spend(self, seconds: float) -> None:
        """See `Recorder.spend`."""
        ...

    def before_change(self, flush: Callable[[], None]) -> None:
        """See `Recorder.before_change`."""
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


class RunningBatch:
    """The requests of the rows that one thread computes now.

    Args:
        requests: One per row of the model's batch.
        phase: Of all rows; None when it follows from the prompts' lengths.
        step: Optimizer step, or None.
        end_tokens: Token ids that end each of these generations; None when that was not said.
        held_steps: The most decode steps that wait for each other.

    Attributes:
        ids: Request ids by row; the same list all the time.
        prompt_tokens: int64 [B], once the first pass was seen.
        following: int64 [B], the position behind each request's last token.
        columns: Of all passes so far; what a following pass's mask is longer than.
        has_ended: bool [B], whose end token was seen.
        behind_end: int64 [B], rows left out since then.
        is_doubtful: bool [B], where something followed that no generation feeds behind its end.
        held: Decode steps that wait for the next ones, to be read with them.
        pending: A pass that is computed and not recorded yet.
        latest: Number of the pass that began last.
        refusal: Why no further pass is recorded, or empty.
        content: What the requests said so far, where content keys are recorded.
        is_over: Whether the block that names the requests was left.
        lock: Held while passes are read: their thread may not be the block's.
    """

    def __init__(
        self,
        requests: Sequence[RequestFacts],
        phase: Phase | None = None,
        step: int | None = None,
        end_tokens: NDArray[np.int64] | None = None,
        held_steps: int = 1,
    ) -> None:
        self.requests = tuple(requests)
        self.ids = [request.id for request in self.requests]
        self.phase = phase
        self.step = step
        self.end_tokens = end_tokens
        self.prompt_tokens: NDArray[np.int64] | None = None
        self.following = np.zeros(len(self.requests), np.int64)
        self.columns = 0
        self.has_ended = np.zeros(len(self.requests), np.bool_)
        self.behind_end = np.zeros(len(self.requests), np.int64)
        self.is_doubtful = np.zeros(len(self.requests), np.bool_)
        self.refusal = ""
        self.content: ContentOfBatch | None = None
        self.held = HeldSteps(held_steps)
        self.pending: ComputedPass | None = None
        self.latest = -1
        self.is_over = False
        self.lock = threading.RLock()
        self._is_decoding = False
        self._some_rows = b""
        self._some_ids: list[str] = []
        watch_forks(self)

    def become_child(self) -> None:
        """In a forked child no other thread is there that would release the lock."""
        self.lock = threading.RLock()

    def miss_pass(self) -> None:
        """A pass went by that is not recorded: whose prompts it held is not known later."""
        if (
            not self.refusal
            and self.phase is None
            and self.prompt_tokens is None
            and any(each.prompt_tokens is None for each in self.requests)
        ):
            self.refusal = "the request's first pass was not recorded"

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

    def check_order(self, placed: PlacedRows, is_decoded: NDArray[np.bool_]) -> None:
        """Whether a pass goes on where the last one ended, as a generation does.

        Raises:
            RefusedPassError: It does not: nothing tells which of its tokens are kept.
        """
        if self.phase is not None:
            return
        if not self.columns:
            is_beyond = placed.is_token & is_decoded
            if (is_beyond.any(axis=1) & (np.count_nonzero(placed.is_token, axis=1) > 1)).any():
                raise RefusedPassError(
                    "rows behind the prompt in its own pass",
                    "drafted tokens, or prompt_tokens is too small; batch(phase=…) records what "
                    "was not generated",
                )
            return
        following = self.following[:, None]
        behind = placed.is_token & (placed.position < following)
        if (behind & (placed.position > 0)).any() and not (behind & (placed.position == 0)).any():
            raise RefusedPassError(
                "tokens were taken back", "assisted generation does not tell which it keeps"
            )
        new = placed.is_token & is_decoded & (placed.position >= following)
        if new.shape[1] > 1 and (np.count_nonzero(new, axis=1) > 1).any():
            raise RefusedPassError(
                "several tokens behind the prompt in one pass",
                "assisted generation, or a prompt in pieces without prompt_tokens",
            )

    def is_followed_by(self, inputs: PassInputs) -> bool:
        """Whether a pass goes on where the last one ended, by its mask.

        Then the mask of what was before need not be read again, and the cache not be asked.
        """
        if inputs.mask is None or not self.columns:
            return False
        columns: int = inputs.mask.shape[1]
        return self.columns + len(self.held) == columns - inputs.length

    @property
    def is_decoding(self) -> bool:
        """Whether all prompts are computed, so that each further token is a generated one."""
        if not self._is_decoding and self.prompt_tokens is not None and self.phase is None:
            self._is_decoding = bool((self.following >= self.prompt_tokens).all())
        return self._is_decoding

    def advance(self, placed: PlacedRows, columns: int) -> None:
        """Remember where a pass ended."""
        last = (
            placed.position[:, -1]
            if placed.position.shape[1] == 1
            else (np.where(placed.is_token, placed.position, -1).max(axis=1))
        )
        np.maximum(self.following, last + 1, out=self.following)
        self.columns = columns

    def ids_where(self, is_kept: NDArray[np.bool_]) -> list[str]:
        """Request ids of some rows; the same list as long as they are the same rows."""
        key = is_kept.tobytes()
        if key != self._some_rows:
            self._some_rows = key
            self._some_ids = [self.ids[row] for row in np.flatnonzero(is_kept).tolist()]
        return self._some_ids

    def end(self, sink: RoutingSink) -> None:
        """Tell the sink that all requests are over."""
        if self.prompt_tokens is None:
            return
        for request in self.requests:
            sink.end_request(request.id, last_of_task=request.task is None)
