"""The probe: hooks on a model and its routers, armed from a pass's beginning to its end."""

from __future__ import annotations

import itertools
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Self

from moescope.core.vocabulary import UNKNOWN_SCENE, Fidelity, Phase
from moescope.producers.torch_probe.compiled import forget
from moescope.producers.torch_probe.counters import ProbeCounters, Tally
from moescope.producers.torch_probe.inputs import PassInputs, RefusedPassError, read_inputs
from moescope.producers.torch_probe.passes import ComputedPass, CurrentPass, Wanted
from moescope.producers.torch_probe.replays import CapturedPass, StaticBuffers, is_capturing
from moescope.producers.torch_probe.requests import RequestFacts, RoutingSink, RunningBatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    import torch

    from moescope.producers.torch_probe.attribution import Attribution
    from moescope.producers.torch_probe.families import LayerRouter

ERRORS_ALLOWED: Final = 8
"""A probe with as many errors of its own switches itself off."""

_WAS_OFF: Final = "recording was off"


class OfThread(threading.local):
    """What one thread computes: threads never see each other's requests or passes."""

    running: RunningBatch | None = None
    current: CurrentPass | CapturedPass | None = None
    computed: ComputedPass | None = None


class Probe:
    """Records the routing of one model; made by `attach`.

    Requests belong to the thread that announced them: several threads may compute with the model
    at a time, each inside a `request()` or `batch()` of its own. Nothing here ever raises into the
    model; what goes wrong is counted and said once in the log.

    Args:
        tower: The module whose forward is a pass.
        routers: By ascending layer.
        attribution: Where rows go.
        sink: The same recorder.
        wanted: Columns to record.
        buffers: For passes in a CUDA graph that the program captures; None without any.

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
    ) -> None:
        import torch  # noqa: PLC0415 - an inference node without torch imports this module, too

        from moescope.producers.torch_probe.hooks import (  # noqa: PLC0415 - as above
            AfterPass,
            AfterRouter,
            BeforePass,
        )

        self._without_gradient = torch.no_grad
        self._attribution = attribution
        self._sink = sink
        self._wanted = wanted
        self._tally = Tally()
        self._pass_ids = itertools.count()
        self._is_off = False
        self.of_thread = OfThread()
        self.anchor = torch.zeros(1, device=next(routers[0].module.parameters()).device)
        self._buffers = buffers
        hooks = [
            AfterRouter(self, place, router.family, router.module)
            for place, router in enumerate(routers)
        ]
        # Weakly: a probe keeps no part of a model alive that is unloaded.
        self._router_hooks = [weakref.ref(hook) for hook in hooks]
        self._handles: list[Any] = [
            tower.register_forward_pre_hook(BeforePass(self, tower), with_kwargs=True),
            tower.register_forward_hook(AfterPass(self)),
            *(
                router.module.register_forward_hook(hook, with_kwargs=True)
                for router, hook in zip(routers, hooks, strict=True)
            ),
        ]

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
    ) -> Iterator[None]:
        """All passes of this thread inside compute these requests, one per row; they end with it.

        Args:
            requests: In the order of the rows.
            phase: Of all tokens; by default prefill up to the prompt's length, then decode.
            step: Optimizer step.
        """
        mine = self.of_thread
        outer, mine.running = mine.running, RunningBatch(requests, phase, step)
        running = mine.running
        try:
            yield
        finally:
            self._settle()
            mine.current = None
            mine.running = outer
            try:
                running.end(self._sink)
            except Exception as error:  # noqa: BLE001 - inference comes first
                self._note(error)

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
        """All passes of this thread inside compute this one request; see `RequestFacts`."""
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
        rows = current.inputs.batch * current.inputs.length
        if buffers is None:
            self.refuse_pass("a replay without static_rows", rows=rows)
            return
        try:
            buffers.replayed(current, self._router_hooks)
        except RefusedPassError as refusal:
            self.refuse_pass(refusal.reason, str(refusal), rows)
        except Exception as error:  # noqa: BLE001 - inference comes first
            self.give_up(error)
        self.end_pass()

    def detach(self) -> None:
        """Take all hooks off; the model is as it was before."""
        self._settle()
        self._is_off = True
        forget(self)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.of_thread.current = None

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
            self.refuse_pass(refusal.reason, str(refusal))
        except Exception as error:  # noqa: BLE001 - inference comes first
            self.give_up(error)
        else:
            self.begin(inputs)

    def begin(self, inputs: PassInputs) -> None:
        """A pass with these inputs begins in this thread; never raises."""
        try:
            self._arm(inputs)
        except RefusedPassError as refusal:
            self.refuse_pass(refusal.reason, str(refusal))
        except Exception as error:  # noqa: BLE001 - inference comes first
            self.give_up(error)

    def _arm(self, inputs: PassInputs) -> None:
        mine = self.of_thread
        mine.current = None
        if self._is_off:
            return
        if is_capturing():
            if self._buffers is None:
                raise RefusedPassError("captured into a CUDA graph without static_rows")
            mine.current = CapturedPass(self._buffers, inputs.batch * inputs.length)
        elif mine.running is None:
            self._tally.add(unattributed_rows=inputs.batch * inputs.length)
        elif not self._sink.is_recording:
            mine.running.miss_pass()
            self._sink.miss(inputs.batch * inputs.length, _WAS_OFF)
        else:
            mine.current = CurrentPass(mine.running, inputs, len(self._router_hooks))

    def refuse_pass(self, reason: str, detail: str = "", rows: int = 0) -> None:
        """A pass of this thread cannot be recorded for certain; never raises."""
        self.of_thread.current = None
        if self._is_off:
            return
        self._tally.add(refused_passes=1)
        self._tally.say_once(reason, detail)
        try:
            self._sink.miss(rows, reason)
        except Exception as error:  # noqa: BLE001 - inference comes first
            self._note(error)

    def keep(self, place: int, tensors: tuple[torch.Tensor, ...]) -> None:
        """A router of a compiled model has run in this thread; never raises."""
        current, hook = self.of_thread.current, self._router_hooks[place]()
        if current is None or hook is None:
            return
        try:
            current.keep(place, hook.family, hook.module, tensors)
        except RefusedPassError as refusal:
            self.refuse_pass(refusal.reason, str(refusal))
        except Exception as error:  # noqa: BLE001 - inference comes first
            self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """This thread's pass cannot be recorded; never raises."""
        self.of_thread.current = None
        self._note(error)

    def end_pass(self) -> None:
        """A pass has ended in this thread; never raises."""
        mine = self.of_thread
        current, mine.current = mine.current, None
        if not isinstance(current, CurrentPass):
            return
        self._settle()
        inputs = current.inputs
        try:
            self._compute(current)
        except RefusedPassError as refusal:
            self.refuse_pass(refusal.reason, str(refusal), inputs.batch * inputs.length)
        except Exception as error:  # noqa: BLE001 - inference comes first
            self._note(error)
        else:
            if mine.computed is not None and not mine.computed.is_late:
                self._settle()

    def _compute(self, current: CurrentPass) -> None:
        running, inputs = current.running, current.inputs
        if running.refusal:
            raise RefusedPassError(running.refusal)
        if not current.is_whole:
            self._tally.add(incomplete_passes=1)
            self._sink.miss(inputs.batch * inputs.length, "a router that did not run just once")
            return
        if len(running.requests) != inputs.batch:
            raise RefusedPassError(
                "rows unlike the requests",
                f"{inputs.batch} for {len(running.requests)} (beam search, or several sequences of "
                "one request?)",
            )
        wanted = self._wanted
        if self._sink.fidelity is Fidelity.COUNTS:  # of scores and weights nothing is shipped
            wanted = Wanted(weights=False, scores=False, tokens=wanted.tokens)
        with self._without_gradient():
            self.of_thread.computed = ComputedPass(
                running,
                inputs,
                current.interpreted(wanted),
                pass_id=next(self._pass_ids),
                wanted=wanted,
            )

    def _settle(self) -> None:
        """Record the pass that this thread has computed and not yet recorded."""
        mine = self.of_thread
        done, mine.computed = mine.computed, None
        if done is None:
            return
        try:
            became = self._attribution.record(done, done.rows())
            self._tally.add(
                passed_rows=became.passed, padding_rows=became.padding, invalid_rows=became.invalid
            )
        except RefusedPassError as refusal:
            done.running.refusal = refusal.reason
            self.refuse_pass(refusal.reason, str(refusal), done.size)
        except Exception as error:  # noqa: BLE001 - inference comes first
            self._note(error)

    def _note(self, error: Exception) -> None:
        self._tally.add(errors=1)
        self._tally.say_once(type(error).__name__, f"{type(error).__name__}: {error}")
        if self._tally.snapshot().errors >= ERRORS_ALLOWED and not self._is_off:
            self._is_off = True
            self._tally.say_off(error)
