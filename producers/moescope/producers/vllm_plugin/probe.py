"""The probe of one engine: armed while a pass is computed, read when it is over."""

from __future__ import annotations

import logging
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from moescope.core.vocabulary import Fidelity
from moescope.producers.recording.pausing import NOT_RECORDING
from moescope.producers.vllm_plugin.capture import NOT_ROUTED, route_compiled_to
from moescope.producers.vllm_plugin.drafts import accepted_drafts
from moescope.producers.vllm_plugin.experts import SettledExperts
from moescope.producers.vllm_plugin.step import (
    UnknownLayoutError,
    is_blank,
    put_heaviest_first,
    rows_of_numbers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from moescope.producers.recorder import Recorder
    from moescope.producers.vllm_plugin.capture import RoutingCapture
    from moescope.producers.vllm_plugin.content import ContentKeys, EngineContent
    from moescope.producers.vllm_plugin.experts import ExpertMap, Experts
    from moescope.producers.vllm_plugin.host import HostCopies, HostCopy
    from moescope.producers.vllm_plugin.requests import EngineRequests, NamedRequests
    from moescope.producers.vllm_plugin.runners import RunnerLayout
    from moescope.producers.vllm_plugin.step import Step

ERRORS_ALLOWED: Final = 8
NOT_NUMBERS: Final = "a token's routing weights are not numbers"
BEGAN_UNSEEN: Final = "a request that began unseen"

_log = logging.getLogger("moescope.producers")


@dataclass(slots=True)
class EngineCounters:
    """What an engine's probe did so far, in rows (tokens) unless said otherwise.

    Attributes:
        passed_rows: Given to the recorder (which has counters of its own).
        refused_rows: Computed by the engine, and not seen.
        passes: Forward passes of requests.
        errors: Of the probe itself.
    """

    passed_rows: int = 0
    refused_rows: int = 0
    passes: int = 0
    errors: int = 0


@dataclass(slots=True)
class _Seen:
    """A pass that waits for the device, or for what becomes of its drafts."""

    step: Step
    number: int
    copy: HostCopy
    requests: NamedRequests
    has_weights: bool
    experts: ExpertMap | None
    outcome: Any = None


class _Given(NamedTuple):
    """Rows for the recorder, [T]."""

    positions: NDArray[Any]
    ids: NDArray[Any]
    phases: NDArray[np.uint8]
    weights: NDArray[Any] | None
    tokens: NDArray[Any] | None


class EngineProbe:
    """Records the routing of one model runner's passes.

    Nothing here ever raises into the engine. After eight errors of its own it stops, with one
    line in the log.

    Args:
        recorder: Where to.
        requests: The engine's.
        layout: Of its runner; None when that is not known.
        capture: The routers'; None when they cannot be captured.
        copies: From the capture's buffers to the host.
        refusal: Why nothing can be recorded, or empty.
        with_weights: Whether weights are recorded.
        hash_tokens: What token ids go through; None where they are recorded as they are, or not
            at all.
        detach: Takes the wrappers off the routers.
        experts: Knows on which expert-parallel ranks experts are.
        content: Makes content keys; None where none are recorded.
    """

    def __init__(
        self,
        recorder: Recorder,
        requests: EngineRequests,
        layout: RunnerLayout | None,
        capture: RoutingCapture | None,
        copies: HostCopies | None,
        *,
        refusal: str = "",
        with_weights: bool = False,
        hash_tokens: Callable[[NDArray[Any]], NDArray[Any]] | None = None,
        detach: Callable[[], None] = lambda: None,
        experts: Experts | None = None,
        content: EngineContent | None = None,
    ) -> None:
        self.recorder = recorder
        self.counters = EngineCounters()
        self.is_warming_up = False
        self._requests = requests
        self._layout = layout
        self._capture = capture
        self._copies = copies
        self._refusal = refusal
        self._with_weights = with_weights
        self._hash_tokens = hash_tokens
        self._detach = detach
        self._experts = experts or SettledExperts(None)
        self._content = content
        self._coming: ExpertMap | None = None
        self._told: ExpertMap | None = None
        self._is_closed = False
        self._waiting: deque[_Seen] = deque()
        self._latest: _Seen | None = None
        self._is_off = False

    def before_pass(self, scheduled: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """The engine is about to compute; whether `after_pass` is to be called.

        Args:
            scheduled: `SchedulerOutput`.
            args: Further arguments of `execute_model`.
            kwargs: Likewise.
        """
        if self._is_closed or self.is_warming_up:
            return False
        with self._quietly():
            if self._layout is not None and self._layout.is_dummy(args, kwargs):
                return False
            self._latest = None
            rows = int(scheduled.total_num_scheduled_tokens)
            if self._is_off:
                self._refuse(rows, "the probe is off")
                with self._quietly():
                    self._settle(wait=not rows)
                self._requests.end(scheduled.finished_req_ids)
                return False
            with self._refusing(rows):
                try:
                    self._settle(wait=not rows)
                finally:  # the scheduler tells of them once, whatever became of earlier passes
                    self._requests.end(scheduled.finished_req_ids)
                    self._requests.begin(scheduled.scheduled_new_reqs)
                if rows and self._capture is not None and self.recorder.is_recording:
                    self._coming = self._experts.placed()
                    self._capture.arm(takes_weights=self._needs_weights)
                    route_compiled_to(self._capture)
            return bool(rows)
        return False

    def after_pass(self, scheduled: Any, *, is_complete: bool) -> None:
        """The pass is over.

        Args:
            scheduled: `SchedulerOutput`.
            is_complete: Whether it did not fail.
        """
        with self._quietly():
            was_armed = self._capture is not None and self._capture.is_armed
            if self._capture is not None:
                self._capture.disarm()
                route_compiled_to(None)
            if not is_complete:
                self._miss_content()
                return
            self.counters.passes += 1
            rows = int(scheduled.total_num_scheduled_tokens)
            with self._refusing(rows):
                self._look(scheduled, was_armed=was_armed)
            self._settle()

    def after_sampling(self, output: Any) -> None:
        """The sampler has decided about the latest pass's draft tokens."""
        if self._is_closed or self._latest is None:  # the pass was not seen
            return
        with self._quietly():
            self._latest.outcome = output
            self._settle()

    def close(self) -> None:
        """The engine ends, or lets its model go: so do its requests."""
        if self._is_closed:
            return
        self._is_closed = True
        with self._quietly():
            self._settle(wait=True)
        with self._quietly():
            self._requests.end_all()
        with self._quietly():
            self._detach()
        self.recorder.close()

    @property
    def _needs_weights(self) -> bool:
        """Whether weights are recorded, or tell which expert is first: counts have no order."""
        return self.recorder.fidelity is not Fidelity.COUNTS

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - inference comes first
            self.counters.errors += 1
            if self.counters.errors == 1:
                _log.warning("The probe failed (said once, then only counted).", exc_info=error)
            if self.counters.errors >= ERRORS_ALLOWED and not self._is_off:
                self._is_off = True
                _log.error("The engine is not watched any more, after repeated errors.")

    @contextmanager
    def _refusing(self, rows: int) -> Iterator[None]:
        """Count the rows of a pass that cannot be recorded."""
        try:
            yield
        except UnknownLayoutError as error:
            self._miss_content()
            self._refuse(rows, error.reason)
        except Exception:
            self._miss_content()
            self._refuse(rows, "an error of the probe")
            raise

    def _miss_content(self) -> None:
        """The tokens of a pass were not seen."""
        if self._content is not None:
            self._content.miss(self.counters.passes)

    def _refuse(self, rows: int, reason: str) -> None:
        self.counters.refused_rows += rows
        self.recorder.miss(rows, reason)

    def _look(self, scheduled: Any, *, was_armed: bool) -> None:
        if self._refusal:
            raise UnknownLayoutError(self._refusal)
        if self._layout is None or self._capture is None or self._copies is None:
            raise UnknownLayoutError("unknown model runner")
        step = self._layout.step(scheduled)
        if not was_armed:
            raise UnknownLayoutError(NOT_RECORDING)
        first = self._first_row(step, self._capture)
        copy = self._copies.take(step, first, keep=bool(step.drafts.any()))
        if copy is None:
            raise UnknownLayoutError("the device was too far behind")
        self._latest = _Seen(
            step,
            self.counters.passes,
            copy,
            self._requests.named(step.engine_ids),
            self._capture.takes_weights,
            self._coming,
        )
        self._waiting.append(self._latest)

    @staticmethod
    def _first_row(step: Step, capture: RoutingCapture) -> int:
        """Where the pass's rows begin in the buffers.

        Raises:
            UnknownLayoutError: The routers did not see the rows that were scheduled.
        """
        if capture.rows_on_device is not None:  # the device tells later what it replayed
            return step.first_row(step.rows_passed)
        rows = capture.rows_seen()
        if not rows:
            raise UnknownLayoutError("a layer was routed twice")
        if NOT_ROUTED in rows:
            raise UnknownLayoutError("a layer's router was not called")
        return step.first_row(rows[0])

    def _settle(self, *, wait: bool = False) -> None:
        """Record the passes whose rows have arrived and whose drafts are decided."""
        while self._waiting:
            seen = self._waiting[0]
            accepted, fault = self._accepted(seen)
            is_decided = accepted is not None or fault is not None
            if not (is_decided or wait) or not seen.copy.is_ready(wait=wait):
                return
            self._waiting.popleft()
            try:
                with self._refusing(seen.step.rows):
                    if fault is not None:
                        raise fault
                    if accepted is None:  # nobody will tell any more: none is the request's own
                        accepted = np.zeros(len(seen.step.engine_ids), np.int64)
                    self._record(seen, accepted)
            finally:
                seen.copy.release()

    @staticmethod
    def _accepted(seen: _Seen) -> tuple[NDArray[np.int64] | None, Exception | None]:
        """Accepted drafts of a pass, None if not known yet; or why they never will be."""
        try:
            return accepted_drafts(seen.step, seen.requests.requests, seen.outcome), None
        except Exception as error:  # noqa: BLE001 - a sampler's output may be anything
            return None, error

    def _record(self, seen: _Seen, accepted: NDArray[np.int64]) -> None:
        started = perf_counter()
        step, rows = seen.step, seen.copy.rows()
        if any(seen_rows != rows.rows_seen[0] for seen_rows in rows.rows_seen):
            raise UnknownLayoutError("layers were routed with different rows")
        step.first_row(rows.rows_seen[0])
        if self._needs_weights and not seen.has_weights:
            raise UnknownLayoutError("fidelity rose during the pass")
        self._tell(seen.experts)
        ids, weights, tokens = rows.ids, rows.weights, rows.token_ids
        positions = step.row_positions() if rows.positions is None else rows.positions
        phases = step.row_phases(positions, seen.requests.prompt_tokens, accepted)
        counts = step.counts
        content = (
            self._content_of(seen, positions, tokens, accepted)
            if self._content is not None
            else None
        )
        kept, unknown_rows = _rows_to_record(seen, weights)
        if kept is not None:
            ids, weights, positions, phases = (
                ids[kept],
                weights[kept],
                positions[kept],
                phases[kept],
            )
            tokens, counts = None if tokens is None else tokens[kept], step.counts_of(kept)
            content = None if content is None else content.of_rows(kept)
        if is_blank(ids):
            raise UnknownLayoutError("a layer's ids are all the same number")
        if self._needs_weights:
            put_heaviest_first(ids, weights)
        if tokens is not None and self._hash_tokens is not None:
            tokens = self._hash_tokens(tokens)
        is_one_row_each = step.rows == len(counts) == len(ids) and bool((phases == phases[0]).all())
        self.recorder.spend(perf_counter() - started)
        if content is not None and content.has_keys is not None:
            given = _Given(positions, ids, phases, weights if self._with_weights else None, tokens)
            self._give_apart(seen, counts, content, given)
        elif len(ids):
            self.recorder.record(
                seen.requests.names,
                positions,
                ids,
                int(phases[0]) if is_one_row_each else phases,
                weights=weights if self._with_weights else None,
                pass_id=seen.number,
                token_ids=tokens,
                content_keys=None if content is None else content.keys,
                rows_per_request=None if is_one_row_each else counts,
            )
        self.counters.passed_rows += len(ids)
        if kept is not None:
            self._refuse(unknown_rows, BEGAN_UNSEEN)
            self._refuse(step.rows - len(ids) - unknown_rows, NOT_NUMBERS)

    def _content_of(
        self,
        seen: _Seen,
        positions: NDArray[Any],
        tokens: NDArray[Any] | None,
        accepted: NDArray[np.int64],
    ) -> ContentKeys | None:
        """Content keys of a pass's rows; None where none has any, or none would be shipped."""
        if self._content is None or tokens is None or not self._needs_weights:
            self._miss_content()
            return None
        return self._content.keys(
            seen.number,
            seen.step,
            seen.requests.requests,
            positions=positions,
            token_ids=tokens,
            accepted=accepted,
        )

    def _give_apart(
        self,
        seen: _Seen,
        counts: NDArray[np.int64],
        content: ContentKeys,
        given: _Given,
    ) -> None:
        """Record the rows that have a content key, and those that have none.

        Args:
            seen: The pass.
            counts: int64 [R], rows of each request.
            content: Keys of the rows [T].
            given: The rows.
        """
        for has_keys in (True, False):
            of_part = content.has_keys == has_keys
            part = np.repeat(of_part, counts)
            if not part.any():
                continue
            self.recorder.record(
                seen.requests.names,
                given.positions[part],
                given.ids[part],
                given.phases[part],
                weights=None if given.weights is None else given.weights[part],
                pass_id=seen.number,
                token_ids=None if given.tokens is None else given.tokens[part],
                content_keys=content.keys[part] if has_keys else None,
                rows_per_request=np.where(of_part, counts, 0),
            )

    def _tell(self, experts: ExpertMap | None) -> None:
        """Let the rows that follow be those of a placement of experts."""
        if experts is self._told:
            return
        if experts is not None and self.recorder.set_placement(
            experts.rank_of, experts.version, ranks=experts.ranks
        ):
            self._told = experts
        elif self._told is not None:  # the rows would be taken for those of another placement
            raise UnknownLayoutError("the placement of experts could not be told")


def _rows_to_record(seen: _Seen, weights: NDArray[Any]) -> tuple[NDArray[np.bool_] | None, int]:
    """Which rows of a pass can be recorded.

    Returns:
        Booleans [T], None where all can; and how many rows are of requests that began unseen.
    """
    kept = rows_of_numbers(weights) if seen.has_weights else None
    if seen.requests.are_known is None:
        return kept, 0
    known = np.repeat(seen.requests.are_known, seen.step.counts)
    return known if kept is None else known & kept, len(known) - int(known.sum())
