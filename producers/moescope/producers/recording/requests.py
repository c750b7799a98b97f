"""What an engine says of its requests: facts that go with their rows, and that they end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.core.vocabulary import UNKNOWN_SCENE
from moescope.producers.recording.changing import LOCK_TIMEOUT_SECONDS
from moescope.producers.ring.facts import NO_NAME, UNKNOWN_LENGTH, RequestFacts, is_name
from moescope.producers.ring.rows import write_end

if TYPE_CHECKING:
    import threading

    from moescope.producers.recording.counters import Complaints
    from moescope.producers.recording.event_times import EventTimes
    from moescope.producers.recording.pausing import Pausing
    from moescope.producers.recording.running import RunningRequests
    from moescope.producers.recording.sampling import Sampling
    from moescope.producers.ring.writer import RingWriter


class Requests:
    """Follows requests from their begin to their end.

    Args:
        running: Those that run.
        sampling: Which of them are recorded.
        pausing: Whether anything is written at the moment.
        times: Of ends.
        complaints: Says what is no name.
        lock: Guards ring and requests.
    """

    def __init__(
        self,
        *,
        running: RunningRequests,
        sampling: Sampling,
        pausing: Pausing,
        times: EventTimes,
        complaints: Complaints,
        lock: threading.Lock,
    ) -> None:
        self._running = running
        self._sampling = sampling
        self._pausing = pausing
        self._times = times
        self._complaints = complaints
        self._lock = lock
        self._ring: RingWriter | None = None

    def open(self, ring: RingWriter) -> None:
        """Write ends into this ring from now on."""
        self._ring = ring

    def close(self) -> None:
        """Let go of the ring; with its lock."""
        self._ring = None

    def begin(
        self,
        request_id: str,
        prompt_tokens: int | None,
        cached_tokens: int,
        task: str | None,
        scene: str,
    ) -> None:
        """Learn a request's facts, unless the lock is held for too long.

        Arguments are those of `Recorder.begin_request`.

        Raises:
            TypeError, ValueError: The id is no name, or a number is no number of tokens.
        """
        if not is_name(scene):
            self._complaints.say_once(f"begin_request: {NO_NAME.format('scene')}")
            scene = UNKNOWN_SCENE
        if task is not None and not is_name(task):
            self._complaints.say_once(f"begin_request: {NO_NAME.format('task')}")
            task = None
        facts = RequestFacts(
            request_id,
            request_id if task is None else task,
            scene,
            UNKNOWN_LENGTH if prompt_tokens is None else int(prompt_tokens),
            int(cached_tokens),
        )
        if self._lock.acquire(timeout=LOCK_TIMEOUT_SECONDS):
            try:
                self._running.begin(facts)
            finally:
                self._lock.release()

    def end(self, request_id: str, *, last_of_task: bool) -> None:
        """Forget a request, and write its end if its rows are written.

        Raises:
            TypeError: The id is none.
        """
        if not self._lock.acquire(timeout=LOCK_TIMEOUT_SECONDS):
            return
        try:
            running = self._running.end(request_id)
            ring = self._ring
            if (
                running is None
                or ring is None
                or self._pausing.is_switched_off
                or not self._sampling.takes(request_id)
            ):
                return
            ring.enter()
            write_end(
                ring, running.facts, last_of_task=bool(last_of_task), time_us=self._times.now_us()
            )
            ring.leave()
        finally:
            self._lock.release()
