from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.rings import EXPERTS, START_US, ids_of, small_recorder

from moescope.core.clock import ManualClock
from moescope.core.errors import SettingsError
from moescope.core.vocabulary import Phase, RowFlag
from moescope.producers.recorder import INTERNAL_ERRORS_ALLOWED
from moescope.producers.recording.running import RunningRequests, flags_for
from moescope.producers.ring.reader import RingReader
from moescope.producers.ring.rows import DecodedRows, read_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import DTypeLike

    from moescope.producers import Recorder


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    """A recorder of the tiny model, with its clock at a fixed time."""
    opened = small_recorder(tmp_path, clock=ManualClock(START_US))
    yield opened
    opened.close()


def frames(recorder: Recorder) -> list[tuple[Any, DecodedRows]]:
    """What the ring holds, decoded."""
    (path,) = (path for path in _folder(recorder).glob("*.ring"))
    reader = RingReader(path)
    found = []
    while (frame := reader.read()) is not None:
        found.append((frame.header, read_rows(frame, recorder.profile.shape)))
    reader.close()
    return found


def _folder(recorder: Recorder) -> Path:
    ring = recorder._ring  # noqa: SLF001 - the recorder does not tell where it writes
    assert ring is not None
    return ring.path.parent


def column(recorder: Recorder, name: str) -> list[Any]:
    """One column over all frames of the ring."""
    return [value for _, rows in frames(recorder) for value in rows.columns[name].tolist()]


GOOD = ids_of(range(3))
NASTY: list[tuple[tuple[Any, ...], dict[str, Any], int]] = [
    ((None, None, None, None), {}, 0),
    (("r", [0, 1, 2], None, "decode"), {}, 3),
    (("r", [0, 1, 2], GOOD[:, :1], "decode"), {}, 3),
    (("r", [0, 1, 2], GOOD[:2], "decode"), {}, 3),
    (("r", [0, 1, 2], GOOD.astype(float), "decode"), {}, 3),
    (("r", [0, 1, 2], "ids", "decode"), {}, 3),
    (("r", [0, 1, 2], GOOD.tolist(), "no such phase"), {}, 3),
    (("r", [0, 1, 2], GOOD, 17), {}, 3),
    (("r", [0, 1, 2], GOOD, None), {}, 3),
    (("r", [0, 1, 2], GOOD, [1, 1, 77]), {}, 3),
    (("r", [0.5, 1.0, 2.0], GOOD, "decode"), {}, 3),
    (("r", [0, 1, 2**70], GOOD, "decode"), {}, 3),
    (("r", np.array([-1, -2, -3], np.int16), GOOD, "decode"), {}, 3),
    ((["a", "b"], [0, 1, 2], GOOD, "decode"), {}, 3),
    ((7, [0, 1, 2], GOOD, "decode"), {}, 3),
    (([1, 2, 3], [0, 1, 2], GOOD, "decode"), {}, 3),
    (([b"a", None, ("t",)], [0, 1, 2], GOOD, "decode"), {}, 3),
    (([np.arange(3), {}, []], [0, 1, 2], GOOD, "decode"), {}, 3),
    (("x" * 600, [0, 1, 2], GOOD, "decode"), {}, 3),
    (("\ud800", [0, 1, 2], GOOD, "decode"), {}, 3),
    ((["a", "b"], [0, 1, 2], GOOD, "decode"), {"rows_per_request": [1, 1]}, 3),
    ((["a", "b"], [0, 1, 2], GOOD, "decode"), {"rows_per_request": [4, -1]}, 3),
    (("r", [0, 1, 2], GOOD, "decode"), {"weights": np.ones((3, 2))}, 3),
    (("r", [0, 1, 2], GOOD, "decode"), {"entropy": "high"}, 3),
    (("r", [0, 1, 2], GOOD, "decode"), {"padding": [1, 0, 0]}, 3),
    (("r", [0, 1, 2], GOOD, "decode"), {"dropped": [True]}, 3),
    (("r", [0, 1, 2], GOOD, "decode"), {"event_time_us": 1.5}, 3),
    (("r", [0, 1, 2], GOOD, "decode"), {"event_time_us": -1}, 3),
    (("r", [0, 1, 2], GOOD, "decode"), {"event_time_us": 2**63}, 3),
    (("r", [0, 1, 2], GOOD, "decode"), {"pass_id": "one"}, 3),
    (("r", [0, 1, 2], GOOD, "decode"), {"token_ids": [[1, 2, 3]]}, 3),
    (("r", [], np.empty((0, 2, 2), int), "decode"), {}, 0),
]


@pytest.mark.parametrize(("arguments", "options", "rows"), NASTY)
def test_bad_calls_are_counted_and_never_raise(
    recorder: Recorder, arguments: tuple[Any, ...], options: dict[str, Any], rows: int
) -> None:
    """Whatever an engine passes, inference goes on, the loss is counted, and good rows pass."""
    for _ in range(2 * INTERNAL_ERRORS_ALLOWED):
        recorder.record(*arguments, **options)
    recorder.record("good", [0, 1, 2], GOOD, "decode")
    counters = recorder.counters()
    assert counters.rejected_rows == rows * 2 * INTERNAL_ERRORS_ALLOWED
    assert counters.recorded_rows == 3
    assert counters.internal_errors == 0
    assert counters.disabled == ""


@pytest.mark.parametrize(
    "arguments",
    [
        (None,), (3,), ("r", "many"), ("r", 2**40), ("r", 5, -7), ("\ud800",),
    ],
)  # fmt: skip
def test_bad_requests_never_raise(recorder: Recorder, arguments: tuple[Any, ...]) -> None:
    """begin_request and end_request swallow nonsense, too."""
    recorder.begin_request(*arguments)
    recorder.end_request(*arguments[:1])
    recorder.end_request({})  # type: ignore[arg-type]  # nonsense on purpose
    assert recorder.counters().internal_errors == 0
    assert frames(recorder) == []


@pytest.mark.parametrize(
    ("experts", "kind", "is_wide_enough"),
    [
        (128, np.int8, True), (129, np.int8, False), (256, np.uint8, True), (257, np.uint8, False),
        (257, ">i2", True), (512, np.uint8, False), (512, np.uint16, True), (512, np.int64, True),
    ],
)  # fmt: skip
def test_ids_that_may_have_wrapped_are_rejected_whole(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    experts: int,
    kind: DTypeLike,
    *,
    is_wide_enough: bool,
) -> None:
    """A type that cannot name every expert is refused, although each id in it looks sound."""
    recorder = small_recorder(tmp_path, experts=experts)
    with caplog.at_level(logging.WARNING, "moescope.producers"):
        for position in range(0, 6, 3):
            recorder.record("r", np.arange(position, position + 3), GOOD.astype(kind), "decode")
        recorder.record("r", [6, 7, 8], GOOD.astype(kind), "decode", padding=[False] * 3)
    counters = recorder.counters()
    recorder.close()
    assert (counters.recorded_rows, counters.rejected_rows) == (
        (9, 0) if is_wide_enough else (0, 9)
    )
    assert len(caplog.records) == (0 if is_wide_enough else 1)
    assert all("too narrow" in record.message for record in caplog.records)


def test_only_impossible_rows_are_left_out(recorder: Recorder) -> None:
    """One bad row does not take its neighbours along."""
    ids = ids_of(range(6))
    ids[1, 0, 0] = EXPERTS
    ids[2, 1, 1] = -1
    recorder.record(
        ["a", "a", "b", "b", "c" * 600, "d"],
        [0, 1, 5, -6, 7, 8],
        ids,
        "prefill",
        token_ids=np.arange(6),
        event_time_us=START_US + np.arange(6),
    )
    assert column(recorder, "token_id") == [0, 5]
    assert [facts.request for _, rows in frames(recorder) for facts in rows.facts] == ["a", "d"]
    assert recorder.counters().rejected_rows == 4
    assert recorder.counters().recorded_rows == 2


@pytest.mark.parametrize("kind", [np.int64, ">i4", np.int16])
def test_padding_excuses_ids_and_positions(recorder: Recorder, kind: DTypeLike) -> None:
    """Engines fill padding with -1: such rows are flagged, not refused, for nothing is lost."""
    ids, positions = ids_of(range(6)), np.arange(6)
    ids[1:4] = -1
    ids[4, 0, 1] = EXPERTS
    positions[[1, 2]] = -1
    padding = np.array([False, True, True, False, True, False])
    recorder.record(
        ["a", "a", "b", "b", "c", "c"], positions.astype(kind), ids.astype(kind), "decode",
        padding=padding,
    )  # fmt: skip
    counters = recorder.counters()
    assert (counters.recorded_rows, counters.rejected_rows) == (5, 1)
    assert column(recorder, "flags") == [0, *[RowFlag.PADDING] * 3, 0]
    assert column(recorder, "position") == [0, 0, 0, 4, 5]
    expected = ids_of(range(6))[[0, 0, 0, 4, 5]]
    expected[1:3] = 0
    expected[3, 0, 1] = 0
    assert column(recorder, "expert_ids") == expected.tolist()


def test_rows_carry_what_the_call_said(recorder: Recorder) -> None:
    """Every column arrives, scalars for all rows, and the request's facts with them."""
    recorder.begin_request("r", prompt_tokens=9, cached_tokens=4, task="t", scene="chat")
    recorder.record(
        "r", [10, 11, 12], GOOD, Phase.DECODE, weights=np.full((3, 2, 2), 0.5),
        entropy=np.full((3, 2), 0.25), margin=np.full((3, 2), 0.125), pass_id=77, step=[1, 2, 3],
        token_ids=[5, 6, 7], content_keys=[8, 9, 10], blocks=[0, 0, 1],
        dropped=np.ones((3, 2, 2), bool), padding=[False, False, True],
    )  # fmt: skip
    ((header, rows),) = frames(recorder)
    assert header.first_us == header.last_us == START_US
    assert rows.facts[0] == ("r", "t", "chat", 9, 4)
    np.testing.assert_array_equal(rows.columns["expert_ids"], GOOD)
    plain = {name: values.tolist() for name, values in rows.columns.items()}
    assert plain["pass_id"] == [77, 77, 77]
    assert plain["step"] == [1, 2, 3]
    assert plain["token_id"] == [5, 6, 7]
    assert plain["content_key"] == [8, 9, 10]
    assert plain["block"] == [0, 0, 1]
    assert plain["flags"] == [0, 0, RowFlag.PADDING]
    assert plain["phase"] == [Phase.DECODE] * 3
    assert np.all(rows.columns["weights"] == 0.5)
    assert np.all(rows.columns["entropy"] == 0.25)
    assert np.all(rows.columns["margin"] == 0.125)
    assert np.all(rows.columns["dropped"])


def test_token_ids_are_off_unless_asked_for(tmp_path: Path) -> None:
    """Text can be rebuilt from token ids: nothing of them reaches the ring by default."""
    with small_recorder(tmp_path, token_id_kind="off") as recorder:
        recorder.record("r", [0, 1, 2], GOOD, "decode", token_ids=[1, 2, 3])
        ((_, rows),) = frames(recorder)
    assert "token_id" not in rows.columns


def test_a_position_that_was_seen_is_recomputed(recorder: Recorder) -> None:
    """First attempt wins, whatever the phase; padding, drafts and warm-up take no part."""
    recorder.record("a", [0, 1, 2, 3], ids_of(range(4)), "prefill")
    recorder.record("a", [9], ids_of([4]), "draft")
    recorder.record(["a", "b"], [4, 0], ids_of([5, 6]), "decode", padding=[False, True])
    recorder.record("a", [2, 3, 4, 5], ids_of(range(4)), "prefill")
    recorder.record("b", [0], ids_of([6]), "decode")
    again = RowFlag.RECOMPUTED
    assert column(recorder, "flags") == [
        0, 0, 0, 0, 0, 0, RowFlag.PADDING, again, again, again, 0, 0,
    ]  # fmt: skip
    assert recorder.counters().recomputed_rows == 3


def test_a_request_that_ended_starts_anew(recorder: Recorder) -> None:
    """After end_request an id may be used again, from position 0."""
    recorder.record("a", [0, 1, 2], GOOD, "prefill")
    recorder.end_request("a")
    recorder.record("a", [0, 1, 2], GOOD, "prefill")
    assert recorder.counters().recomputed_rows == 0


def test_long_calls_are_cut_into_short_frames(recorder: Recorder) -> None:
    """No frame is longer than a quarter segment, and the pieces join to the whole call."""
    recorder.record(
        ["a", "b"], np.arange(3_000), ids_of(range(3_000)), "prefill",
        rows_per_request=[1_100, 1_900], token_ids=np.arange(3_000),
    )  # fmt: skip
    found = frames(recorder)
    assert len(found) > 10
    assert max(header.length for header, _ in found) <= 512 * 1024 // 32 // 4
    assert column(recorder, "token_id") == list(range(3_000))
    owners = [
        facts.request
        for _, rows in found
        for facts, count in zip(rows.facts, rows.counts, strict=True)
        for _ in range(count)
    ]
    assert owners == ["a"] * 1_100 + ["b"] * 1_900


def test_no_frame_spans_more_than_a_second(recorder: Recorder) -> None:
    """A batch of whole frames can therefore always stay within a second of event time."""
    times = START_US + np.array([0, 10, 900_000, 1_700_000, 1_800_000, 9_000_000])
    recorder.record(
        "a", np.arange(6), ids_of(range(6)), "prefill", event_time_us=times,
        token_ids=np.arange(6),
    )  # fmt: skip
    found = frames(recorder)
    assert all(header.last_us - header.first_us <= 1_000_000 for header, _ in found)
    assert column(recorder, "token_id") == list(range(6))
    assert column(recorder, "event_time_us") == times.tolist()


def test_small_steps_back_of_the_clock_keep_the_order_of_times(tmp_path: Path) -> None:
    """The time of a row is never before that of an older row, unless the clock was really set."""
    clock = ManualClock(START_US)
    with small_recorder(tmp_path, clock=clock) as recorder:
        for number, now_us in enumerate((START_US, START_US - 500, START_US - 60_000_000)):
            clock.set_us(now_us)
            recorder.record("a", [number], ids_of([0]), "decode")
        times = [header.first_us for header, _ in frames(recorder)]
    assert times == [START_US, START_US, START_US - 60_000_000]


def test_sampling_takes_or_leaves_whole_requests(tmp_path: Path) -> None:
    """A sampled request is complete, and the share of requests is about the ratio."""
    names = [f"request-{number}" for number in range(400)]
    with small_recorder(tmp_path, fidelity="sampled", sampling_ratio=0.25) as recorder:
        for position in range(3):
            recorder.record(
                names, np.full(400, position), ids_of(range(400)), "decode",
                token_ids=np.arange(400),
            )  # fmt: skip
        taken = column(recorder, "token_id")
        counters = recorder.counters()
    chosen = set(taken)
    assert sorted(taken) == sorted([*chosen] * 3)
    assert 60 < len(chosen) < 140
    assert counters.unsampled_rows + counters.recorded_rows == 1_200


def test_the_kill_switch_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With MOESCOPE_DISABLE=1 nothing is written anywhere."""
    monkeypatch.setenv("MOESCOPE_DISABLE", "1")
    with small_recorder(tmp_path / "none") as recorder:
        recorder.begin_request("a")
        recorder.record("a", [0, 1, 2], GOOD, "decode")
        recorder.end_request("a")
        assert recorder.counters().disabled
        assert recorder.counters().recorded_rows == 0
    assert not (tmp_path / "none").exists()


def test_repeated_internal_errors_switch_recording_off(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A recorder that is broken costs the engine no more than a few calls and one error line."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("moescope.producers.ring.writer.RingWriter.publish", broken)
    with caplog.at_level(logging.ERROR, logger="moescope.producers"):
        for number in range(3 * INTERNAL_ERRORS_ALLOWED):
            positions: Any = np.arange(3) + 3 * number  # as an array the short way, too
            recorder.record("a", positions if number % 2 else positions.tolist(), GOOD, "decode")
    counters = recorder.counters()
    assert counters.disabled == "repeated internal errors"
    assert counters.rejected_rows == 3 * INTERNAL_ERRORS_ALLOWED
    assert counters.unseen_rows == 2 * 3 * INTERNAL_ERRORS_ALLOWED  # coverage falls
    assert counters.internal_errors == INTERNAL_ERRORS_ALLOWED
    assert len(caplog.records) == 1


def test_usual_calls_go_the_short_way(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode steps and prompts of arrays are recorded without the checks that take most time."""

    def unwanted(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr("moescope.producers.recording.calls.check_call", unwanted)
    recorder.begin_request("a", prompt_tokens=3)
    recorder.record("a", np.arange(3), GOOD, "prefill", token_ids=np.arange(3))
    for position in range(3, 6):
        names = ["a", "b", f"c{position}"]
        positions = np.full(3, position, np.int32)
        recorder.record(names, positions, GOOD.astype(np.uint8), Phase.DECODE, pass_id=position)
    recorder.record("a", np.array([6]), GOOD[:1], "decode", event_time_us=START_US)
    assert recorder.counters().recorded_rows == 13
    assert recorder.counters().rejected_rows == 0
    recorder.record("a", np.array([6]), GOOD[:1], "decode")
    assert recorder.counters().rejected_rows == 1  # seen before: the general way's business


def test_names_that_cannot_be_compared_are_refused_after_good_ones(recorder: Recorder) -> None:
    """Names are compared with the latest ones, and a strange object may not break that."""
    recorder.record(["a", "b", "c"], np.zeros(3, int), GOOD, "decode")
    recorder.record([np.arange(3), {}, "c"], np.ones(3, int), GOOD, "decode")  # type: ignore[list-item]  # nonsense on purpose
    counters = recorder.counters()
    assert (counters.recorded_rows, counters.rejected_rows, counters.internal_errors) == (4, 2, 0)


def test_requests_that_never_end_are_forgotten_oldest_first() -> None:
    """An engine that forgets end_request does not make the recorder grow."""
    running = RunningRequests(capacity=10)
    for number in range(100):
        running.resolve([f"r{number}", "steady"])
    assert len(running) == 10
    (steady,) = running.resolve(["steady"]).requests
    assert steady is not None
    flags = flags_for([steady], [1], np.array([5]), Phase.DECODE, None)
    assert flags.tolist() == [0]


def test_threads_lose_no_row(recorder: Recorder) -> None:
    """Calls from several threads are all recorded, each whole."""

    def work(name: str) -> None:
        for position in range(100):
            recorder.record(name, [position], ids_of([position]), "decode")

    threads = [threading.Thread(target=work, args=(f"thread-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counters = recorder.counters()
    assert counters.recorded_rows + counters.rejected_rows == 400
    assert counters.recomputed_rows == 0
    assert sum(header.rows for header, _ in frames(recorder)) == counters.recorded_rows


def test_two_recorders_of_a_folder_get_different_names(tmp_path: Path) -> None:
    """Two producers under one name would hide each other's silence; a restart gets its own."""
    with small_recorder(tmp_path) as first, small_recorder(tmp_path) as second:
        assert (first.node, second.node) == ("node-a", "node-a.1")
    with small_recorder(tmp_path) as third:
        assert third.node == "node-a"
    with small_recorder(tmp_path, node=None) as unnamed:
        again = unnamed.node
    with small_recorder(tmp_path, node=None) as unnamed:
        assert unnamed.node == again


def test_a_second_recorder_says_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A cell run again has the first recorder in the same process: nobody looks for another one."""
    with small_recorder(tmp_path), small_recorder(tmp_path):
        (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("Node 'node-a' is recorded by another living recorder")
    assert "this one is 'node-a.1'" in line
    assert "close()" in line
    assert "node=" in line


def test_complaints_are_one_readable_line_in_words_of_the_docs(
    recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    """What a caller got wrong is told on one line, without escapes, in the names he may use."""
    assert not recorder.set_fidelity("cnt")
    assert not recorder.set_fidelity("sampled")
    assert not recorder.set_placement(np.zeros((3, 3), int), 1)
    recorder.record("r", [0, 1, 2], GOOD, "prefil")
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 4
    assert all("\n" not in line and "\\n" not in line for line in told)
    assert "'cnt' is no Fidelity. Next: Use one of: " in told[0]
    assert "Next: Give sampling_ratio below 1, such as 0.1" in told[1]
    assert "Describe the model" in told[2]
    assert "phase is 'prefil', not one of prefill, decode" in told[3]


def test_unfinished_rings_of_killed_engines_are_removed(tmp_path: Path) -> None:
    """An engine that was killed while it allocated leaves no quarter of a gigabyte for ever."""
    old, new = tmp_path / "ring-01.ring.new", tmp_path / "ring-02.ring.new"
    for path in (old, new):
        path.write_bytes(b"")
    an_hour_ago = new.stat().st_mtime - 3_600
    os.utime(old, (an_hour_ago, an_hour_ago))
    with small_recorder(tmp_path):
        assert not old.exists()
        assert new.exists()


def test_a_recorder_that_was_let_go_ends_its_ring(tmp_path: Path) -> None:
    """An engine that forgets close() does not leave a node that seems alive but silent."""
    recorder = small_recorder(tmp_path)
    recorder.record("a", [0, 1, 2], GOOD, "decode")
    recorder.record("a", np.arange(3, 5), GOOD[:2], "decode")
    (path,) = tmp_path.glob("*.ring")
    reader = RingReader(path)
    assert not reader.has_ended
    gc.disable()  # letting go has to be enough
    try:
        del recorder
        assert reader.has_ended
    finally:
        gc.enable()
    assert reader.total_rows == 5
    reader.close()


def test_a_closed_recorder_is_silent(recorder: Recorder) -> None:
    """Calls after close do nothing, and closing twice is fine."""
    recorder.record("a", [0, 1, 2], GOOD, "decode")
    recorder.close()
    recorder.record("a", [3, 4, 5], GOOD, "decode")
    recorder.begin_request("a")
    recorder.end_request("a")
    recorder.close()
    assert recorder.counters().recorded_rows == 3


def test_a_forked_child_does_not_record_nor_keep_the_ring_alive(tmp_path: Path) -> None:
    """The ring has one writer, and a worker that outlives the engine does not pass for it."""
    code = """
import os, sys, time
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from support.rings import ids_of, small_recorder
recorder = small_recorder(Path(sys.argv[1]))
recorder.record("a", [0], ids_of([0]), "decode")
child = os.fork()
if child == 0:
    os.close(1)
    recorder.record("a", [1], ids_of([1]), "decode")
    recorder.end_request("a")
    Path(sys.argv[1], "child").write_text(recorder.counters().disabled)
    time.sleep(60)
    os._exit(0)
while not Path(sys.argv[1], "child").exists() or not Path(sys.argv[1], "child").read_text():
    time.sleep(0.01)
print(child, recorder.counters().recorded_rows, flush=True)
os._exit(0)
"""
    tests = str(next(path for path in map(os.fspath, sys.path) if path.endswith("tests")))
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), tests],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    child, rows = map(int, done.stdout.split())
    try:
        assert rows == 1
        assert (tmp_path / "child").read_text() == "forked"
        (path,) = tmp_path.glob("*.ring")
        reader = RingReader(path)
        assert reader.has_ended
        assert reader.total_rows == 1
        reader.close()
    finally:
        os.kill(child, 9)


@pytest.mark.parametrize(
    "settings",
    [
        {"layers": []},
        {"layers": [3, 1]},
        {"layers": [1, 1]},
        {"layers": [-1]},
        {"layers": [70_000]},
        {"experts": 0},
        {"experts": 70_000},
        {"top_k": 9},
        {"top_k": 0},
        {"weight_bits": 5},
        {"sampling_ratio": 0.5},
        {"fidelity": "sampled", "sampling_ratio": 0.0},
        {"fidelity": "sampled"},
        {"fidelity": "some"},
        {"rank_order": 2},
        {"model": ""},
        {"model": None},
        {"node": "n" * 200},
        {"labels": {"pod": 7}},
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    """What would make every batch invalid is an error at the start, not a silent loss."""
    with pytest.raises(SettingsError):
        small_recorder(tmp_path, **settings)
