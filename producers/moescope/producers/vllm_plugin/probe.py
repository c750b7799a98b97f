"""The probe of one engine: armed while a pass is computed, read when it is over."""

from __future__ import annotations

import logging
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from moescope.producers.vllm_plugin.capture import NOT_ROUTED, route_compiled_to
from moescope.producers.vllm_plugin.drafts import accepted_drafts
from moescope.producers.vllm_plugin.step import UnknownLayoutError, by_weight, is_blank

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from moescope.producers.recorder import Recorder
    from moescope.producers.vllm_plugin.capture import RoutingCapture
    from moescope.producers.vllm_plugin.host import HostCopies, HostCopy
    from moescope.producers.vllm_plugin.requests import EngineRequests
    from moescope.producers.vllm_plugin.runners import RunnerLayout
    from moescope.producers.vllm_plugin.step import Step

ERRORS_ALLOWED: Final = 8

_log = logging.getLogger("moescope.producers")


@dataclass(slots=True)
class ProbeCounters:
    """What a probe did so far, in rows (tokens) unless said otherwise.

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
    names: list[str]
    prompt_tokens: NDArray[np.int64]
    outcome: Any = None


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
        weights: Whether weights are recorded.
    """

    def __init__(
        self,
        recorder: Recorder,
        requests: EngineRequests,
        layout: RunnerLayout | None,
        capture: RoutingCapture | None,
        copies: HostCopies | None,
        *,
        refusal: str,
        weights: bool,
    ) -> None:
        self.recorder = recorder
        self.counters = ProbeCounters()
        self.is_warming_up = False
        self._requests = requests
        self._layout = layout
        self._capture = capture
        self._copies = copies
        self._refusal = refusal
        self._with_weights = weights
        self._waiting: deque[_Seen] = deque()
        self._said: set[str] = set()
        self._is_off = False

    def before_pass(
        self,
        scheduled: Any,  # noqa: ANN401
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> bool:
        """The engine is about to compute; whether `after_pass` is to be called.

        Args:
            scheduled: `SchedulerOutput`.
            args: Further arguments of `execute_model`.
            kwargs: Likewise.
        """
        if self._is_off or self.is_warming_up:
            return False
        with self._quietly():
            if self._layout is not None and self._layout.is_dummy(args, kwargs):
                return False
            self._settle(wait=not scheduled.total_num_scheduled_tokens)
            self._requests.end(scheduled.finished_req_ids)
            self._requests.begin(scheduled.scheduled_new_reqs)
            if not scheduled.total_num_scheduled_tokens:
                return False
            if self._capture is not None and not self._refusal:
                self._capture.arm()
                route_compiled_to(self._capture)
            return True
        return False

    def after_pass(self, scheduled: Any, *, is_complete: bool) -> None:  # noqa: ANN401
        """The pass is over.

        Args:
            scheduled: `SchedulerOutput`.
            is_complete: Whether it did not fail.
        """
        with self._quietly():
            if self._capture is not None:
                self._capture.disarm()
                route_compiled_to(None)
            if not is_complete:
                return
            self.counters.passes += 1
            rows = int(scheduled.total_num_scheduled_tokens)
            try:
                self._look(scheduled)
            except UnknownLayoutError as error:
                self._refuse(rows, error.reason)
            except Exception:
                self._refuse(rows, "an error of the probe")
                raise
            self._settle()

    def after_sampling(self, output: Any) -> None:  # noqa: ANN401 - vLLM has no types here
        """The sampler has decided about the latest pass's draft tokens."""
        if self._is_off or not self._waiting:
            return
        with self._quietly():
            self._waiting[-1].outcome = output
            self._settle()

    def stop(self, reason: str) -> None:
        """Record nothing any more."""
        self._is_off = True
        self._waiting.clear()
        self.recorder.close()
        _log.warning("The engine is not watched any more: %s.", reason)

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

    def _look(self, scheduled: Any) -> None:  # noqa: ANN401 - vLLM has no types here
        if self._refusal:
            raise UnknownLayoutError(self._refusal)
        if self._layout is None or self._capture is None or self._copies is None:
            raise UnknownLayoutError("unknown model runner")
        step = self._layout.step(scheduled)
        copy = self._copies.take(
            self._first_row(step, self._capture), step.rows, step.positions,
            keep=bool(step.drafts.any()),
        )  # fmt: skip
        if copy is None:
            raise UnknownLayoutError("the device was too far behind")
        self._waiting.append(
            _Seen(
                step, self.counters.passes, copy, self._requests.names(step.engine_ids),
                self._requests.prompt_tokens(step.engine_ids),
            )
        )  # fmt: skip

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
        return step.first_row(next(iter(rows)))

    def _settle(self, *, wait: bool = False) -> None:
        """Record the passes whose rows have arrived and whose drafts are decided."""
        while self._waiting:
            seen = self._waiting[0]
            accepted = accepted_drafts(seen.step, seen.outcome)
            if accepted is None and not wait:
                return
            if not seen.copy.is_ready(wait=wait):
                return
            self._waiting.popleft()
            try:
                self._record(seen, accepted)
            except UnknownLayoutError as error:
                self._refuse(seen.step.rows, error.reason)
            except Exception:
                self._refuse(seen.step.rows, "an error of the probe")
                raise
            finally:
                seen.copy.release()

    def _record(self, seen: _Seen, accepted: NDArray[np.int64] | None) -> None:
        step = seen.step
        ids, weights = seen.copy.ids, seen.copy.weights
        if any(rows != seen.copy.rows_seen[0] for rows in seen.copy.rows_seen):
            raise UnknownLayoutError("layers were routed with different rows")
        step.first_row(seen.copy.rows_seen[0])
        if is_blank(ids):
            raise UnknownLayoutError("a layer's ids are all the same number")
        ids, weights = by_weight(ids, weights)
        positions = seen.copy.positions
        if positions is None:
            positions = step.row_positions()
        if accepted is None:  # nobody will tell any more: none is taken for the request's own
            accepted = np.zeros(len(step.engine_ids), np.int64)
        phases = step.row_phases(positions, seen.prompt_tokens, accepted)
        is_decode = step.rows == len(seen.names) and (phases == phases[0]).all()
        self.recorder.record(
            seen.names,
            positions,
            ids,
            int(phases[0]) if is_decode else phases,
            weights=weights if self._with_weights else None,
            pass_id=seen.number,
            rows_per_request=None if is_decode else step.counts,
        )
        self.counters.passed_rows += step.rows

    def _refuse(self, rows: int, reason: str) -> None:
        self.counters.refused_rows += rows
        miss = getattr(self.recorder, "miss", None)
        if miss is not None:
            miss(rows, reason)
        if reason not in self._said:
            self._said.add(reason)
            _log.warning("Routing is not recorded (said once, then only counted): %s.", reason)
