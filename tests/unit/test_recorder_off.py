from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.rings import START_US, ids_of, logged, lost_rows, rows_of, small_recorder

from moescope.core.batchlog import WriterSettings
from moescope.core.clock import ManualClock
from moescope.producers.agent import Agent, AgentSettings
from moescope.producers.recording import counters

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from moescope.producers import Recorder, RecorderCounters

QUICK = AgentSettings(log=WriterSettings(durability="none"))


def record(recorder: Recorder, position: int, rows: int = 1) -> None:
    """Rows of one request."""
    positions = np.arange(position, position + rows)
    recorder.record("a", positions, ids_of(positions), "decode")


def counted(counters: RecorderCounters) -> int:
    """All rows that are in some counter."""
    return (
        counters.recorded_rows
        + counters.rejected_rows
        + counters.unseen_rows
        + counters.unsampled_rows
        + counters.disabled_rows
    )


def run_apart(code: str, folder: Path) -> str:
    """What a program prints that may fork and end as it likes; `folder` is its first argument."""
    tests = next(path for path in map(os.fspath, sys.path) if path.endswith("tests"))
    head = (
        "import os, sys\nsys.path.insert(0, sys.argv[2])\nfrom pathlib import Path\n"
        "from support.rings import ids_of, small_recorder\n"
        "def record(recorder, position, rows=1):\n"
        "    positions = list(range(position, position + rows))\n"
        "    recorder.record('a', positions, ids_of(positions), 'decode')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", head + code, str(folder), tests],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_rows_behind_the_end_are_counted_as_such(tmp_path: Path) -> None:
    """A probe that goes on after `close` finds its rows in the recorder's counters, with why."""
    recorder = small_recorder(tmp_path)
    record(recorder, 0, 3)
    recorder.close()
    record(recorder, 3, 4)
    recorder.miss(5, "not read")
    recorder.miss("nonsense", "not read")  # type: ignore[arg-type]  # a wrong call, on purpose
    counters = recorder.counters()
    assert (counters.recorded_rows, counters.disabled_rows) == (3, 10)
    assert (counters.unseen_rows, counters.rejected_rows, counters.internal_errors) == (0, 0, 0)
    assert counters.disabled == "closed"
    assert counted(counters) == 13


def test_rows_that_the_closing_overtakes_are_counted(tmp_path: Path) -> None:
    """A call that began before the end and comes to the ring behind it loses no row silently."""
    recorder = small_recorder(tmp_path)

    class Closing:
        """Positions during whose reading another thread closes the recorder."""

        def __len__(self) -> int:
            return 4

        def __array__(self, *_: Any, **__: Any) -> np.ndarray:
            recorder.close()
            return np.arange(4)

    padding = np.array([False, False, False, True])
    recorder.record("a", Closing(), ids_of(range(4)), "decode", padding=padding)
    counters = recorder.counters()
    assert (counters.recorded_rows, counters.disabled_rows) == (0, 3)
    assert (counters.internal_errors, counters.disabled) == (0, "closed")


@pytest.mark.parametrize(
    ("call", "rows"),
    [
        (lambda recorder: recorder.record("a", [-1, -2], ids_of([0, 1]), "no phase"), 2),
        (lambda recorder: recorder.miss("nonsense", "not read"), 1),
        (lambda recorder: recorder.miss(5, "not read"), 5),
    ],
    ids=["refused", "no number", "missed"],
)
def test_counts_that_the_closing_overtakes_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[Recorder], None], rows: int
) -> None:
    """Counted while the recorder was open, and told to a ring that is closed by then."""
    recorder = small_recorder(tmp_path)
    noted = counters._Unbooked  # noqa: SLF001 - where the other thread gets its turn

    def close_and_note(*given: Any) -> Any:
        recorder.close()
        return noted(*given)

    monkeypatch.setattr(counters, "_Unbooked", close_and_note)
    call(recorder)
    found = recorder.counters()
    assert (found.disabled_rows, counted(found)) == (rows, rows)
    assert (found.internal_errors, found.disabled) == (0, "closed")


def test_calls_that_the_closing_overtakes_do_no_harm(tmp_path: Path) -> None:
    """Another thread may close between the first look and the ring: nothing breaks."""

    class ClosingClock(ManualClock):
        """Closes the recorder when it is asked amid a call."""

        closes: Recorder | None = None

        def monotonic(self) -> float:
            recorder, self.closes = self.closes, None
            if recorder is not None:
                recorder.close()
            return super().monotonic()

    calls: dict[str, Callable[[Recorder], None]] = {
        "record": lambda recorder: record(recorder, 1, 2),
        "begin": lambda recorder: recorder.begin_request("b"),
        "end": lambda recorder: recorder.end_request("a"),
    }
    for name, call in calls.items():
        clock = ClosingClock(START_US)
        recorder = small_recorder(tmp_path / name, clock=clock)
        record(recorder, 0)
        clock.closes = recorder
        call(recorder)
        counters = recorder.counters()
        assert (counters.disabled, counters.internal_errors) == ("closed", 0)
        assert (counters.recorded_rows, counters.disabled_rows) == (1, 2 * (name == "record"))


def test_an_end_amid_calls_of_other_threads_loses_no_row(tmp_path: Path) -> None:
    """Recorded and shipped, or counted as not: nothing raises, whenever the end comes."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns within calls
    failures: list[BaseException] = []
    try:
        for number in range(40):
            folder = tmp_path / str(number)
            recorder = small_recorder(folder)
            given = [0, 0, 0]
            started = threading.Barrier(4)

            def work(
                place: int,
                recorder: Recorder = recorder,
                given: list[int] = given,
                started: threading.Barrier = started,
            ) -> None:
                started.wait()
                try:
                    for position in range(300):
                        positions = np.array([position])
                        recorder.record(f"t{place}", positions, ids_of([position]), "decode")
                        recorder.miss(1, "not read")
                        given[place] += 2
                        if recorder.counters().disabled and position > 30:
                            return
                except BaseException as error:  # noqa: BLE001 - told below
                    failures.append(error)

            threads = [threading.Thread(target=work, args=(place,)) for place in range(3)]
            for thread in threads:
                thread.start()
            started.wait()
            while sum(given) < 20 + 3 * number:
                pass
            recorder.close()
            for thread in threads:
                thread.join()
            assert failures == []
            counters = recorder.counters()
            assert counters.internal_errors == 0
            assert counted(counters) == sum(given)
            with Agent(folder, folder / "log", settings=QUICK) as agent:
                agent.drain()
            batches = logged(folder / "log")
            shipped = [row for row in rows_of(batches) if not row.is_context]
            assert len(shipped) + lost_rows(batches) == counters.recorded_rows
            told = sum(entry.batch.header.drops.unseen_rows for entry in batches)
            assert told == counters.unseen_rows
    finally:
        sys.setswitchinterval(interval)


def test_a_forked_child_counts_what_it_is_given(tmp_path: Path) -> None:
    """Rows that a child's probe passes on are in no ring: the child's counters say how many."""
    code = """
recorder = small_recorder(Path(sys.argv[1]))
record(recorder, 0, 3)
sys.stdout.flush()
child = os.fork()
if child == 0:
    record(recorder, 3, 5)
    recorder.miss(2, "not read")
    recorder.miss(object(), "not read")
    recorder.close()
    record(recorder, 8)
    counters = recorder.counters()
    print(counters.recorded_rows, counters.unseen_rows, counters.rejected_rows,
          counters.disabled_rows, counters.disabled, flush=True)
    os._exit(0)
_, status = os.waitpid(child, 0)
record(recorder, 3)
counters = recorder.counters()
print(status, counters.recorded_rows, counters.unseen_rows, counters.rejected_rows,
      counters.disabled_rows)
"""
    assert run_apart(code, tmp_path) == "3 0 0 9 forked\n0 4 0 0 0\n"


def test_a_fork_amid_another_threads_call_does_not_hold_the_child_up(tmp_path: Path) -> None:
    """The child has a copy of a lock that nobody will ever release: it counts without any."""
    code = """
import threading
from moescope.core.clock import SystemClock
held = threading.Event()

class Stuck(SystemClock):
    stops = False
    def now_us(self):  # asked amid a call, with the ring's lock
        if self.stops:
            held.set()
            threading.Event().wait(60)
        return super().now_us()

clock = Stuck()
recorder = small_recorder(Path(sys.argv[1]), clock=clock)
clock.stops = True
threading.Thread(target=record, args=(recorder, 0), daemon=True).start()
held.wait()
child = os.fork()
if child == 0:
    for position in range(1000):
        record(recorder, position)
    print(recorder.counters().disabled_rows, flush=True)
    os._exit(0)
os.waitpid(child, 0)
os._exit(0)
"""
    assert run_apart(code, tmp_path) == "1000\n"


def test_rows_at_the_end_of_the_process_do_no_harm(tmp_path: Path) -> None:
    """What still computes when the interpreter ends (a hook, a daemon) gets no error of ours."""
    code = """
import atexit
def last():
    record(recorder, 3, 2)
    recorder.miss(1, "not read")
    counters = recorder.counters()
    print(counters.recorded_rows, counters.disabled_rows, counters.internal_errors,
          counters.disabled)
atexit.register(last)
recorder = small_recorder(Path(sys.argv[1]))
record(recorder, 0, 3)
"""
    assert run_apart(code, tmp_path) == "3 3 0 the process ends\n"
    with Agent(tmp_path, tmp_path / "log", settings=QUICK) as agent:
        agent.drain()
    assert sum(not row.is_context for row in rows_of(logged(tmp_path / "log"))) == 3


@pytest.mark.parametrize("value", ["1", "yes", "TRUE"])
def test_a_recorder_says_once_that_the_environment_switched_it_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    """Nobody looks for hours for rows that an environment variable keeps away."""
    monkeypatch.setenv("MOESCOPE_DISABLE", value)
    with caplog.at_level(logging.WARNING), small_recorder(tmp_path / "none") as recorder:
        assert said(caplog.records) == [
            "Recording is switched off, and no ring is made: MOESCOPE_DISABLE is set."
        ]
        for position in range(20):
            record(recorder, position)
        recorder.miss(1, "not read")
        recorder.begin_request("b")
        recorder.end_request("b")
    assert len(caplog.records) == 1
    counters = recorder.counters()
    assert (counters.disabled_rows, counters.disabled) == (21, "MOESCOPE_DISABLE is set")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("value", ["", "0", "no", "off", "False"])
def test_a_recorder_that_records_says_nothing_at_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    """A log line is a reason to look."""
    monkeypatch.setenv("MOESCOPE_DISABLE", value)
    with (
        caplog.at_level(logging.INFO),
        small_recorder(tmp_path, clock=ManualClock(START_US)) as recorder,
    ):
        record(recorder, 0)
    assert said(caplog.records) == []
    assert recorder.counters().disabled_rows == 0


def said(records: Sequence[logging.LogRecord]) -> list[str]:
    """The lines that were logged."""
    return [each.getMessage() for each in records]
