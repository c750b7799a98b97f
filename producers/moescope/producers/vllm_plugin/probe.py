"""The probe of one engine: armed while a pass is computed, read when it is over."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from moescope.producers.recording.forks import watch_forks
from moescope.producers.recording.pausing import INTERRUPTED, NOT_RECORDING
from moescope.producers.vllm_plugin.capture import NOT_ROUTED, route_compiled_to
from moescope.producers.vllm_plugin.drafts import accepted_drafts
from moescope.producers.vllm_plugin.experts import SettledExperts
from moescope.producers.vllm_plugin.held import HeldPasses
from moescope.producers.vllm_plugin.rows import RowsToRecord
from moescope.producers.vllm_plugin.seen import SeenPass
from moescope.producers.vllm_plugin.step import UnknownLayoutError, no_drafts
from moescope.producers.waiting import HELD_PASSES, LateReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from moescope.producers.recorder import Recorder
    from moescope.producers.vllm_plugin.capture import RoutingCapture
    from moescope.producers.vllm_plugin.content import EngineContent
    from moescope.producers.vllm_plugin.experts import ExpertMap, Experts
    from moescope.producers.vllm_plugin.host import HostCopies, HostRows
    from moescope.producers.vllm_plugin.requests import EngineRequests
    from moescope.producers.vllm_plugin.runners import RunnerLayout
    from moescope.producers.vllm_plugin.step import Step

ERRORS_ALLOWED: Final = 8
_PATIENCE_SECONDS: Final = 1.0

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
        held_passes: The most decode passes that wait for each other; 1: each is recorded at once.
        clock: Monotonic seconds.
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
        held_passes: int = HELD_PASSES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.recorder = recorder
        self.counters = EngineCounters()
        self.is_warming_up = False
        self._requests = requests
        self._layout = layout
        self._capture = capture
        self._copies = copies
        self._refusal = refusal
        self._detach = detach
        self._experts = experts or SettledExperts(None)
        self._content = content
        self._coming: ExpertMap | None = None
        self._rows = RowsToRecord(
            recorder, with_weights=with_weights, hash_tokens=hash_tokens, content=content,
            miss_content=self._miss_content,
        )  # fmt: skip
        self._is_closed = False
        self._waiting: deque[SeenPass] = deque()
        self._latest: SeenPass | None = None
        self._is_off = False
        if capture is None:
            self._held = HeldPasses(1, 1, 1)
        else:  # content keys are made pass by pass
            limit = held_passes if content is None else 1
            self._held = HeldPasses(capture.layers, capture.top_k, limit)
        self._records_held = False
        self._clock = clock
        self._late = LateReader(self)
        self._lock = threading.RLock()
        watch_forks(self)
        recorder.before_change(self.flush)

    def become_child(self) -> None:
        """In a forked child no other thread is there that would release the lock."""
        self._lock = threading.RLock()
        self._held.forget()

    def before_pass(self, scheduled: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """The engine is about to compute; whether `after_pass` is to be called.

        Args:
            scheduled: `SchedulerOutput`.
            args: Further arguments of `execute_model`.
            kwargs: Likewise.
        """
        if self._is_closed or self.is_warming_up:
            return False
        try:
            with self._lock:
                return self._begin(scheduled, args, kwargs)
        except Exception as error:  # noqa: BLE001 - inference comes first
            self._note(error)
        return False

    def after_pass(self, scheduled: Any, *, is_complete: bool) -> None:
        """The pass is over.

        Args:
            scheduled: `SchedulerOutput`.
            is_complete: Whether it did not fail.
        """
        try:
            with self._lock:
                self._end(scheduled, is_complete=is_complete)
        except Exception as error:  # noqa: BLE001 - inference comes first
            self._note(error)

    def after_sampling(self, output: Any) -> None:
        """The sampler has decided about the latest pass's draft tokens."""
        if self._is_closed or self._latest is None:  # the pass was not seen
            return
        with self._quietly(), self._lock:
            self._latest.outcome = output
            self._settle()

    def flush(self) -> None:
        """Record the passes that wait for others; never raises."""
        # A thread that records just now is about to do it, and one that hangs stops nobody.
        if self._lock.acquire(timeout=_PATIENCE_SECONDS):
            try:
                with self._quietly():
                    self._record_held()
            finally:
                self._lock.release()

    def read_late(self) -> bool:
        """Record the passes that no further pass came for; whether some wait still.

        Beside an engine that computes, another thread's work costs it turns of the interpreter.
        """
        if not self._held:
            return False
        if not self._held.are_left(self._clock()):
            return True
        self.flush()
        return False

    def close(self) -> None:
        """The engine ends, or lets its model go: so do its requests."""
        if self._is_closed:
            return
        self._is_closed = True
        self._late.stop()
        with self._quietly(), self._lock:
            self._settle(wait=True)
        self.flush()
        with self._quietly():
            self._requests.end_all()
        with self._quietly():
            self._detach()
        self.recorder.close()

    def _begin(self, scheduled: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if self._layout is not None and self._layout.is_dummy(args, kwargs):
            return False
        self._latest = None
        rows = int(scheduled.total_num_scheduled_tokens)
        if self._is_off:
            self._refuse(rows, "the probe is off")
            with self._quietly():
                self._settle(wait=not rows)
            with self._quietly():
                self._record_held()
            self._requests.end(scheduled.finished_req_ids)
            return False
        try:
            try:
                if self._waiting:
                    self._settle(wait=not rows)
                if scheduled.finished_req_ids or scheduled.scheduled_new_reqs or not rows:
                    self._record_held()  # before what the recorder is told of their requests
            finally:  # the scheduler tells of them once, whatever became of earlier passes
                self._requests.end(scheduled.finished_req_ids)
                self._requests.begin(scheduled.scheduled_new_reqs)
            if not rows or self._capture is None:
                return bool(rows)
            if self.recorder.is_recording:
                self._coming = self._experts.placed()
                self._capture.arm(takes_weights=self._rows.needs_weights)
                route_compiled_to(self._capture)
            else:
                self._record_held()
        except Exception as error:  # noqa: BLE001 - inference comes first
            self._refuse_for(error, rows)
            return False
        return True

    def _end(self, scheduled: Any, *, is_complete: bool) -> None:
        was_armed = self._capture is not None and self._capture.is_armed
        if self._capture is not None:
            self._capture.disarm()
            route_compiled_to(None)
        if not is_complete:
            self._miss_content()
            return
        self.counters.passes += 1
        try:
            self._look(scheduled, was_armed=was_armed)
        except Exception as error:  # noqa: BLE001 - inference comes first
            self._refuse_for(error, int(scheduled.total_num_scheduled_tokens))
        self._settle()

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - inference comes first
            self._note(error)

    def _note(self, error: Exception) -> None:
        """Count an error of the probe itself."""
        self.counters.errors += 1
        if self.counters.errors == 1:
            _log.warning("The probe failed (said once, then only counted).", exc_info=error)
        if self.counters.errors >= ERRORS_ALLOWED and not self._is_off:
            self._is_off = True
            _log.error("The engine is not watched any more, after repeated errors.")

    def _refuse_for(self, error: Exception, rows: int) -> None:
        """Count the rows of a pass that cannot be recorded."""
        self._miss_content()
        if isinstance(error, UnknownLayoutError):
            self._refuse(rows, error.reason)
        else:
            self._refuse(rows, "an error of the probe")
            self._note(error)

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
        copy = self._copies.take(step, first, keep=step.has_drafts or bool(self._waiting))
        if copy is None:
            raise UnknownLayoutError("the device was too far behind")
        self._latest = SeenPass(
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
            if accepted is None:  # nobody will tell any more: none is the request's own
                accepted = no_drafts(len(seen.step.engine_ids))
            try:
                if fault is None:
                    self._take(seen, accepted)
                else:
                    self._refuse_for(fault, seen.step.rows)
            except Exception as error:  # noqa: BLE001 - inference comes first
                self._refuse_for(error, seen.step.rows)
            finally:
                seen.copy.release()

    def _take(self, seen: SeenPass, accepted: NDArray[np.int64]) -> None:
        """Record a pass, or let it wait for those that come.

        Raises:
            UnknownLayoutError: It cannot be recorded.
        """
        rows = seen.copy.rows()
        layers = rows.rows_seen
        if layers.count(layers[0]) != len(layers):
            raise UnknownLayoutError("layers were routed with different rows")
        seen.step.first_row(layers[0])
        held, now = self._held, self._clock()
        waits = held.takes(seen)
        if held and not (waits and held.go_with(seen)):
            self._record_held()
        if not waits:
            self._record(seen, rows, accepted)
            return
        held.add(seen, rows, now)
        if held.is_due(now):
            self._record_held()
        else:
            self._late.expect()

    def _record(self, seen: SeenPass, rows: HostRows, accepted: NDArray[np.int64]) -> None:
        """Record a pass; what cannot be recorded of it is counted."""
        before = self.recorder.recorded_rows
        try:
            passed, left_out = self._rows.record(seen, rows, accepted)
        except Exception as error:  # noqa: BLE001 - inference comes first
            self._refuse_for(error, seen.step.rows)
        except BaseException:  # by which an engine is told to end: it is not ours to keep
            recorded = self.recorder.recorded_rows - before
            self._refuse(max(0, seen.step.rows - recorded), INTERRUPTED)
            raise
        else:
            self.counters.passed_rows += passed
            for count, reason in left_out:
                self._refuse(count, reason)

    def _record_held(self) -> None:
        """Record the passes that wait for each other; what cannot be recorded is counted."""
        held = self._held
        if not held or self._records_held:
            return
        # A look that is due may change the recorder's fidelity, before which it has them recorded.
        self.recorder.look()
        if not held:
            return
        left, before = held.rows, self.recorder.recorded_rows
        try:
            self._records_held = True
            if held.are_sound():
                self.counters.passed_rows += self._rows.record_together(held)
                return
            for seen, rows in held.one_by_one():
                left -= seen.step.rows
                self._record(seen, rows, no_drafts(len(seen.step.engine_ids)))
        except Exception as error:  # noqa: BLE001 - inference comes first
            self._refuse_for(error, left)
        except BaseException:  # see `_record`
            self._refuse(max(0, left - self.recorder.recorded_rows + before), INTERRUPTED)
            raise
        finally:
            held.forget()
            self._records_held = False

    @staticmethod
    def _accepted(seen: SeenPass) -> tuple[NDArray[np.int64] | None, Exception | None]:
        """Accepted drafts of a pass, None if not known yet; or why they never will be."""
        try:
            return accepted_drafts(seen.step, seen.requests.requests, seen.outcome), None
        except Exception as error:  # noqa: BLE001 - a sampler's output may be anything
            return None, error
