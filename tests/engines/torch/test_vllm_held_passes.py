from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.plugin_rows import recorded

torch = pytest.importorskip("torch", reason="`make engines` has torch")

from support.plugin_engine import EXPERTS, LAYERS, TOP_K, PluginEngine

from moescope.core.clock import ManualClock
from moescope.core.vocabulary import Fidelity, Phase, TokenIdKind
from moescope.producers.recording.budget import Rung
from moescope.producers.vllm_plugin.experts import ExpertMap
from moescope.producers.waiting import CLOSE_SECONDS, HELD_PASSES, HELD_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SUBJECT = "vLLM plugin"
FAULTS = (
    "nan", "infinite", "blank layer", "beyond", "missed layer", "fewer rows", "fails", "again",
)  # fmt: skip


class Seconds:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """The time."""
        return self.now


def routing(random: np.random.Generator, rows: int) -> tuple[Any, Any]:
    """Distinct ids and weights of all layers."""
    scores = random.random((LAYERS, rows, EXPERTS)).astype(np.float32)
    ids = np.ascontiguousarray(np.argsort(-scores, axis=-1)[..., :TOP_K].astype(np.int32))
    order = random.permuted(np.broadcast_to(np.arange(TOP_K), ids.shape), axis=-1)
    ids = np.take_along_axis(ids, order, axis=-1)
    return ids, np.take_along_axis(scores, ids, axis=-1)


def spoil(fault: str, ids: Any, weights: Any) -> tuple[Any, Any]:
    """What a broken kernel would hand over."""
    if fault == "nan":
        weights[1, 0, 2] = np.nan
    elif fault == "infinite":
        weights[:, -1] = np.inf
    elif fault == "blank layer":
        ids[2] = 0
    elif fault == "beyond":
        ids[0, 0, 1] = EXPERTS + 3
    elif fault == "missed layer":
        ids = [*ids[:2], ids[2][:, :2].copy()]
    elif fault == "fewer rows":
        ids = [*ids[:2], ids[2][:-1].copy()]
        weights = [*weights[:2], weights[2][:-1].copy()]
    return ids, weights


class Placements:
    """Says where experts are."""

    def __init__(self) -> None:
        self.now = ExpertMap(1, np.zeros(EXPERTS, int), 2)

    def placed(self) -> ExpertMap:
        """See `Experts`."""
        return self.now


@dataclass
class Traffic:
    """Requests of an engine as a script moves them; the same script gives the same passes."""

    engine: PluginEngine
    clock: Seconds
    placed: Placements = field(default_factory=Placements)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(5))
    at: dict[str, int] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)
    began: int = 0

    def begin(self, prompt: int) -> None:
        """A request's prompt, beside a decode step of all others."""
        name = f"cmpl-{self.began}-0-{self.began:08x}"
        self.began += 1
        self._step({**dict.fromkeys(self.at, 1), name: prompt}, new={name: prompt})

    def decode(self, passes: int, apart: float, fault: str) -> None:
        """Passes of one row each; the last one may be spoilt."""
        for number in range(passes):
            self.clock.now += apart
            self._step(dict.fromkeys(self.at, 1), fault if number == passes - 1 else "")

    def stranger(self) -> None:
        """A request that began before the probe came."""
        self.at[f"cmpl-s{len(self.at)}-0-{self.began:08x}"] = 9

    def placement(self, ranks: int) -> None:
        """Experts are moved."""
        self.placed.now = ExpertMap(self.placed.now.version + 1, np.arange(EXPERTS) % ranks, ranks)

    def fidelity(self, fidelity: str) -> None:
        """Between two passes."""
        self.engine.recorder.set_fidelity(fidelity)

    def amid(self, fidelity: str) -> None:
        """In the middle of a pass, by another thread."""
        self.clock.now += 0.01
        self._step(dict.fromkeys(self.at, 1), amid=lambda: self.fidelity(fidelity))

    def finish(self) -> None:
        """The oldest request is over; the engine tells with the next pass."""
        if self.at:
            self.finished.append(name := next(iter(self.at)))
            del self.at[name]

    def reorder(self) -> None:
        """The batch is condensed: another order."""
        self.at = dict(reversed(self.at.items()))

    def _step(
        self,
        rows: dict[str, int],
        fault: str = "",
        new: dict[str, int] | None = None,
        amid: Callable[[], object] = lambda: None,
    ) -> None:
        if fault == "again":  # preempted, and computed anew
            self.at = {name: max(0, position - 2) for name, position in self.at.items()}
        many = sum(rows.values())
        ids, weights = spoil(fault if many else "", *routing(self.random, many))
        self.engine.compute(
            {name: (self.at.get(name, 0), many) for name, many in rows.items()}, ids, weights,
            new=new, finished=self.finished, fails=fault == "fails", amid=amid,
            tokens=np.arange(many, dtype=np.int32) + 7,
        )  # fmt: skip
        self.finished = []
        if fault != "fails":
            self.at = {name: self.at.get(name, 0) + many for name, many in rows.items()}


STEPS = st.one_of(
    st.tuples(st.just("begin"), st.integers(1, 5)),
    st.tuples(
        st.just("decode"), st.integers(1, 20), st.sampled_from([0.001, 0.03, CLOSE_SECONDS * 1.5]),
        st.sampled_from(["", "", *FAULTS]),
    ),
    st.tuples(st.just("finish")),
    st.tuples(st.just("reorder")),
    st.tuples(st.just("stranger")),
    st.tuples(st.just("placement"), st.integers(2, 4)),
    st.tuples(st.just("fidelity"), st.sampled_from(["full", "counts"])),
    st.tuples(st.just("amid"), st.sampled_from(["full", "counts"])),
)  # fmt: skip


def outcome(folder: Path, script: list[Any], options: dict[str, Any], held: int) -> Any:
    """Everything that a batch log says of a script, apart from times."""
    clock, placed = Seconds(), Placements()
    engine = PluginEngine(
        torch, folder, options, held_passes=held, clock=clock, with_weights=True, experts=placed
    )
    traffic = Traffic(engine, clock, placed)
    for what, *arguments in [("begin", 3), ("begin", 1), *script]:
        getattr(traffic, what)(*arguments)
    engine.probe.close()
    found = recorded(folder / "ring", folder / "log")
    counters = engine.recorder.counters()
    rows = {
        name: (
            request.has_ended, request.prompt_tokens,
            [
                (
                    row.position, row.phase, row.flags & 7, sorted(row.expert_ids.ravel().tolist()),
                    None if row.top1 is None else row.top1.tolist(),
                    None if row.weights is None else sorted(row.weights.ravel().tolist()),
                    row.token_id, row.pass_id, row.expert_map_version,
                )
                for row in request.rows
            ],
        )
        for name, request in found.requests.items()
    }  # fmt: skip
    reasons = {header.labels.get("unseen_reason", "") for header in found.headers}
    return (
        rows, reasons, counters.recorded_rows, counters.rejected_rows, counters.unseen_rows,
        counters.recomputed_rows, engine.probe.counters,
    )  # fmt: skip


@given(
    script=st.lists(STEPS, max_size=12),
    options=st.sampled_from(
        [
            {},
            {"token_id_kind": TokenIdKind.PLAIN},
            {"fidelity": "counts"},
            {"fidelity": "sampled", "sampling_ratio": 0.5},
        ]
    ),
)
@settings(
    max_examples=40, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip
def test_passes_that_wait_are_recorded_as_each_by_itself(
    tmp_path_factory: pytest.TempPathFactory, script: list[Any], options: dict[str, Any]
) -> None:
    """Whatever comes between: the same rows, flags, pass numbers, ends and counters."""
    folders = [tmp_path_factory.mktemp("passes") for _ in range(2)]
    each, together = (
        outcome(folder, script, options, held)
        for folder, held in zip(folders, (1, HELD_PASSES), strict=True)
    )
    assert together == each


@pytest.fixture
def clock() -> Seconds:
    """The probe's."""
    return Seconds()


@pytest.fixture
def engine(tmp_path: Path, clock: Seconds) -> Iterator[PluginEngine]:
    """Two requests decode."""
    made = PluginEngine(torch, tmp_path, clock=clock)
    yield made
    made.probe.close()


@pytest.fixture
def traffic(engine: PluginEngine, clock: Seconds, verified: Any) -> Traffic:
    """Begun, and with one decode pass behind it, which nothing was close to."""
    made = Traffic(engine, clock)
    made.begin(4)
    made.begin(2)
    made.decode(1, 1.0, "")
    verified(subject=SUBJECT, what="decode passes recorded together as each by itself")
    return made


def test_passes_wait_for_each_other_and_are_recorded_in_one_call(
    engine: PluginEngine, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen passes cost one call of the recorder."""
    calls: list[int] = []
    record = engine.recorder.record

    def counted(names: list[str], positions: Any, *rest: Any, **more: Any) -> None:
        calls.append(len(positions))
        record(names, positions, *rest, **more)

    monkeypatch.setattr(engine.recorder, "record", counted)
    before = engine.recorder.counters().recorded_rows
    traffic.decode(HELD_PASSES - 1, 0.01, "")
    assert (calls, engine.recorder.counters().recorded_rows) == ([], before)
    traffic.decode(1, 0.01, "")
    assert calls == [2 * HELD_PASSES]
    assert engine.recorder.counters().recorded_rows == before + 2 * HELD_PASSES


def test_passes_wait_a_quarter_of_a_second_at_most(engine: PluginEngine, traffic: Traffic) -> None:
    """Rows get the time at which they are recorded."""
    before = engine.recorder.counters().recorded_rows
    traffic.decode(5, HELD_SECONDS / 4.1, "")
    assert engine.recorder.counters().recorded_rows == before
    traffic.decode(1, HELD_SECONDS / 4.1, "")
    assert engine.recorder.counters().recorded_rows == before + 12


def test_slow_passes_do_not_wait(engine: PluginEngine, traffic: Traffic) -> None:
    """There is nothing to be gained: a hundredth of such a pass pays for recording it."""
    before = engine.recorder.counters().recorded_rows
    for number in range(1, 4):
        traffic.decode(1, CLOSE_SECONDS * 1.01, "")
        assert engine.recorder.counters().recorded_rows == before + 2 * number


def close(engine: PluginEngine, _traffic: Traffic) -> None:
    """The engine ends."""
    engine.probe.close()


def close_recorder(engine: PluginEngine, _traffic: Traffic) -> None:
    """Somebody closes the recorder first."""
    engine.recorder.close()


def end(engine: PluginEngine, traffic: Traffic) -> None:
    """All requests are over, which the engine tells in a step without rows."""
    engine.compute({}, [], [], finished=[*traffic.at])


def change_fidelity(engine: PluginEngine, _traffic: Traffic) -> None:
    """From here on less is recorded."""
    assert engine.recorder.set_fidelity("counts")


def pause(engine: PluginEngine, _traffic: Traffic) -> None:
    """No further pass comes: a thread of the probe's own records them."""
    clock = engine.probe._clock
    assert isinstance(clock, Seconds)
    wanted = engine.recorder.counters().recorded_rows + 6
    clock.now += HELD_SECONDS + 0.01
    end_ = time.monotonic() + 30
    while engine.recorder.counters().recorded_rows < wanted and time.monotonic() < end_:
        time.sleep(0.01)


@pytest.mark.parametrize("event", [close, close_recorder, end, change_fidelity, pause])
def test_nothing_is_left_waiting(
    engine: PluginEngine, traffic: Traffic, event: Callable[[PluginEngine, Traffic], None]
) -> None:
    """Whatever ends the waiting, the rows are recorded then."""
    before = engine.recorder.counters().recorded_rows
    traffic.decode(3, 0.01, "")
    assert engine.recorder.counters().recorded_rows == before
    event(engine, traffic)
    counters = engine.recorder.counters()
    assert (counters.recorded_rows, counters.unseen_rows) == (before + 6, 0)
    engine.probe.close()
    rows = [
        row
        for request in recorded(engine.folder / "ring", engine.folder / "log").requests.values()
        for row in request.rows
    ]
    assert len(rows) == before + 6
    assert {row.top1 is None for row in rows} == {False}  # of the fidelity they were computed under


def test_nobody_records_early_what_still_waits(
    engine: PluginEngine, traffic: Traffic, clock: Seconds
) -> None:
    """Beside an engine that computes, the thread takes its turns of the interpreter."""
    before = engine.recorder.counters().recorded_rows
    traffic.decode(2, 0.01, "")
    clock.now += HELD_SECONDS - 0.01
    assert engine.probe.read_late()
    assert engine.recorder.counters().recorded_rows == before
    clock.now += 0.02
    assert not engine.probe.read_late()
    assert engine.recorder.counters().recorded_rows == before + 4
    assert not engine.probe.read_late()


def test_a_switch_loses_no_row_uncounted(tmp_path: Path, clock: Seconds) -> None:
    """Passes that wait when the file `disable` is found are recorded or unseen, and never both."""
    wall = ManualClock(1_700_000_000_000_000)
    engine = PluginEngine(torch, tmp_path, {"clock": wall}, clock=clock)
    traffic = Traffic(engine, clock)
    traffic.begin(4)
    traffic.decode(6, 0.01, "")
    (tmp_path / "ring" / "disable").touch()
    wall.sleep(2)
    traffic.decode(4, 0.01, "")
    (tmp_path / "ring" / "disable").unlink()
    wall.sleep(2)
    traffic.decode(6, 0.01, "")
    engine.probe.close()
    counters = engine.recorder.counters()
    assert counters.recorded_rows + counters.unseen_rows == 4 + 16
    assert 4 <= counters.unseen_rows <= 10
    found = recorded(tmp_path / "ring", tmp_path / "log")
    (request,) = found.requests.values()
    assert len(request.rows) == counters.recorded_rows
    assert sum(header.drops.unseen_rows for header in found.headers) == counters.unseen_rows


def test_an_error_while_recording_costs_what_waited_and_is_counted(
    engine: PluginEngine, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine goes on, and so do the passes behind."""
    before = engine.recorder.counters().recorded_rows
    with monkeypatch.context() as broken:
        broken.setattr(type(engine.probe._held), "joint", lambda _held: 1 / 0)
        traffic.decode(HELD_PASSES, 0.01, "")
    assert engine.probe.counters.errors == 1
    traffic.decode(HELD_PASSES, 0.01, "")
    counters = engine.recorder.counters()
    assert counters.unseen_rows == 2 * HELD_PASSES
    assert counters.recorded_rows == before + 2 * HELD_PASSES


@pytest.mark.parametrize("fault", ["", "nan"])
@pytest.mark.parametrize("waiting", [1, 4])
def test_an_engine_told_to_end_while_it_records_counts_what_that_costs(
    engine: PluginEngine,
    traffic: Traffic,
    monkeypatch: pytest.MonkeyPatch,
    waiting: int,
    fault: str,
) -> None:
    """Processes of vLLM end by `SystemExit`, raised wherever the signal finds them."""
    traffic.decode(waiting - 1, 0.01, "")
    before = engine.recorder.counters().recorded_rows

    def told_to_end(*_: Any, **__: Any) -> None:
        raise SystemExit(0)

    with monkeypatch.context() as ending:
        ending.setattr(engine.recorder, "record", told_to_end)
        with pytest.raises(SystemExit):
            traffic.decode(1, 1.0, fault)
    engine.probe.close()
    counters = engine.recorder.counters()
    assert (counters.recorded_rows, counters.unseen_rows) == (before, 2 * waiting)
    headers = recorded(engine.folder / "ring", engine.folder / "log").headers
    assert "recording was interrupted" in {each.labels.get("unseen_reason") for each in headers}


def test_a_budget_that_steps_up_finds_nothing_waiting(
    tmp_path: Path, clock: Seconds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows captured without weights have no order: `full` would call some expert the first."""
    wall = ManualClock(1_700_000_000_000_000)
    engine = PluginEngine(torch, tmp_path, {"clock": wall, "fidelity": "counts"}, clock=clock)
    traffic = Traffic(engine, clock)
    traffic.begin(4)
    traffic.decode(4, 0.01, "")
    pausing = engine.recorder._pausing

    def step_up(now: float) -> tuple[bool, Rung]:
        pausing.next_look = now + 60
        return False, Rung(Fidelity.FULL, 1.0)

    monkeypatch.setattr(pausing, "look", step_up)
    wall.sleep(2)
    engine.probe.flush()
    assert engine.recorder.fidelity is Fidelity.FULL
    engine.probe.close()
    assert engine.recorder.counters().recorded_rows == 8
    assert recorded(tmp_path / "ring", tmp_path / "log").requests == {}  # counts name none


def test_tensors_without_memory_are_not_read(engine: PluginEngine) -> None:
    """Reading them by address would end the engine."""
    engine.capture.arm()
    zeros = torch._efficientzerotensor((2, TOP_K), dtype=torch.int32)
    engine.capture.observe(1, zeros, torch._efficientzerotensor((2, TOP_K)))
    engine.capture.observe(2, zeros, torch.ones((2, TOP_K)))
    engine.capture.disarm()
    assert not engine.capture.ids.any()


def test_a_view_that_is_negated_when_it_is_read_keeps_its_sign(engine: PluginEngine) -> None:
    """Its memory holds the other sign."""
    ids, weights = routing(np.random.default_rng(2), 2)
    engine.capture.arm()
    negated = torch._neg_view(torch.from_numpy(weights[0]))
    engine.capture.observe(0, torch.from_numpy(ids[0]), negated)
    engine.capture.disarm()
    assert torch.equal(engine.capture.weights[:2, 0], -torch.from_numpy(weights[0]))


def test_without_a_thread_the_next_pass_records_what_waits(
    engine: PluginEngine, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may have no room for one more: that costs no row, and counts none twice."""

    def no_thread(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    before = engine.recorder.counters().recorded_rows
    traffic.decode(HELD_PASSES, 0.01, "")
    counters = engine.recorder.counters()
    assert (counters.recorded_rows, counters.unseen_rows) == (before + 2 * HELD_PASSES, 0)
    assert engine.probe.counters.errors == 0


def test_a_forked_child_waits_for_no_lock(engine: PluginEngine, traffic: Traffic) -> None:
    """The thread that holds it is not there: an engine in a child would hang for ever."""
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with engine.probe._lock:
            held.set()
            release.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the test runner has its own
        signal.alarm(20)  # ends a child that hangs
        traffic.decode(2, 0.01, "")
        os._exit(0)
    release.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    traffic.decode(1, 0.01, "")
    engine.probe.flush()
    assert engine.probe.counters.errors == 0


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("weights_dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("memory", ["contiguous", "strided"])
def test_what_routers_chose_is_copied_whatever_its_memory(
    engine: PluginEngine, dtype: str, weights_dtype: str, memory: str
) -> None:
    """Plain memory is copied by its address; any other, element by element."""
    random = np.random.default_rng(3)
    chosen, given_weights = (torch.from_numpy(each) for each in routing(random, 5))
    ids, weights = chosen.to(getattr(torch, dtype)), given_weights.to(getattr(torch, weights_dtype))
    if memory == "strided":
        ids = torch.cat([ids, ids + 1], dim=-1)[..., :TOP_K]
        weights = torch.cat([weights, weights], dim=-1)[..., :TOP_K]
    engine.capture.arm()
    for layer in range(LAYERS):
        engine.capture.observe(layer, ids[layer], weights[layer])
    engine.capture.disarm()
    assert [*engine.capture.rows_seen()] == [5] * LAYERS
    assert torch.equal(engine.capture.ids[:5], chosen.transpose(0, 1))
    assert torch.equal(engine.capture.weights[:5], weights.transpose(0, 1).float())
    assert not engine.capture.ids[5:].any()


def test_rows_of_other_shapes_touch_no_other_memory(engine: PluginEngine) -> None:
    """What does not fit the buffers is not written: neither more rows, nor wider or fewer ones."""
    engine.capture.arm()
    rows = engine.capture.ids.shape[0]
    for ids, weights in (
        (torch.ones((rows + 1, TOP_K), dtype=torch.int32), torch.ones((rows + 1, TOP_K))),
        (torch.ones((2, TOP_K + 1), dtype=torch.int32), torch.ones((2, TOP_K + 1))),
        (torch.ones((2, TOP_K), dtype=torch.int32), torch.ones((1, 1, TOP_K, 1, 1))),
        (torch.ones(TOP_K, dtype=torch.int32), torch.ones(TOP_K)),
    ):
        engine.capture.observe(1, ids, weights)
        assert [*engine.capture.rows_seen()][1] == -1
        assert not engine.capture.weights.any()
    engine.capture.disarm()


def test_phases_are_each_passes_own(engine: PluginEngine, clock: Seconds) -> None:
    """A prompt that is computed token by token waits, too: its rows stay prefill."""
    ids, weights = routing(np.random.default_rng(1), 1)
    name = "cmpl-x-0-00000000"
    for position in range(8):
        clock.now += 0.001
        engine.compute({name: (position, 1)}, ids, weights, new={} if position else {name: 4})
    engine.probe.close()
    (request,) = recorded(engine.folder / "ring", engine.folder / "log").requests.values()
    assert [row.phase for row in request.rows] == [Phase.PREFILL] * 4 + [Phase.DECODE] * 4


def test_a_pass_behind_one_that_is_not_decided_keeps_its_rows(
    engine: PluginEngine, traffic: Traffic
) -> None:
    """Its buffers are written anew before the sampler has told of the drafts before it."""
    first, second = traffic.at
    random = np.random.default_rng(9)
    told = SimpleNamespace(req_id_to_index={first: 0}, sampled_token_ids=[])
    at = traffic.at[first]
    engine.compute({first: (at, 3)}, *routing(random, 3), drafts={first: 2})
    engine.probe.after_sampling(told)
    kept_ids, kept_weights = routing(random, 1)
    engine.compute({second: (traffic.at[second], 1)}, kept_ids, kept_weights)
    engine.compute({second: (traffic.at[second] + 1, 4)}, *routing(random, 4))
    told.sampled_token_ids = [[5, 6]]
    engine.probe.close()
    found = recorded(engine.folder / "ring", engine.folder / "log").requests
    (row,) = (
        row for row in found[second.rsplit("-", 2)[0]].rows if row.position == traffic.at[second]
    )
    assert sorted(map(sorted, row.expert_ids.tolist())) == sorted(
        map(sorted, kept_ids[:, 0].tolist())
    )
