"""The recorder: copies routing rows from the engine into the ring, and never gets in its way."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from moescope.core.batch import Ranks
from moescope.core.clock import Clock, SystemClock
from moescope.core.errors import SettingsError, one_line
from moescope.core.vocabulary import (
    UNKNOWN_SCENE,
    Fidelity,
    IdSpace,
    Origin,
    Phase,
    RankOrder,
    ScoreKind,
    TokenIdKind,
)
from moescope.producers.profile import Profile
from moescope.producers.recording.budget import BUDGET_REASON, Rung
from moescope.producers.recording.call import rows_given, tokens_given, whole_number_of_rows
from moescope.producers.recording.calls import Calls
from moescope.producers.recording.changing import (
    LOCK_TIMEOUT_SECONDS,
    ChangingTerms,
    plain_reason,
)
from moescope.producers.recording.counters import (
    Complaints,
    RecorderCounters,
    RowBooks,
    ThreadTotals,
)
from moescope.producers.recording.description import checked_incarnation, checked_profile, member
from moescope.producers.recording.event_times import EventTimes
from moescope.producers.recording.forks import forget_forks, watch_forks
from moescope.producers.recording.general import PartlyWrittenError
from moescope.producers.recording.pausing import NOT_RECORDING, Pausing, new_budget
from moescope.producers.recording.requests import Requests
from moescope.producers.recording.running import RunningRequests
from moescope.producers.recording.sampling import Sampling
from moescope.producers.recording.switch import KillSwitch, disabled_by_environment
from moescope.producers.ring.layout import DEFAULT_RING_BYTES, Closing, Geometry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from numpy.typing import ArrayLike

    from moescope.producers.ring.writer import RingWriter

INTERNAL_ERRORS_ALLOWED: Final = 8
RING_DELETED: Final = "the ring's file was deleted"
ENDED: Final = "the process ends"
_UNDISTURBED_SECONDS: Final = 0.01

_log = logging.getLogger("moescope.producers")


class Recorder:
    """Records which experts a model's router chose.

    The constructor checks its arguments and allocates the ring: it may raise. No other method
    ever raises, blocks for long, or writes anywhere but into the ring; what cannot be recorded
    is counted. Methods may be called from several threads. In a forked child the recorder is
    disabled. With `MOESCOPE_DISABLE=1` in the environment it says so once in the log, makes no ring
    and does nothing but count what it was given; while a file `disable` lies in its folder it
    counts rows as unseen and follows which requests begin and end, and does nothing else.

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
        cpu_budget: Share of the engine's time, above 0 and at most 1, that recording may take;
            above it less is recorded, and the batches say so. By default all is recorded.
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
        cpu_budget: float | None = None,
        clock: Clock | None = None,
        incarnation: int | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._is_forked = False
        self._internal_errors = ThreadTotals(0)
        self._flushes: list[weakref.WeakMethod[Callable[[], None]]] = []
        self._complaints = Complaints(_log)
        self._books = RowBooks(self._lock)
        self._times = EventTimes(self._clock)
        self._ring: RingWriter | None = None
        self._node_file = -1
        profile = checked_profile(
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
        self._has_token_ids = profile.token_id_kind is not TokenIdKind.OFF
        self._running = RunningRequests()
        self._sampling = Sampling(sampling_ratio)
        geometry = Geometry.for_size(ring_bytes, profile.shape.longest_row_frame())
        self._terms = ChangingTerms(profile, self._sampling, geometry, self._lock)
        self._calls = Calls(
            running=self._running,
            sampling=self._sampling,
            shape=profile.shape,
            geometry=geometry,
            books=self._books,
            times=self._times,
            complaints=self._complaints,
            lock=self._lock,
        )
        now = self._clock.monotonic()
        budget = new_budget(cpu_budget, profile.fidelity, sampling_ratio, now)
        self._pausing = Pausing(KillSwitch(Path(directory)), budget, now)
        self._requests = Requests(
            running=self._running,
            sampling=self._sampling,
            pausing=self._pausing,
            times=self._times,
            complaints=self._complaints,
            lock=self._lock,
        )
        self._off = disabled_by_environment()
        incarnation = checked_incarnation(incarnation)
        if self._off:
            _log.warning("Recording is switched off, and no ring is made: %s.", self._off)
        else:
            self._open(Path(directory), geometry, node, incarnation)
            watch_forks(self)

    @property
    def profile(self) -> Profile:
        """What batch headers say at the moment."""
        return self._terms.profile

    @property
    def node(self) -> str:
        """The name under which this producer's batches are shipped."""
        return self.profile.node

    @property
    def fidelity(self) -> Fidelity:
        """How much is shipped at the moment; in `counts` only ids, steps and drops are used."""
        return self._terms.now.fidelity

    @property
    def is_recording(self) -> bool:
        """Whether a call of `record` would record anything: else an engine can spare the work.

        Rows that are not recorded while this is False are told by `miss`, or by `record` itself.
        """
        self.look()
        return not (self._is_off() or self._pausing.reason)

    def look(self) -> None:
        """Follow switch and budget now, if they are to be looked at within a hundredth of a second.

        So that long no budget changes the fidelity: what a probe prepares for the one that holds
        can be recorded.
        """
        if not self._is_off():
            self._look_if_due(self._clock.monotonic(), ahead=_UNDISTURBED_SECONDS)

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
            task: What the request belongs to; by default, or if it is no text of at most 512 bytes,
                itself.
            scene: Traffic class; `unknown` if it is no text of at most 512 bytes.
        """
        if not self._follows_requests():
            return
        try:
            self._requests.begin(request_id, prompt_tokens, cached_tokens, task, scene)
        except (TypeError, ValueError) as error:
            self._complaints.say_once(f"begin_request: {error}")
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
            padding: Booleans [T], rows that belong to no token, whatever their ids and positions.
            rows_per_request: Integers, one per entry of `request_ids`, adding up to T.
        """
        if self._is_off():
            self._books.add(unseen=tokens_given(positions, expert_ids, phase, padding))
            return
        began = self._clock.monotonic()
        pausing = self._pausing
        if began >= pausing.next_look:
            self._look_if_due(began)
        if pausing.reason:
            self.miss(tokens_given(positions, expert_ids, phase, padding), pausing.reason)
            return
        if not self._has_token_ids:
            token_ids = None
        if self._terms.is_counts:  # of which no batch would hold any
            weights = entropy = margin = pass_id = token_ids = content_keys = blocks = None
        try:
            usual = self._calls.usual
            if usual is not None and blocks is padding is None and usual.record(
                request_ids, positions, expert_ids, phase, rows_per_request=rows_per_request,
                event_time_us=event_time_us, pass_id=pass_id, step=step, token_ids=token_ids,
                content_keys=content_keys, weights=weights, entropy=entropy, margin=margin,
                dropped=dropped,
            ):  # fmt: skip
                return
            self._calls.record_any(
                request_ids, positions, expert_ids, phase, rows_per_request=rows_per_request,
                event_time_us=event_time_us, pass_id=pass_id, step=step, token_id=token_ids,
                content_key=content_keys, weights=weights, entropy=entropy, margin=margin,
                dropped=dropped, block=blocks, padding=padding,
            )  # fmt: skip
        except PartlyWrittenError as error:
            self._calls.reject(error.rows, "an internal error")
            self._note_failure(error)
        except Exception as error:  # noqa: BLE001 - inference comes first
            self._calls.reject(rows_given(positions, expert_ids), "an internal error")
            self._note_failure(error)
        finally:
            if pausing.budget is not None:
                pausing.budget.spend(self._clock.monotonic() - began)

    def miss(self, rows: int, reason: str) -> None:
        """Tell of rows that the engine computed and nobody could see: coverage falls by them.

        Args:
            rows: Their number, at most 2⁴⁰; a call that gives none counts as one rejected row.
            reason: Short and the same each time: the label `unseen_reason` of the batch that tells
                of these rows. Up to 15 different ones are kept apart, all others count together.
        """
        is_off = self._is_off()
        try:
            rows = whole_number_of_rows(rows)
        except Exception as error:  # noqa: BLE001 - whatever an engine passes
            self._books.add(rejected=1)
            if not is_off:
                self._complaints.say_once(f"miss: {error}")
            return
        if is_off:
            self._books.add(unseen=rows)
            return
        if not rows:
            return
        try:
            if reason == NOT_RECORDING:
                reason = self._pausing.reason or reason
            reason = plain_reason(reason)
            try:
                self._complaints.say_once(f"unseen rows: {reason}")
            finally:
                self._books.add(unseen=rows, reason=reason)
        except Exception as error:  # noqa: BLE001 - inference comes first
            self._note_failure(error)

    def end_request(self, request_id: str, *, last_of_task: bool = False) -> None:
        """Tell that a request is over; `last_of_task` when its task is over, too."""
        if not self._follows_requests():
            return
        try:
            self._requests.end(request_id, last_of_task=last_of_task)
        except TypeError as error:
            self._complaints.say_once(f"end_request: {error}")
        except Exception as error:  # noqa: BLE001 - inference comes first
            self._note_failure(error)

    def set_fidelity(self, fidelity: Fidelity | str, sampling_ratio: float = 1.0) -> bool:
        """Ship more or less from the next call on; a budget steps down from there.

        Args:
            fidelity: How much is shipped.
            sampling_ratio: Share of requests recorded; below 1 with fidelity `sampled` only.

        Returns:
            Whether it holds: False, with a reason in the log, if the arguments make no sense.
        """
        if self._is_off():
            return False
        self._flush()
        try:
            if not self._terms.set_fidelity(fidelity, sampling_ratio, reason=""):
                return False
            self._pausing.restart_budget(
                member(Fidelity, fidelity), sampling_ratio, self._clock.monotonic()
            )
        except (SettingsError, TypeError, ValueError) as error:
            self._complaints.say_once(f"set_fidelity: {one_line(error)}")
            return False
        except Exception as error:  # noqa: BLE001 - inference comes first
            self._note_failure(error)
            return False
        return True

    def set_placement(
        self, rank_of_expert: ArrayLike, version: int, *, ranks: int | None = None
    ) -> bool:
        """Tell which expert-parallel rank holds which expert from the next call on.

        Args:
            rank_of_expert: Integers [E], for all layers, or [L, E]; in the recorder's id space.
            version: Rises with each change; `expert_map_version` of the batches from now on. The
                same one again only with the same table, which changes nothing.
            ranks: Number of ranks; by default the highest one that holds an expert, plus one.

        Returns:
            Whether it holds: False, with a reason in the log, if it cannot be.
        """
        if self._is_off():
            return False
        self._flush()
        try:
            return self._terms.set_placement(rank_of_expert, version, ranks)
        except (SettingsError, TypeError, ValueError) as error:
            self._complaints.say_once(f"set_placement: {one_line(error)}")
        except Exception as error:  # noqa: BLE001 - inference comes first
            self._note_failure(error)
        return False

    def before_change(self, flush: Callable[[], None]) -> None:
        """Have a probe's rows that wait recorded before what they were computed under changes.

        Args:
            flush: Called at the beginning of `set_fidelity`, `set_placement` and `close`, and
                before a budget changes the fidelity; a bound method, whose object is not kept
                alive.
        """
        self._flushes = [kept for kept in self._flushes if kept() is not None]
        self._flushes.append(weakref.WeakMethod(flush))

    def _flush(self) -> None:
        for reference in self._flushes:
            flush = reference()
            if flush is None:
                continue
            try:
                flush()
            except Exception as error:  # noqa: BLE001 - inference comes first
                self._note_failure(error)

    def spend(self, seconds: float) -> None:
        """Tell of time that a probe spent for this recorder, for its `cpu_budget`."""
        if self._pausing.budget is not None:
            self._pausing.budget.spend(seconds)

    @property
    def recorded_rows(self) -> int:
        """Rows in the ring so far."""
        return self._ring.rows if self._ring else 0

    def counters(self) -> RecorderCounters:
        """What was recorded and what was not."""
        if not self._is_off():
            self._look_if_due(self._clock.monotonic())
        return RecorderCounters(
            recorded_rows=self.recorded_rows,
            rejected_rows=self._books.rejected_rows,
            unseen_rows=self._books.unseen_rows,
            unsampled_rows=self._books.unsampled.total,
            recomputed_rows=self._books.recomputed.total,
            running_requests=len(self._running),
            internal_errors=self._internal_errors.total,
            disabled=self._off or self._pausing.reason,
            disabled_rows=self._books.disabled_rows,
        )

    def close(self) -> None:
        """Stop recording; the agent drains what is in the ring, then removes it.

        It says that the last optimizer step is done, so that its window can close. A recorder that
        is never closed, or whose `with` block an error ends, does not say so.
        """
        self._close(Closing.COMPLETE)

    def _close(self, how: Closing) -> None:
        if not self._is_off():
            self._flush()
        try:
            if not self._is_forked and self._lock.acquire(timeout=1.0):
                try:
                    self._shut("closed", how)
                finally:
                    self._lock.release()
        except Exception as error:  # noqa: BLE001 - inference comes first
            self._note_failure(error)

    def become_child(self) -> None:
        """In a forked child: let go of the ring, whose one writer is the parent."""
        self._is_forked = True
        self._books.leave()
        if self._ring is not None:
            self._ring.close_lock()
        if self._node_file >= 0:
            os.close(self._node_file)
            self._node_file = -1

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
        self._close(Closing.COMPLETE if error is None else Closing.LEFT)

    def _open(
        self, directory: Path, geometry: Geometry, node: str | None, incarnation: int | None
    ) -> None:
        # Here, for an engine that only imports this module shall not wait for the checksums.
        from moescope.producers.recording.folder import open_ring  # noqa: PLC0415 - it loads the checksums

        ring, profile, self._node_file = open_ring(
            directory, self.profile, geometry, node=node, incarnation=incarnation,
            now_us=self._clock.now_us(),
        )  # fmt: skip
        self._ring = ring
        self._books.open(ring)
        self._terms.start(profile, ring)
        self._calls.open(ring)
        self._requests.open(ring)
        # An engine that lets go of its recorder, or ends in peace, did not crash.
        weakref.finalize(
            self, _end, ring, self._lock, self._pausing,
            books=self._books, calls=self._calls, requests=self._requests,
        )  # fmt: skip

    def _look_if_due(self, now: float, ahead: float = 0.0) -> None:
        """Once a second: does the kill switch or the budget want something else; is the ring there?

        Nobody reads a deleted ring, except an agent that has it open: it learns that rows are
        missing. A new ring would cost the engine an allocation in the middle of a pass.
        """
        if now + ahead < self._pausing.next_look:
            return
        try:
            is_released, rung = self._pausing.look(now)
            if is_released:  # the rows since then were not followed: no position is known
                with self._lock:
                    self._running.forget_positions()
            if rung is not None:
                self._follow(rung)
            if self._ring is not None and not self._pausing.has_failed and self._ring.is_deleted:
                self._pausing.give_up(RING_DELETED)
                _log.error("%s: nothing is recorded until the engine starts anew.", RING_DELETED)
            self._books.try_to_book()
        except Exception as error:  # noqa: BLE001 - inference comes first
            self._note_failure(error)

    def _follow(self, rung: Rung) -> None:
        budget = self._pausing.budget
        reason = BUDGET_REASON if budget is not None and budget.is_reduced else ""
        self._flush()
        self._terms.set_fidelity(rung.fidelity, rung.sampling_ratio, reason)

    def _note_failure(self, error: Exception) -> None:
        self._internal_errors.add(1)
        has_failed = self._pausing.has_failed
        if not has_failed and self._internal_errors.total >= INTERNAL_ERRORS_ALLOWED:
            self._pausing.give_up("repeated internal errors")
            _log.error("Recording is switched off after repeated errors.", exc_info=error)

    def _follows_requests(self) -> bool:
        """Also while no row is recorded: what begins meanwhile may run on when rows are again."""
        if self._is_off():
            return False
        self._look_if_due(self._clock.monotonic())
        return not self._pausing.has_failed

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

    def _shut(self, reason: str, how: Closing) -> None:
        self._off = self._off or reason
        forget_forks(self)
        if self._ring is not None:
            _let_go(self._books, self._calls, self._requests)
            self._ring.close(how)
        if self._node_file >= 0:
            os.close(self._node_file)
            self._node_file = -1


def _let_go(books: RowBooks, calls: Calls, requests: Requests) -> None:
    """Write nothing into the ring any more; with its lock."""
    books.close()
    calls.close()
    requests.close()


def _end(
    ring: RingWriter,
    lock: threading.Lock,
    pausing: Pausing,
    *,
    books: RowBooks,
    calls: Calls,
    requests: Requests,
) -> None:
    """Close the ring of a recorder that nobody closed; threads of it may be alive still."""
    is_mine = lock.acquire(timeout=LOCK_TIMEOUT_SECONDS)  # a fork may have copied it held
    try:
        _let_go(books, calls, requests)
        pausing.give_up(ENDED)
        ring.close()
    finally:
        if is_mine:
            lock.release()
