"""Whose rows a forward pass computes."""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from moescope.core.errors import InputError
from moescope.core.printable import printable
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


NO_TOKEN: Final = -1
NO_ID: Final = "a request id that is no text, or empty"
SAME_ID: Final = "one request id on two rows of a batch"
NO_COUNT: Final = "prompt_tokens or cached_tokens that are no number of tokens"


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
            that is computed; none where a pass before it was not recorded.
    """

    id: str
    task: str | None = None
    scene: str = UNKNOWN_SCENE
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


def checked_requests(requests: object) -> tuple[RequestFacts, ...]:
    """The rows of a batch.

    Raises:
        InputError: They are no `RequestFacts`: a mistake of the program, the same each time.
    """
    if isinstance(requests, Iterable):
        given = tuple(requests)
        if all(isinstance(each, RequestFacts) for each in given):
            return given
    raise InputError(
        f"A batch cannot be {printable(repr(requests))[:80]}.",
        why="It needs what is known of the request of each row.",
        next_step='Give a list: batch([RequestFacts(id="…"), …]), in the order of the rows.',
    )


def checked_end_tokens(end_tokens: object) -> NDArray[np.int64] | None:
    """Token ids int64 [n] that end a row; None when none were given.

    Raises:
        InputError: They are no token ids: a mistake of the program.
    """
    if end_tokens is None:
        return None
    if isinstance(end_tokens, Iterable) and not isinstance(end_tokens, str):
        with suppress(TypeError, OverflowError):
            return np.array([operator.index(token) for token in end_tokens], np.int64)
    raise InputError(
        f"end_tokens cannot be {printable(repr(end_tokens))[:80]}.",
        why="They are token ids, as the model is fed them.",
        next_step="Give a list of whole numbers, such as [tokenizer.eos_token_id].",
    )


def why_refused(requests: Sequence[RequestFacts]) -> str:
    """Why nothing of these requests can be recorded, or empty.

    What names and counts requests comes from clients: a server is not to fail by it.
    """
    ids = [request.id for request in requests]
    if not all(isinstance(each, str) and each for each in ids):
        return NO_ID
    if len({*ids}) < len(ids):
        return SAME_ID
    counts = [(request.prompt_tokens, request.cached_tokens) for request in requests]
    if not all(count is None or _is_count(count) for pair in counts for count in pair):
        return NO_COUNT
    return ""


def _is_count(given: object) -> bool:
    try:
        return operator.index(given) >= 0  # type: ignore[arg-type]  # whatever a program passes
    except TypeError:
        return False


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
        has_missed: Whether a pass went by that is not recorded.
        fed_since_gap: int64 [B], the token that a row was fed behind such passes, as long as it
            is fed no other one: it may be padding of a generation that has ended; −1 for none.
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
        self.has_missed = False
        self.fed_since_gap = np.full(len(self.requests), NO_TOKEN, np.int64)
        self.refusal = why_refused(self.requests)
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
        self.has_missed = True
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
            if cached is None:  # tokens of a pass that was missed were computed: they are lost
                cached = 0 if self.has_missed else min(first_position, prompts[-1])
            sink.begin_request(
                request.id,
                prompts[-1],
                cached,
                request.task,
                request.scene,
            )
        self.prompt_tokens = np.array(prompts, np.int64)
        return self.prompt_tokens

    def has_gap(self, placed: PlacedRows) -> NDArray[np.bool_]:
        """Bool [B], whose generated tokens right before this pass nobody has seen."""
        assert self.prompt_tokens is not None  # noqa: S101 - it has begun
        beyond = np.iinfo(np.int64).max
        first = np.where(placed.is_token, placed.position, beyond).min(axis=1)
        expected = np.maximum(self.following, self.prompt_tokens)
        gap: NDArray[np.bool_] = (first > expected) & (first < beyond)
        return gap

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
        last = np.where(placed.is_token, placed.position, -1).max(axis=1)
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
