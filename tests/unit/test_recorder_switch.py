from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.rings import START_US, ids_of, logged, rows_of, small_recorder

from moescope.core.batchlog import WriterSettings
from moescope.core.clock import ManualClock
from moescope.core.vocabulary import Phase
from moescope.producers.agent import Agent, AgentSettings
from moescope.producers.recording.pausing import NOT_RECORDING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from moescope.producers import Recorder

QUICK = AgentSettings(log=WriterSettings(durability="none"))


@pytest.fixture
def clock() -> ManualClock:
    """Time that the test moves."""
    return ManualClock(START_US)


@pytest.fixture
def recorder(tmp_path: Path, clock: ManualClock) -> Iterator[Recorder]:
    """A recorder whose folder is the test's."""
    opened = small_recorder(tmp_path, clock=clock)
    yield opened
    opened.close()


def record(recorder: Recorder, position: int, rows: int = 1) -> None:
    """Rows of one request."""
    positions = np.arange(position, position + rows)
    recorder.record("a", positions, ids_of(positions), "decode")


def test_the_file_switches_off_and_on_while_the_engine_runs(
    recorder: Recorder, clock: ManualClock, tmp_path: Path
) -> None:
    """Within a second nothing is recorded any more, and again once the file is gone."""
    record(recorder, 0, 3)
    (tmp_path / "disable").touch()
    record(recorder, 3)  # it was looked for less than a second ago
    clock.sleep(1.0)
    record(recorder, 4, 5)
    assert not recorder.is_recording
    counters = recorder.counters()
    assert (counters.recorded_rows, counters.unseen_rows) == (4, 5)
    assert "disable" in counters.disabled
    (tmp_path / "disable").unlink()
    clock.sleep(1.0)
    assert recorder.is_recording
    record(recorder, 9, 2)
    counters = recorder.counters()
    assert (counters.recorded_rows, counters.unseen_rows, counters.disabled) == (6, 5, "")


def test_what_is_not_recorded_meanwhile_lowers_coverage(
    recorder: Recorder, clock: ManualClock, tmp_path: Path
) -> None:
    """A fleet that is switched off does not look healthy: batches say what is missing, and why."""
    with Agent(tmp_path, tmp_path / "log", clock=clock, settings=QUICK) as agent:
        agent.run_once()
        (tmp_path / "disable").touch()
        clock.sleep(1.0)
        for position in range(20):
            record(recorder, position)
        clock.sleep(1.0)
        agent.drain()
    (entry,) = logged(tmp_path / "log")
    header = entry.batch.header
    assert header.drops.lost_rows == 20
    assert "disable" in header.labels["unseen_reason"]


def test_the_file_system_is_asked_once_a_second_at_most(
    recorder: Recorder, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The switch costs a comparison per call, whatever the file system is."""
    asked: list[object] = []
    real = os.stat

    def counted(path: Any, **options: Any) -> os.stat_result:
        asked.append(path)
        return real(path, **options)

    monkeypatch.setattr(os, "stat", counted)
    for position in range(400):
        record(recorder, position)
        clock.sleep(0.01)
    assert 4 <= len(asked) <= 5


def test_what_the_file_system_does_not_tell_changes_nothing(
    recorder: Recorder, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that cannot be asked any more neither stops nor starts recording."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "stat", refuse)
    clock.sleep(2.0)
    record(recorder, 0)
    assert recorder.counters().recorded_rows == 1
    assert recorder.counters().internal_errors == 0


def test_what_the_file_system_does_not_tell_leaves_recording_off(
    recorder: Recorder, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody switched it off: a folder that cannot be asked for a while is no reason to start."""
    (tmp_path / "disable").touch()
    clock.sleep(1.0)
    record(recorder, 0)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    with monkeypatch.context() as broken:
        broken.setattr(os, "stat", refuse)
        clock.sleep(2.0)
        record(recorder, 1, 3)
        assert "disable" in recorder.counters().disabled
    counters = recorder.counters()
    assert (counters.recorded_rows, counters.unseen_rows) == (0, 4)


def test_positions_are_new_after_a_time_without_recording(
    recorder: Recorder, clock: ManualClock, tmp_path: Path
) -> None:
    """A request that ended and began meanwhile, untold, is not taken for a recomputation."""
    record(recorder, 50)
    (tmp_path / "disable").touch()
    clock.sleep(1.0)
    record(recorder, 51)
    (tmp_path / "disable").unlink()
    clock.sleep(1.0)
    record(recorder, 0)
    counters = recorder.counters()
    assert (counters.recorded_rows, counters.recomputed_rows) == (2, 0)


def begin(recorder: Recorder, name: str) -> None:
    """A request with facts of its own."""
    recorder.begin_request(name, 7, task=f"task of {name}", scene=f"scene of {name}")


def row_of(recorder: Recorder, name: str, position: int) -> None:
    """One row of a request."""
    recorder.record(name, np.array([position]), ids_of([position]), "decode")


def test_what_is_known_of_requests_outlasts_the_switch(
    recorder: Recorder, clock: ManualClock, tmp_path: Path
) -> None:
    """Requests that begin before, while or after recording is off keep scene, task and prompt."""
    with Agent(tmp_path, tmp_path / "log", clock=clock, settings=QUICK) as agent:
        begin(recorder, "a")
        row_of(recorder, "a", 7)
        agent.run_once()
        (tmp_path / "disable").touch()
        clock.sleep(1.0)
        begin(recorder, "b")
        begin(recorder, "gone")
        recorder.end_request("gone")
        row_of(recorder, "b", 7)
        (tmp_path / "disable").unlink()
        clock.sleep(5.0)
        begin(recorder, "c")  # no row came since: this call finds that the file is gone
        assert recorder.counters().running_requests == 3
        for name in "abc":
            row_of(recorder, name, 8)
            recorder.end_request(name)
        begin(recorder, "d")
        row_of(recorder, "d", 7)
        clock.sleep(1.0)
        agent.drain()
    batches = logged(tmp_path / "log")
    rows = [row for row in rows_of(batches) if not row.is_context]
    assert [(row.request, row.position) for row in rows] == [
        ("a", 7), ("a", 8), ("b", 8), ("c", 8), ("d", 7),
    ]  # fmt: skip
    assert {(row.request, row.task, row.scene) for row in rows} == {
        (name, f"task of {name}", f"scene of {name}") for name in "abcd"
    }
    for entry in batches:
        requests = entry.batch.requests
        assert set(requests.phase_starts[:, Phase.DECODE].tolist()) <= {7}
        assert "gone" not in requests.ids


@pytest.mark.parametrize("call", ["begin_request", "end_request"])
def test_requests_look_for_the_file_too(
    recorder: Recorder, clock: ManualClock, tmp_path: Path, call: str
) -> None:
    """An engine whose next call is about a request writes nothing into the ring any more."""
    begin(recorder, "a")
    row_of(recorder, "a", 0)
    (tmp_path / "disable").touch()
    clock.sleep(1.0)
    head = next(tmp_path.glob("*.ring")).read_bytes()
    getattr(recorder, call)("a")
    assert next(tmp_path.glob("*.ring")).read_bytes() == head
    (tmp_path / "disable").unlink()  # less than a second after the look
    assert "disable" in recorder.counters().disabled


def test_switching_is_safe_between_threads(tmp_path: Path) -> None:
    """Every row of every thread is counted once, as recorded or as unseen."""
    clock = ManualClock(START_US)
    with small_recorder(tmp_path, clock=clock) as recorder:
        started = threading.Barrier(5)

        def work(name: str) -> None:
            started.wait()
            for position in range(150):
                recorder.record(
                    name, np.array([position]), ids_of([position]), "decode"
                )  # fmt: skip

        threads = [threading.Thread(target=work, args=(f"t{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        started.wait()
        for number in range(30):
            (tmp_path / "disable").touch() if number % 2 else (tmp_path / "disable").unlink(
                missing_ok=True
            )
            recorder.set_fidelity("counts" if number % 3 else "full")
            recorder.set_placement(np.arange(8) % 2, number)
            clock.sleep(1.0)
            recorder.is_recording  # noqa: B018 - it looks for the file
        for thread in threads:
            thread.join()
        counters = recorder.counters()
    assert counters.recorded_rows + counters.rejected_rows + counters.unseen_rows == 600
    assert counters.internal_errors == 0


def test_the_environment_leaves_no_trace_of_the_newer_calls_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With MOESCOPE_DISABLE=1 no call does anything, whatever it is."""
    monkeypatch.setenv("MOESCOPE_DISABLE", "yes")
    with small_recorder(tmp_path / "none", cpu_budget=0.01) as recorder:
        assert not recorder.is_recording
        assert not recorder.set_fidelity("counts")
        assert not recorder.set_placement(np.zeros(8, int), 1)
        recorder.miss(4, "why")
        recorder.spend(1.0)
        record(recorder, 0)
        assert recorder.counters().unseen_rows == 0
        assert recorder.counters().disabled_rows == 5
    assert not (tmp_path / "none").exists()


def test_one_line_is_logged_for_a_switch_that_stays_on(
    recorder: Recorder, clock: ManualClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is logged per call."""
    (tmp_path / "disable").touch()
    with caplog.at_level(logging.DEBUG):
        for position in range(50):
            clock.sleep(0.5)
            record(recorder, position)
    assert len(caplog.records) == 1


def test_a_forked_child_takes_no_newer_call_either(tmp_path: Path) -> None:
    """A worker that was forked can neither change nor count anything in its parent's ring."""
    code = """
import os, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from support.rings import ids_of, small_recorder
recorder = small_recorder(Path(sys.argv[1]))
child = os.fork()
if child == 0:
    told = [recorder.is_recording, recorder.set_fidelity("counts")]
    told.append(recorder.set_placement([0] * 8, 1))
    recorder.miss(5, "why")
    recorder.record("a", [0], ids_of([0]), "decode")
    os._exit(0 if told == [False] * 3 else 1)
_, status = os.waitpid(child, 0)
counters = recorder.counters()
print(status, counters.unseen_rows, counters.recorded_rows, recorder.fidelity.name)
"""
    tests = str(next(path for path in map(os.fspath, sys.path) if path.endswith("tests")))
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), tests],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "0 0 0 FULL\n"


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize(
    ("phase", "padding", "tokens"),
    [
        ("prefill", [False, False, True, True], 2),
        ("draft", None, 0),
        ("Warmup", None, 0),
        (Phase.DRAFT, None, 0),
        (Phase.DECODE, None, 4),
        (np.array([1, 5, 5, 1], np.uint8), None, 2),
        ([1, 5, 4, 1], [True, False, False, False], 1),
        ("no phase", None, 4),
        (1, "no padding", 4),
        (None, [True], 4),
    ],
)
def test_only_rows_that_windows_would_count_are_missing(
    recorder: Recorder,
    clock: ManualClock,
    tmp_path: Path,
    *,
    phase: Any,
    padding: Any,
    tokens: int,
    is_closed: bool,
) -> None:
    """Coverage does not fall by padding and drafts, which no window has."""
    if is_closed:
        recorder.close()
    else:
        (tmp_path / "disable").touch()
        clock.sleep(1.0)
    recorder.record("a", [0, 1, 2, 3], ids_of(range(4)), phase, padding=padding)
    counters = recorder.counters()
    assert (counters.unseen_rows, counters.disabled_rows) == (
        (0, tokens) if is_closed else (tokens, 0)
    )


def test_a_probe_that_finds_no_recording_gives_the_recorders_own_reason(
    recorder: Recorder, clock: ManualClock, tmp_path: Path
) -> None:
    """One cause has one name in the batches, whoever found that nothing was recorded."""
    (tmp_path / "disable").touch()
    clock.sleep(1.0)
    assert not recorder.is_recording
    recorder.miss(3, NOT_RECORDING)
    recorder.record("a", [0, 1], ids_of(range(2)), "decode")
    recorder.close()
    with Agent(tmp_path, tmp_path / "log", clock=clock, settings=QUICK) as agent:
        agent.drain()
    reasons = {entry.batch.header.labels["unseen_reason"] for entry in logged(tmp_path / "log")}
    assert reasons == {"the file 'disable' is there"}
