"""The recorder: copies routing rows from the engine into the ring, and never gets in its way."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, cast

import numpy as np

from moescope.core.batch import Ranks
from moescope.core.clock import Clock, SystemClock
from moescope.core.vocabulary import (
    UNKNOWN_SCENE,
    Fidelity,
    IdSpace,
    Origin,
    Phase,
    RankOrder,
    RowFlag,
    ScoreKind,
    TokenIdKind,
)
from moescope.producers.profile import Profile
from moescope.producers.recording.call import (
    RecordCall,
    check_call,
    rows_given,
)
from moescope.producers.recording.description import checked_profile, member
from moescope.producers.recording.running import (
    ResolvedRequests,
    RunningRequest,
    RunningRequests,
    flags_for,
)
from moescope.producers.recording.splitting import Chunk, fitting_chunks
from moescope.producers.recording.usual import UsualCalls
from moescope.producers.ring.errors import RingCreateError
from moescope.producers.ring.facts import UNKNOWN_LENGTH, RequestFacts
from moescope.producers.ring.layout import DEFAULT_RING_BYTES, Geometry
from moescope.producers.ring.rows import column_mask, write_end, write_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

    from numpy.typing import ArrayLike

    from moescope.producers.ring.writer import RingWriter

DISABLE_VARIABLE: Final = "MOESCOPE_DISABLE"
INTERNAL_ERRORS_ALLOWED: Final = 8

_REASONS_SAID: Final = 32
_LOCK_TIMEOUT_SECONDS: Final = 0.05
_LARGEST_CLOCK_STEP_US: Final = 1_000_000
_RECOMPUTED: Final = np.uint8(RowFlag.RECOMPUTED)

_log = logging.getLogger("moescope.producers")


@dataclass(frozen=True, slots=True)
class RecorderCounters:
    """What a recorder did so far, in rows (tokens) unless said otherwise.

    Attributes:
        recorded_rows: Written to the ring.
        rejected_rows: Refused: wrong shape or type, ids or positions out of range, or no turn at
            the ring within 50 ms.
        unsampled_rows: Left out by sampling.
        recomputed_rows: Recorded with the flag `RECOMPUTED`.
        running_requests: Requests that are remembered.
        internal_errors: Errors of the recorder itself.
        disabled: Why nothing is recorded any more, or empty.
    """

    recorded_rows: int
    rejected_rows: int
    unsampled_rows: int
    recomputed_rows: int
    running_requests: int
    internal_errors: int
    disabled: str


class Recorder:
    """Records which experts a model's router chose.

    The constructor checks its arguments and allocates the ring: it may raise. No other method
    ever raises, blocks for long, or writes anywhere but into the ring; what cannot be recorded
    is counted. Methods may be called from several threads. In a forked child the recorder is
    disabled. With `MOESCOPE_DISABLE=1` in the environment it does nothing at all.

    Args:
        model: Name of the served model.
        revision: Changes with the weights or the router's configuration.
        layers: Decoder-layer indices of the MoE layers, ascending: the order of `expert_ids`.
        experts: E.
        top_k: k.
        directory: Folder of the ring, created if need be. Best on a memory file system: then no
            disk can ever slow the engine.
        node: Name of this producer; by default the host's name and a digest of the folder.
            When another living recorder of the folder has it, a number is appended.
        engine: Name of the engine.
        engine_version: Its version.
        origin: Whether ids say what the router chose or what the engine executed.
        id_space: Whether ids name logical or physical experts.
        expert_map_version: Version of the map between the two.
        score_kind: The router's scoring family.
        rank_order: What the order of a row's ids means.
        fidelity: How much is shipped.
        sampling_ratio: Share of requests recorded; below 1 with fidelity `sampled` only.
        token_id_kind: What `token_ids` hold; they are dropped while it is `off`.
        weight_bits: 4, 8 or 16 bits per recorded weight on the wire.
        ranks: Place in the parallel layout.
        labels: Free key-value pairs.
        ring_bytes: Size of the ring.
        clock: Source of event times.
        incarnation: Boot id, unsigned 64 bits; random by default.

    Raises:
        SettingsError: An argument is out of range.
        RingSettingsError: The ring is too small for one token of this model.
        RingCreateError: The folder cannot be written or has no room for the ring (retriable).
    """

    def __init__(
        self,
        *,
        model: str,
        revision: str,
        layers: Iterable[int],
        experts: int,
        top_k: int,
        directory: str | os.PathLike[str],
        node: str | None = None,
        engine: str = "",
        engine_version: str = "",
        origin: Origin | str = Origin.MODEL,
        id_space: IdSpace | str = IdSpace.LOGICAL,
        expert_map_version: int = 0,
        score_kind: ScoreKind | str = ScoreKind.UNKNOWN,
        rank_order: RankOrder | str = RankOrder.UNKNOWN,
        fidelity: Fidelity | str = Fidelity.FULL,
        sampling_ratio: float = 1.0,
        token_id_kind: TokenIdKind | str = TokenIdKind.OFF,
        weight_bits: int = 8,
        ranks: Ranks | None = None,
        labels: Mapping[str, str] | None = None,
        ring_bytes: int = DEFAULT_RING_BYTES,
        clock: Clock | None = None,
        incarnation: int | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._is_forked = False
        self._unsampled_rows = 0
        self._recomputed_rows = 0
        self._internal_errors = 0
        self._reasons: set[str] = set()
        self._unbooked: deque[int] = deque()
        self._last_time_us = 0
        self._ring: RingWriter | None = None
        self._usual: UsualCalls | None = None
        self._node_file = -1
        self.profile = checked_profile(
            Profile(
                node=node or "unnamed",
                model=model,
                revision=revision,
                layers=tuple(int(layer) for layer in layers),
                experts=experts,
                top_k=top_k,
                engine=engine,
                engine_version=engine_version,
                origin=member(Origin, origin),
                id_space=member(IdSpace, id_space),
                expert_map_version=expert_map_version,
                score_kind=member(ScoreKind, score_kind),
                rank_order=member(RankOrder, rank_order),
                fidelity=member(Fidelity, fidelity),
                sampling_ratio=sampling_ratio,
                token_id_kind=member(TokenIdKind, token_id_kind),
                weight_bits=weight_bits,
                ranks=ranks or Ranks(),
                labels=dict(labels or {}),
            )
        )
        self._shape = self.profile.shape
        self._has_token_ids = self.profile.token_id_kind is not TokenIdKind.OFF
        self._running = RunningRequests(sampling_ratio)
        self._geometry = Geometry.for_size(ring_bytes, self._shape.longest_row_frame())
        self._off = _kill_switch()
        if not self._off:
            self._open(Path(directory), node, incarnation)
            _living.add(self)

    @property
    def node(self) -> str:
        """The name under which this producer's batches are shipped."""
        return self.profile.node

    def begin_request(
        self,
        request_id: str,
        prompt_tokens: int | None = None,
        cached_tokens: int = 0,
        task: str | None = None,
        scene: str = UNKNOWN_SCENE,
    ) -> None:
        """Tell what is known about a request before its rows come; again when it changes.

        Args:
            request_id: Unique among the node's running requests.
            prompt_tokens: Where decode starts; without it decode has no token windows.
            cached_tokens: Positions below it came from a prefix cache and are never recorded.
            task: What the request belongs to; by default itself.
            scene: Traffic class.
        """
        if self._is_off():
            return
        try:
            facts = RequestFacts(
                request_id,
                request_id if task is None else task,
                scene,
                UNKNOWN_LENGTH if prompt_tokens is None else int(prompt_tokens),
                int(cached_tokens),
            )
            if self._lock.acquire(timeout=_LOCK_TIMEOUT_SECONDS):
                try:
                    self._running.begin(facts)
                finally:
                    self._lock.release()
        except (TypeError, ValueError) as error:
            self._say_once(f"begin_request: {error}")
        except Exception as error:  # noqa: BLE001 - inference comes first
            self._note_failure(error)

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
        event_time_us: int | ArrayLike | None = None,
        pass_id: int | ArrayLike | None = None,
        step: int | ArrayLike | None = None,
        token_ids: ArrayLike | None = None,
        content_keys: ArrayLike | None = None,
        blocks: ArrayLike | None = None,
        dropped: ArrayLike | None = None,
        padding: ArrayLike | None = None,
        rows_per_request: ArrayLike | None = None,
    ) -> None:
        """Record the routing of T tokens, usually those of one forward pass.

        Args:
            request_ids: One id for all rows, an id per row, or with `rows_per_request` an id per
                run of rows.
            positions: Integers [T], position of each token in its request.
            expert_ids: Integers [T, L, k].
            phase: One phase (or its name) for all rows, or `Phase` values [T].
            weights: Floats [T, L, k], in the order of `expert_ids`.
            entropy: Floats [T, L], nats.
            margin: Floats [T, L].
            event_time_us: Microseconds since the Unix epoch, one or [T]; now by default. A time
                before what the agent has already promised (the clock when it last saw the ring
                empty) makes a late row.
            pass_id: Number of the forward pass, one or [T].
            step: Optimizer step, one or [T].
            token_ids: Unsigned integers [T], of the recorder's `token_id_kind`.
            content_keys: Unsigned integers [T].
            blocks: Integers [T], semantic block of the request.
            dropped: Booleans [T, L, k], assignments dropped by expert capacity.
            padding: Booleans [T], rows that belong to no token.
            rows_per_request: Integers, one per entry of `request_ids`, adding up to T.
        """
        if self._is_off():
            return
        if (
            self._usual is not None
            and rows_per_request is None
            and weights is entropy is margin is step is None
            and content_keys is blocks is dropped is padding is None
        ):
            try:
                if self._usual.record(
                    request_ids, positions, expert_ids, phase, event_time_us=event_time_us,
                    pass_id=pass_id, token_ids=token_ids if self._has_token_ids else None,
                    now_us=self._now_us,
                ):  # fmt: skip
                    return
            except Exception as error:  # noqa: BLE001 - inference comes first
                self._reject(rows_given(positions, expert_ids), "an internal error")
                self._note_failure(error)
                return
        rows = 0
        try:
            rows = rows_given(positions, expert_ids)
            call = check_call(
                self._shape, request_ids, positions, expert_ids, phase,
                rows_per_request=rows_per_request, padding=padding, weights=weights,
                entropy=entropy, margin=margin, event_time_us=event_time_us, pass_id=pass_id,
                step=step, token_id=token_ids if self._has_token_ids else None,
                content_key=content_keys, block=blocks, dropped=dropped,
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - inference comes first
            self._reject(rows, str(error))
            return
        try:
            rows = call.rows
            reason = "the ring was busy"
            if rows and self._lock.acquire(timeout=_LOCK_TIMEOUT_SECONDS):
                reason = "an internal error"
                try:
                    rows = self._write(call)
                finally:
                    self._lock.release()
            self._reject(rows, reason)
        except Exception as error:  # noqa: BLE001 - inference comes first
            self._reject(rows, "an internal error")
            self._note_failure(error)

    def end_request(self, request_id: str, *, last_of_task: bool = False) -> None:
        """Tell that a request is over; `last_of_task` when its task is over, too."""
        if self._is_off():
            return
        try:
            if not self._lock.acquire(timeout=_LOCK_TIMEOUT_SECONDS):
                return
            try:
                running = self._running.end(request_id)
                ring = self._ring
                if running is None or not running.is_recorded or ring is None:
                    return
                ring.enter()
                write_end(
                    ring, running.facts, last_of_task=bool(last_of_task), time_us=self._now_us()
                )
                ring.leave()
            finally:
                self._lock.release()
        except TypeError as error:
            self._say_once(f"end_request: {error}")
        except Exception as error:  # noqa: BLE001 - inference comes first
            self._note_failure(error)

    def counters(self) -> RecorderCounters:
        """What was recorded and what was not."""
        ring = self._ring
        return RecorderCounters(
            recorded_rows=ring.rows if ring else 0,
            rejected_rows=(ring.rejected if ring else 0) + sum(tuple(self._unbooked)),
            unsampled_rows=self._unsampled_rows,
            recomputed_rows=self._recomputed_rows,
            running_requests=len(self._running),
            internal_errors=self._internal_errors,
            disabled=self._off,
        )

    def close(self) -> None:
        """Stop recording; the agent drains what is in the ring, then removes it."""
        try:
            if not self._is_forked and self._lock.acquire(timeout=1.0):
                try:
                    self._shut("closed")
                finally:
                    self._lock.release()
        except Exception as error:  # noqa: BLE001 - inference comes first
            self._note_failure(error)

    def __enter__(self) -> Self:
        """The recorder itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def _open(self, directory: Path, node: str | None, incarnation: int | None) -> None:
        # Here, for an engine that only imports this module shall not wait for the checksums.
        from moescope.producers.recording.folder import (  # noqa: PLC0415
            default_node,
            remove_unfinished_rings,
            remove_unread_rings,
            take_node,
        )
        from moescope.producers.ring.writer import RingWriter  # noqa: PLC0415

        try:
            directory.mkdir(parents=True, exist_ok=True)
            name, self._node_file = take_node(directory, node or default_node(directory))
        except OSError as error:
            raise RingCreateError(
                f"The recorder cannot use the folder {directory}.",
                why=error.strerror or str(error),
                next_step="Create it, or let the engine's user write there.",
            ) from error
        self.profile = replace(self.profile, node=name)
        try:
            remove_unfinished_rings(directory, self._node_file)
            self._ring = RingWriter(
                directory,
                int.from_bytes(os.urandom(8), "little") if incarnation is None else incarnation,
                self.profile.to_bytes(),
                self._geometry,
                created_at_us=self._clock.now_us(),
                inherited_rows=remove_unread_rings(directory, name),
            )
        except BaseException:
            os.close(self._node_file)
            raise
        if not self._is_sampled:
            self._usual = UsualCalls(self._ring, self._running, self._shape, self._lock)
        # An engine that lets go of its recorder, or ends in peace, did not crash.
        weakref.finalize(self, self._ring.close)

    def _write(self, call: RecordCall) -> int:
        """Write a call's rows under the lock; returns the rows that nobody has counted yet."""
        ring = self._ring
        if ring is None:
            return 0
        resolved = self._running.resolve(call.names)
        if call.bad_rows is not None or resolved.has_impossible or self._is_sampled:
            resolved = self._cut(call, resolved)
            if not call.rows:
                return 0
        values = call.values
        requests = cast("Sequence[RunningRequest]", resolved.requests)
        flags = flags_for(requests, call.counts, values["position"], values["phase"], call.padding)
        values["flags"] = flags
        ring.enter()
        try:
            first_us, last_us = self._times(values)
            mask = column_mask(values)
            chunk = Chunk(
                values, resolved.facts, resolved.packed, call.counts, call.rows, first_us, last_us
            )
            written = 0
            try:
                for piece, placement in fitting_chunks(chunk, self._shape, mask, self._geometry):
                    write_rows(
                        ring, placement, mask, piece.values, packed_facts=piece.packed,
                        counts=piece.counts, rows=piece.rows, first_us=piece.first_us,
                        last_us=piece.last_us,
                    )  # fmt: skip
                    written += piece.rows
            except Exception as error:  # noqa: BLE001 - inference comes first
                self._note_failure(error)
                return call.rows - written
        finally:
            ring.leave()
        self._recomputed_rows += int(np.count_nonzero(flags & _RECOMPUTED))
        return 0

    @property
    def _is_sampled(self) -> bool:
        return self.profile.fidelity is Fidelity.SAMPLED

    def _cut(self, call: RecordCall, resolved: ResolvedRequests) -> ResolvedRequests:
        """Take rows out of a call: impossible ones, counted, and those of unsampled requests."""
        requests = resolved.requests
        bad = np.repeat([request is None for request in requests], call.counts)
        if resolved.has_impossible:
            self._say_once("record: request ids that are no short text")
        if call.bad_rows is not None:
            bad |= call.bad_rows
            self._say_once(f"record: {call.bad_row_reason}")
        self._book_rejected(int(np.count_nonzero(bad)))
        left_out = np.repeat(
            [request is not None and not request.is_recorded for request in requests], call.counts
        )
        left_out &= ~bad
        self._unsampled_rows += int(np.count_nonzero(left_out))
        kept = call.keep(~(bad | left_out))
        chosen = [
            (request, facts)
            for request, facts, count in zip(requests, resolved.facts, kept, strict=True)
            if count
        ]
        facts = [facts for _, facts in chosen]
        return ResolvedRequests(
            [request for request, _ in chosen], facts, b"".join(facts), has_impossible=False,
            are_usual=False,
        )  # fmt: skip

    def _times(self, values: dict[str, Any]) -> tuple[int, int]:
        given = values.get("event_time_us")
        if given is None:
            now = self._now_us()
            return now, now
        if given.ndim == 0:
            del values["event_time_us"]
            return int(given), int(given)
        return int(given.min()), int(given.max())

    def _now_us(self) -> int:
        """The clock, except that small steps back are held, so that times keep their order."""
        now = self._clock.now_us()
        if 0 < self._last_time_us - now < _LARGEST_CLOCK_STEP_US:
            return self._last_time_us
        self._last_time_us = now
        return now

    def _reject(self, rows: int, reason: str) -> None:
        if rows:
            self._unbooked.append(rows)
            self._say_once(f"record: {reason}")
            if self._lock.acquire(blocking=False):
                try:
                    self._book_rejected(0)
                finally:
                    self._lock.release()

    def _book_rejected(self, rows: int) -> None:
        while self._unbooked:
            rows += self._unbooked.popleft()
        if rows and self._ring is not None:
            self._ring.reject(rows)

    def _say_once(self, reason: str) -> None:
        if reason not in self._reasons and len(self._reasons) < _REASONS_SAID:
            self._reasons.add(reason)
            _log.warning("Not recorded (said once, then only counted): %s", reason)

    def _note_failure(self, error: Exception) -> None:
        self._internal_errors += 1
        if self._internal_errors == INTERNAL_ERRORS_ALLOWED and not self._off:
            self._off = "repeated internal errors"
            _log.error("Recording is switched off after repeated errors.", exc_info=error)

    def _is_off(self) -> bool:
        if self._off:
            return True
        if self._is_forked:
            self._leave_to_parent()
            return True
        return False

    def _leave_to_parent(self) -> None:
        """In a forked child: the ring has one writer, and that is the parent."""
        if not self._off:
            self._off = "forked"
            _log.warning("A forked child does not record: its parent has the ring.")

    def _shut(self, reason: str) -> None:
        self._off = self._off or reason
        _living.discard(self)
        if self._ring is not None:
            self._book_rejected(0)
            self._usual = None
            self._ring.close()
        if self._node_file >= 0:
            os.close(self._node_file)
            self._node_file = -1

    def _become_child(self) -> None:
        self._is_forked = True
        if self._ring is not None:
            self._ring.close_lock()
        if self._node_file >= 0:
            os.close(self._node_file)
            self._node_file = -1


_living: weakref.WeakSet[Recorder] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # A child that kept the locks would pass for a living engine after its parent's death.
    for recorder in list(_living):
        recorder._become_child()  # noqa: SLF001 - the same class's business


os.register_at_fork(after_in_child=_after_fork_in_child)


def _kill_switch() -> str:
    value = os.environ.get(DISABLE_VARIABLE, "").strip().lower()
    return "" if value in {"", "0", "false", "no", "off"} else f"{DISABLE_VARIABLE} is set"
