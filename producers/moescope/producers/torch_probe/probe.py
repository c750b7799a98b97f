"""The probe: watches a model and its routers, from a pass's beginning to its end."""

from __future__ import annotations

import inspect
import itertools
import threading
import time
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Self

from moescope.core.vocabulary import UNKNOWN_SCENE, Fidelity, Phase
from moescope.producers.recording.pausing import INTERRUPTED, NOT_RECORDING
from moescope.producers.torch_probe.compiled import forget
from moescope.producers.torch_probe.counters import ProbeCounters, Tally
from moescope.producers.torch_probe.inputs import (
    PassInputs,
    RefusedPassError,
    read_inputs,
    rows_given,
)
from moescope.producers.torch_probe.openings import Openings, is_drafting
from moescope.producers.torch_probe.passes import ComputedPass, CurrentPass, Wanted
from moescope.producers.torch_probe.replays import CapturedPass, StaticBuffers, is_capturing
from moescope.producers.torch_probe.requests import (
    RequestFacts,
    RoutingSink,
    RunningBatch,
    checked_end_tokens,
    checked_requests,
)
from moescope.producers.torch_probe.steps import HELD_STEPS
from moescope.producers.torch_probe.tower import device_of
from moescope.producers.torch_probe.unrecorded import GAVE_UP, Unrecorded
from moescope.producers.waiting import LateReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    import torch

    from moescope.producers.torch_probe.attribution import Attribution
    from moescope.producers.torch_probe.families import LayerRouter
    from moescope.producers.torch_probe.hooks import AfterRouter

_PATIENCE_SECONDS: Final = 1.0
_NOT_ONCE: Final = "a router that did not run just once"
_REPLACED: Final = (
    "some router ran twice or not at all; one that was put in its place since is not watched: "
    "attach anew"
)
_BESIDE: Final = "passes beside the open requests"
_OF_NO_REQUEST: Final = "passes of no request"
_NONE_OPEN: Final = (
    "a pass ran while no request was open, as in a warm-up: what is to be recorded has to run "
    "inside of `with probe.request(…)` or `with probe.batch([…])`"
)
_HOW_TO_OPEN: Final = (
    "a pass ran outside of any request while one was open elsewhere: open request() in the "
    "function that calls the model, in its own thread (Thread(target=…) inherits nothing)"
)


class OfThread(threading.local):
    """What one thread computes: threads never see each other's passes."""

    current: CurrentPass | CapturedPass | None = None


class Probe:
    """Records the routing of one model; made by `attach`.

    A pass belongs to the `request()` or `batch()` whose code runs it: threads, asyncio tasks and
    generators may compute with the model in turns, each inside a block of its own. Nothing here
    ever raises into the model; what goes wrong is counted and said once in the log.

    Args:
        tower: The module whose forward is a pass.
        routers: By ascending layer.
        attribution: Where rows go.
        sink: The same recorder.
        wanted: Columns to record.
        buffers: For passes in a CUDA graph that the program captures; None without any.
        held_steps: The most decode steps that wait to be recorded together.
        clock: Monotonic seconds.

    Attributes:
        of_thread: What the calling thread computes.
        anchor: See `compiled`.
    """

    def __init__(
        self,
        tower: torch.nn.Module,
        routers: Sequence[LayerRouter],
        attribution: Attribution,
        sink: RoutingSink,
        wanted: Wanted,
        *,
        buffers: StaticBuffers | None = None,
        held_steps: int = HELD_STEPS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        import torch  # noqa: PLC0415 - an inference node without torch imports this module, too

        from moescope.producers.torch_probe.hooks import (  # noqa: PLC0415 - as above
            AfterPass,
            AfterRouter,
            BeforePass,
        )
        from moescope.producers.torch_probe.watching import watch  # noqa: PLC0415 - as above

        self._without_gradient = torch.no_grad
        self._attribution = attribution
        self._sink = sink
        self._wanted = wanted
        self._tally = Tally()
        self._begun = itertools.count()
        self._pass_ids = itertools.count()
        self._unrecorded = Unrecorded(sink, self._tally)
        self._is_detached = False
        self._openings = Openings()
        self.of_thread = OfThread()
        with torch.inference_mode(mode=False):  # compiled code says that it changes it, anywhere
            self.anchor = torch.zeros(1, device=device_of(routers[0].module, tower))
        self._buffers = buffers
        self._held_steps = held_steps
        self._clock = clock
        hooks = [
            AfterRouter(self, place, router.family, router.module)
            for place, router in enumerate(routers)
        ]
        # Weakly: a probe keeps no part of a model alive that is unloaded.
        self._router_hooks = [weakref.ref(hook) for hook in hooks]
        self._late = LateReader(self)
        self._handles: list[Any] = []
        try:
            self._handles.append(
                tower.register_forward_pre_hook(BeforePass(self, tower), with_kwargs=True)
            )
            self._handles.append(tower.register_forward_hook(AfterPass(self)))
            for router, hook in zip(routers, hooks, strict=True):
                self._handles.append(watch(router.module, hook))
        except BaseException:
            self.detach()
            raise
        sink.before_change(self.flush)

    @property
    def counters(self) -> ProbeCounters:
        """What was recorded and what was not."""
        return self._tally.snapshot()

    @contextmanager
    def batch(
        self,
        requests: Sequence[RequestFacts],
        *,
        phase: Phase | None = None,
        step: int | None = None,
        end_tokens: Sequence[int] | None = None,
    ) -> Iterator[None]:
        """All passes that the code inside runs compute these requests, one per row.

        The requests end with it.

        Args:
            requests: In the order of the rows.
            phase: Of all tokens; by default prefill up to the prompt's length, then decode.
            step: Optimizer step.
            end_tokens: What ends a row's generation: what it is fed from then on is no token of it.
                By default, in a batch of several, what the model's generation_config says, as long
                as only padding follows. Not looked at with `phase`.

        Raises:
            InputError: These are no `RequestFacts`, or no token ids.
        """
        running = RunningBatch(
            checked_requests(requests), phase, step, checked_end_tokens(end_tokens),
            self._held_steps,
        )  # fmt: skip
        opening = self._openings.enter(running, inspect.currentframe())
        try:
            yield
        finally:
            self._openings.leave(opening)
            with running.lock:
                running.is_over = True
                self._settle_all(running)
            current = self.of_thread.current
            if isinstance(current, CurrentPass) and current.running is running:
                self.of_thread.current = None
            try:
                running.end(self._sink)
            except Exception as error:  # noqa: BLE001 - inference comes first
                self._unrecorded.note(error)

    @contextmanager
    def request(
        self,
        request_id: str,
        *,
        task: str | None = None,
        scene: str = UNKNOWN_SCENE,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
    ) -> Iterator[None]:
        """All passes that the code inside runs compute this one request; see `RequestFacts`."""
        facts = RequestFacts(
            id=request_id,
            task=task,
            scene=scene,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
        )
        with self.batch([facts]):
            yield

    def after_replay(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
    ) -> None:
        """Record a pass that the replay of a CUDA graph has computed; never raises.

        Call it after each replay, on its stream, inside of `request()` or `batch()`. The graph has
        to be captured with the probe attached and `static_rows` given.

        Args:
            input_ids: [B, S], what the rows were computed for; fewer than the graph computes if
                the rest fill it up.
            attention_mask: [B, columns], of all columns so far.
            position_ids: [B, S]. Without these two, rows are a request's first.
        """
        given = {
            "input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids,
        }  # fmt: skip
        self.begin_pass((), (), given)
        current, buffers = self.of_thread.current, self._buffers
        if not isinstance(current, CurrentPass):
            if buffers is not None:
                buffers.take_fresh()
            return
        if buffers is None:
            self.give_up(RefusedPassError("a replay without static_rows"))
            return
        try:
            buffers.replayed(current, self._router_hooks)
        except Exception as error:  # noqa: BLE001 - inference comes first
            self.give_up(error)
        self.end_pass()

    def detach(self) -> None:
        """Take all hooks off; the model is as it was before."""
        self.flush()
        self._late.stop()
        self._is_detached = True
        forget(self)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.of_thread.current = None

    def flush(self) -> None:
        """Record what waits, of all open blocks; never raises."""
        for running in self._openings:
            # A thread that reads just now is about to do it, and one that hangs stops nobody.
            if running.lock.acquire(timeout=_PATIENCE_SECONDS):
                try:
                    self._settle_all(running)
                finally:
                    running.lock.release()

    def read_late(self) -> bool:
        """Record the steps of generations that pause; whether others wait still.

        Beside a model that computes, another thread's work costs it turns of the interpreter.
        """
        others = False
        for running in self._openings:
            if not running.held:
                continue
            if not running.held.are_left(self._clock()) or not running.lock.acquire(blocking=False):
                others = True
                continue
            try:
                self._settle_all(running)
            finally:
                running.lock.release()
        return others

    def __enter__(self) -> Self:
        """The probe itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Detach."""
        self.detach()

    def begin_pass(
        self, names: Sequence[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """A pass with these arguments begins in this thread; never raises."""
        try:
            inputs = read_inputs(names, args, kwargs)
        except RefusedPassError as refusal:
            self.refuse_pass(refusal, rows_given(names, args, kwargs))
        except Exception as error:  # noqa: BLE001 - inference comes first
            self.refuse_pass(error, 1)
        else:
            self.begin(inputs)

    def begin(self, inputs: PassInputs) -> None:
        """A pass with these inputs begins in this thread; never raises."""
        rows = inputs.rows
        running: RunningBatch | None = None
        try:
            if is_capturing():
                self._capture(rows)
                return
            running = self._whose(rows)
            if running is not None:
                self._arm(running, inputs)
        except Exception as error:  # noqa: BLE001 - inference comes first
            self._unrecorded.tell(error, running, rows)

    def _capture(self, rows: int) -> None:
        self.of_thread.current = None
        if self._buffers is not None:
            self.of_thread.current = CapturedPass(self._buffers, rows)
            return
        self._tally.add(refused_passes=1)
        self._tally.say_once("captured into a CUDA graph without static_rows")

    def _whose(self, rows: int) -> RunningBatch | None:
        """Whose rows a pass computes that begins now; None, and counted, when they are nobody's.

        Raises:
            RefusedPassError: Nothing tells.
        """
        self.of_thread.current = None
        if self._is_detached:
            return None
        running = self._openings.current()
        if running is None:
            self._tally.add(unattributed_rows=int(rows))  # a tracer's numbers are tensors
            if self._openings:
                self._tally.say_once(_BESIDE, _HOW_TO_OPEN)
                self._unrecorded.miss(None, rows, _BESIDE)
            else:
                self._tally.say_once(_OF_NO_REQUEST, _NONE_OPEN)
        return running

    def _arm(self, running: RunningBatch, inputs: PassInputs) -> None:
        rows = inputs.rows
        if self._unrecorded.is_off:
            self._unrecorded.miss(running, rows, GAVE_UP)
        elif not self._sink.is_recording:
            self._unrecorded.miss(running, rows, NOT_RECORDING)
        elif inputs.length > 1 and running.phase is None and is_drafting():
            running.refusal = "assisted generation"
            raise RefusedPassError(
                running.refusal, "nothing tells which of the drafted tokens are kept"
            )
        else:
            if inputs.past is None and not running.is_followed_by(inputs):
                inputs = inputs.with_past()
            elif inputs.cache is not None:  # a pass that fails would keep it
                inputs = PassInputs(*inputs[:-1])
            current = CurrentPass(running, inputs, self._hook(0).family, len(self._router_hooks))
            running.latest = current.number = next(self._begun)
            self.of_thread.current = current

    def refuse_pass(self, error: Exception, rows: int) -> None:
        """A pass begins in this thread that cannot be recorded; never raises."""
        try:
            running = self._whose(rows)
        except Exception as other:  # noqa: BLE001 - inference comes first
            self._unrecorded.tell(other, None, rows)
        else:
            if running is not None:
                self._unrecorded.tell(error, running, rows)

    def keep(self, place: int, tensors: tuple[torch.Tensor, ...]) -> None:
        """A router of a compiled model has run in this thread; never raises."""
        current, hook = self.of_thread.current, self._router_hooks[place]()
        if current is None or hook is None:
            return
        try:
            current.keep(place, hook.module, tensors)
            if isinstance(current, CurrentPass):
                current.is_compiled = True
        except Exception as error:  # noqa: BLE001 - inference comes first
            self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """The pass that this thread computes cannot be recorded; never raises."""
        current, self.of_thread.current = self.of_thread.current, None
        if isinstance(current, CurrentPass):
            self._unrecorded.tell(error, current.running, current.rows)
        elif current is not None:
            self._unrecorded.tell(error, None, 0)  # captured only: nothing was computed

    def end_pass(self) -> None:
        """A pass has ended in this thread; never raises."""
        mine = self.of_thread
        current, mine.current = mine.current, None
        if not isinstance(current, CurrentPass):
            return
        running = current.running
        began = self._clock()
        with running.lock:
            self._settle(running)
            try:
                if self._is_recordable(current):
                    self._read(current, began)
                self._sink.spend(self._clock() - began)
            except Exception as error:  # noqa: BLE001 - inference comes first
                self._unrecorded.tell(error, running, current.rows)
            else:
                if running.pending is not None and not running.pending.is_late:
                    self._settle(running)

    def _is_recordable(self, current: CurrentPass) -> bool:
        """Whether each router ran once over the rows of the requests; False is counted.

        Raises:
            RefusedPassError: Whose rows they were is not known.
        """
        running, inputs = current.running, current.inputs
        if running.refusal:
            raise RefusedPassError(running.refusal)
        if running.latest != current.number:
            running.refusal = "passes of one request at one time"
            raise RefusedPassError(running.refusal)
        if not current.is_whole:
            self._tally.add(incomplete_passes=1)
            self._tally.say_once(_NOT_ONCE, _REPLACED)
            self._unrecorded.miss(running, current.rows, _NOT_ONCE)
            return False
        if len(running.requests) != inputs.batch:
            raise RefusedPassError(
                "rows unlike the requests",
                f"{inputs.batch} for {len(running.requests)} (beam search, or several sequences of "
                "one request?)",
            )
        return True

    def _read(self, current: CurrentPass, now: float) -> None:
        """Read a pass's tensors; those of a decode step perhaps later, with the next ones'."""
        running, wanted = current.running, self._wanted_now(current.running)
        is_one_step = running.held.takes(current, wanted)
        if running.held and not (is_one_step and running.held.go_with(current, wanted)):
            self._read_held(running)  # they come before this one
            self._settle(running)
            is_one_step = running.held.takes(current, wanted)
        follows = current.inputs.past is not None or running.is_followed_by(current.inputs)
        # It did when it began: where its rows are is not known now.
        if not is_one_step and not follows:
            raise RefusedPassError("steps before it could not be read")
        if is_one_step:
            if running.held.add(current, next(self._pass_ids), wanted, now):
                self._read_held(running)
            else:
                self._late.expect()
            return
        with self._without_gradient():
            running.pending = ComputedPass(
                running,
                current.inputs,
                current.interpreted(wanted),
                pass_ids=[next(self._pass_ids)],
                wanted=wanted,
            )

    def _read_held(self, running: RunningBatch) -> None:
        """Read the steps that wait; never raises."""
        try:
            with self._without_gradient():
                hooks = [self._hook(place) for place in range(len(self._router_hooks))]
                running.pending = running.held.read(
                    running, hooks[0].family, [hook.module for hook in hooks]
                )
        except Exception as error:  # noqa: BLE001 - inference comes first
            passes, rows = running.held.forget()
            self._unrecorded.tell(error, running, rows, passes)

    def _hook(self, place: int) -> AfterRouter:
        """The hook of a router.

        Raises:
            RefusedPassError: The model is gone.
        """
        hook = self._router_hooks[place]()
        if hook is None or hook.module is None:
            raise RefusedPassError("the model was unloaded amid a request")
        return hook

    def _wanted_now(self, running: RunningBatch) -> Wanted:
        wanted = self._wanted
        if running.end_tokens is not None and not wanted.tokens:
            wanted = wanted._replace(tokens=True)
        if self._sink.fidelity is Fidelity.COUNTS:  # of scores and weights nothing is shipped
            return Wanted(weights=False, scores=False, tokens=wanted.tokens)
        return wanted

    def _settle_all(self, running: RunningBatch) -> None:
        """Record all that these requests have computed and not yet recorded."""
        self._settle(running)
        if running.held:
            self._read_held(running)
            self._settle(running)

    def _settle(self, running: RunningBatch) -> None:
        """Record the pass that these requests have computed and not yet recorded."""
        done, running.pending = running.pending, None
        if done is None:
            return
        try:
            became = self._attribution.record(done, done.rows())
        except Exception as error:  # noqa: BLE001 - inference comes first
            if isinstance(error, RefusedPassError):
                running.refusal = error.reason
            self._unrecorded.tell(error, running, done.size)
        except BaseException:  # the user's interrupt, which is not ours to keep
            self._unrecorded.miss(running, done.size, INTERRUPTED)
            raise
        else:
            self._tally.add(
                passed_rows=became.passed,
                padding_rows=became.padding,
                invalid_rows=became.invalid,
                doubtful_rows=became.doubtful,
            )
