"""Whatever breaks in or beside the probe: the server answers as it does without, and it counts.

Each answer is compared with that of a server without the plugin: greedy decoding in float32, so
that the tokens do not depend on which requests happen to share a batch.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import stat
import subprocess
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from support.permissions import bound_by_permissions
from support.plugin_rows import outwait_passes
from support.rings import logged, lost_rows, rows_of
from support.vllm_agent import AgentProcess
from support.vllm_client import Prompt, complete, complete_all
from support.vllm_fault_plugin import (
    ERROR,
    FEWER_ROWS,
    FILE_VARIABLE,
    IDS_BEYOND,
    MISSED_LAYER,
    NEGATIVE_IDS,
    ZEROS,
    install,
)
from support.vllm_server import TINY_MOE, ServerOptions, VllmServer, wait_until_ready

from moescope.core.batchlog import BatchLogAppendError, partition_names
from moescope.core.vocabulary import RowFlag
from moescope.producers.agent import Agent
from moescope.producers.ring.layout import HEADER_BYTES, RING_SUFFIX
from moescope.producers.ring.reader import RingReader
from moescope.producers.waiting import HELD_PASSES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from support.rings import Logged
    from support.vllm_server import VllmNursery

    Start = Callable[..., "Watched"]

pytest.importorskip("vllm", reason="`make engines` has vLLM")
pytestmark = pytest.mark.timeout(900)

SUBJECT = "vLLM plugin"
NODE = "chaos"
VOCABULARY = 2048
LONGEST_S = 120.0
_numbers = count()


def prompts_of(seed: int, requests: int, length: int, tokens: int) -> list[Prompt]:
    """Prompts that depend on the seed; request ids that were never there before."""
    chosen = random.Random(seed)
    return [
        Prompt(
            request_id=f"{seed}-{next(_numbers)}",
            token_ids=[chosen.randrange(1, VOCABULARY) for _ in range(length)],
            tokens=tokens,
        )
        for _ in range(requests)
    ]


def load(seed: int) -> list[Prompt]:
    """What most tests send."""
    return prompts_of(seed, requests=5, length=40, tokens=16)


@dataclass
class Watched:
    """A server with the plugin, and the one without that it has to equal."""

    server: VllmServer
    plain: VllmServer
    ring: Path
    log: Path

    def check_answers(self, prompts: list[Prompt]) -> int:
        """Send prompts to both; how many rows the engine had to compute at most."""
        wait_until_ready(self.server)
        wait_until_ready(self.plain)
        expected = complete_all(self.plain, prompts)
        given = complete_all(self.server, prompts)
        assert not [reply.error for reply in expected if reply.error]
        assert not [reply.error for reply in given if reply.error]
        assert [reply.token_ids for reply in given] == [reply.token_ids for reply in expected]
        outwait_passes()
        return sum(len(prompt.token_ids) + prompt.tokens - 1 for prompt in prompts)

    def ring_file(self) -> Path:
        """The one ring."""
        [file] = self.ring.glob(f"*{RING_SUFFIX}")
        return file

    def counted(self) -> Counted:
        """What the ring's header says."""
        reader = RingReader(self.ring_file())
        counted = Counted(reader.total_rows, reader.rejected_rows, reader.unseen_rows)
        reader.close()
        return counted

    def drained(self) -> list[Logged]:
        """All that was recorded, after an agent of this process has shipped it."""
        with Agent(self.ring, self.log) as agent:
            agent.drain()
        return self.shipped()

    def shipped(self) -> list[Logged]:
        """What is in the batch log."""
        return logged(self.log, NODE)


@dataclass(frozen=True)
class Counted:
    """Totals of a ring, in rows."""

    recorded: int
    rejected: int
    unseen: int

    def since(self, before: Counted) -> Counted:
        """What was added."""
        return Counted(
            self.recorded - before.recorded,
            self.rejected - before.rejected,
            self.unseen - before.unseen,
        )


class NanRows(NamedTuple):
    """Rows of a model whose router is not a number, and of the same server with a failing probe.

    Attributes:
        counted: Before the probe fails.
        computed: How many rows the engine computed until then.
        failing: Counted while it fails.
        log: What the server said at the end.
    """

    counted: Counted
    computed: int
    failing: Counted
    log: str


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For rings, logs and models."""
    return tmp_path_factory.mktemp("chaos")


@pytest.fixture(scope="module")
def plain(nursery: VllmNursery) -> Iterator[VllmServer]:
    """The server without."""
    server = nursery.launch("chaos-plain", ServerOptions())
    yield server
    server.kill()


@pytest.fixture(scope="module")
def start(nursery: VllmNursery, plain: VllmServer, folder: Path) -> Start:
    """Launches servers with the plugin."""

    def launch(name: str, environment: Mapping[str, str], **options: Any) -> Watched:
        variables = {"MOESCOPE_NODE": NODE, "MOESCOPE_RING_MIB": "1", **environment}
        ring = folder / name / "ring"
        given = ServerOptions(ring=ring, environment=variables, **options)
        return Watched(nursery.launch(f"chaos-{name}", given), plain, ring, folder / name / "log")

    return launch


@pytest.fixture
def own(start: Start) -> Iterator[Start]:
    """Launches servers that go with the test."""
    launched: list[Watched] = []

    def launch(*args: Any, **options: Any) -> Watched:
        launched.append(start(*args, **options))
        return launched[-1]

    yield launch
    for watched in launched:
        watched.server.kill()


@pytest.fixture(scope="module")
def faults_file(folder: Path) -> Path:
    """Which fault the shared server has at the moment; none while it is not there."""
    return folder / "fault"


@pytest.fixture(scope="module")
def fault_plugin(folder: Path) -> tuple[Path, ...]:
    """Paths of the plugin that breaks what the probe sees, as a file says."""
    return install(folder / "fault-plugin")


@pytest.fixture(scope="module")
def watched(start: Start, faults_file: Path, fault_plugin: tuple[Path, ...]) -> Iterator[Watched]:
    """The server that most tests share; each takes what it finds as its beginning."""
    variables = {"MOESCOPE_WEIGHTS": "1", FILE_VARIABLE: str(faults_file)}  # larger rows
    watched = start("shared", variables, paths=fault_plugin)
    wait_until_ready(watched.server)
    yield watched
    watched.server.kill()


def test_a_ring_that_nobody_reads_overruns(watched: Watched, verified: Any) -> None:
    """No agent: the oldest rows are overwritten, and the first batch's header counts each."""
    for seed in range(100, 103):
        watched.check_answers(prompts_of(seed, requests=12, length=440, tokens=2))
    recorded = watched.counted().recorded
    batches = watched.drained()
    own = [row for row in rows_of(batches) if not row.is_context]
    assert lost_rows(batches) > 0
    assert len(own) + lost_rows(batches) == recorded
    verified(subject=SUBJECT, what="same answers, and counted: no agent")


def test_a_killed_agent_ships_every_row_once(watched: Watched, folder: Path, verified: Any) -> None:
    """Kill -9 amid serving: the next agent goes on where the log ends."""
    watched.drained()
    before, old = watched.counted(), len(watched.shipped())
    for seed in range(200, 203):
        with AgentProcess(watched.ring, watched.log, folder / "agent.log") as agent:
            killer = threading.Timer(0.4, agent.kill)
            killer.start()
            watched.check_answers(prompts_of(seed, requests=8, length=40, tokens=40))
            killer.join()
    own = [row for row in rows_of(watched.drained()[old:]) if not row.is_context]
    assert len(own) == watched.counted().since(before).recorded
    assert len({(row.request, row.position) for row in own}) == len(own)
    assert not lost_rows(watched.shipped()[old:])
    verified(subject=SUBJECT, what="same answers, and counted: agent killed")


def test_a_ring_overwritten_on_disk_loses_rows_and_says_so(watched: Watched, verified: Any) -> None:
    """Garbage in the ring's file: its frames are passed over, and their rows counted as lost."""
    watched.drained()
    before, old = watched.counted(), len(watched.shipped())
    watched.check_answers(load(301))
    file = watched.ring_file()
    size = file.stat().st_size
    noise = np.random.default_rng(3)
    with file.open("r+b") as opened:
        for at in range(HEADER_BYTES, size, 16_384):
            opened.seek(at + int(noise.integers(0, 8_000)))
            opened.write(noise.bytes(4_000))
    watched.check_answers(load(302))
    batches = watched.drained()[old:]
    own = [row for row in rows_of(batches) if not row.is_context]
    recorded = watched.counted().since(before).recorded
    assert 0 < len(own) < recorded
    # What lies behind the damage says how much it lost; more rows until something does.
    for seed in range(303, 306):
        watched.check_answers(load(seed))
    batches = watched.drained()[old:]
    own = [row for row in rows_of(batches) if not row.is_context]
    assert len(own) + lost_rows(batches) == watched.counted().since(before).recorded
    verified(subject=SUBJECT, what="same answers, and counted: ring corrupt on disk")


def test_clients_that_go_away_end_their_requests(watched: Watched, verified: Any) -> None:
    """A closed connection aborts the request: its rows stay, and its end is recorded."""
    watched.drained()
    gone = Prompt(request_id="gone", token_ids=range(50, 90), tokens=300, abort_after=3)
    assert len(complete(watched.server, gone).token_ids) == 3
    ended: list[int] = []
    end = time.monotonic() + LONGEST_S
    seed = count(400)
    while not ended and time.monotonic() < end:
        watched.check_answers(load(next(seed)))
        ended = [
            row.position
            for row in rows_of(watched.drained())
            if row.request == "cmpl-gone" and row.flags & RowFlag.LAST_OF_REQUEST
        ]
    [last] = ended
    assert 40 < last < 40 + 300
    verified(subject=SUBJECT, what="same answers, and counted: clients that go away")


def test_the_kill_switch_stops_recording_and_counts_what_it_costs(
    watched: Watched, verified: Any
) -> None:
    """While `disable` lies in the ring's folder rows are unseen; afterwards they are recorded."""
    watched.check_answers(load(501))
    switch = watched.ring / "disable"
    switch.touch()
    time.sleep(1.1)  # it is looked for once a second
    watched.check_answers(load(502))  # and the first call finds it
    before = watched.counted()
    watched.check_answers(load(503))
    off = watched.counted().since(before)
    assert (off.recorded, off.unseen > 0) == (0, True)
    switch.unlink()
    time.sleep(1.1)
    watched.check_answers(load(504))
    before = watched.counted()
    watched.check_answers(load(505))
    on = watched.counted().since(before)
    assert (on.recorded > 0, on.unseen) == (True, 0)
    verified(subject=SUBJECT, what="same answers, and counted: switched off by the file")


@pytest.mark.parametrize("fault", [IDS_BEYOND, NEGATIVE_IDS, ZEROS, FEWER_ROWS, MISSED_LAYER])
def test_impossible_observations_are_counted_and_never_recorded(
    watched: Watched, faults_file: Path, fault: str, verified: Any
) -> None:
    """Ids out of range are rejected, rows that nobody saw rightly are unseen; none is recorded."""
    watched.check_answers(load(600))
    before = watched.counted()
    faults_file.write_text(fault, encoding="ascii")
    try:
        watched.check_answers(load(601 + len(fault)))
    finally:
        faults_file.unlink()
    during = watched.counted().since(before)
    assert during.recorded == 0
    if fault in {IDS_BEYOND, NEGATIVE_IDS}:
        assert (during.rejected > 0, during.unseen) == (True, 0)
    else:
        assert (during.rejected, during.unseen > 0) == (0, True)
    before = watched.counted()
    watched.check_answers(load(700))
    after = watched.counted().since(before)
    assert (after.recorded > 0, after.rejected, after.unseen) == (True, 0, 0)
    verified(subject=SUBJECT, what=f"same answers, and counted: {fault}")


@pytest.fixture
def memory_folder() -> Iterator[Path]:
    """A folder on a memory file system of known size."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.mark.parametrize("trouble", ["disk-full", "folder-unwritable"])
def test_without_room_for_a_ring_the_server_serves(
    own: Start, memory_folder: Path, trouble: str, verified: Any
) -> None:
    """No ring, no records; the engine's log says what to do, and inference goes on."""
    if trouble == "disk-full":
        size = os.statvfs(memory_folder)
        environment = {
            "MOESCOPE_DIR": str(memory_folder),
            "MOESCOPE_RING_MIB": str(size.f_blocks * size.f_frsize // (1024 * 1024) + 1),
        }
    else:
        environment = {"MOESCOPE_DIR": "/dev/null/ring"}
    watched = own(trouble, environment)
    watched.check_answers(load(900))
    text = watched.server.log_text()
    [said] = [line for line in text.splitlines() if "The engine is not watched" in line]
    assert {"disk-full": "No space left", "folder-unwritable": "Not a directory"}[trouble] in said
    assert "Next: " in said
    assert "Could not make a ring" in said or "cannot use the folder" in said
    assert not list(memory_folder.glob(f"*{RING_SUFFIX}*"))
    verified(
        subject=SUBJECT,
        what=f"same answers, nothing recorded, one error in the engine's log: {trouble} at start",
    )


def test_a_ring_whose_header_is_destroyed_is_set_aside(own: Start, verified: Any) -> None:
    """The engine goes on writing to what nobody can read; the agent says so and counts it."""
    watched = own("header", {})
    watched.check_answers(load(1000))
    file = watched.ring_file()
    with file.open("r+b") as opened:
        opened.write(b"\xff" * 4096)
    watched.check_answers(load(1001))
    with Agent(watched.ring, watched.log) as agent:
        agent.drain()
        assert agent.counters().unreadable_rings == 1
    assert not partition_names(watched.log)
    shutil.rmtree(watched.ring)
    watched.check_answers(load(1002))
    verified(subject=SUBJECT, what="same answers, and counted by the agent: ring header destroyed")


@pytest.fixture(scope="module")
def on_small_disk(start: Start, folder: Path) -> Iterator[Watched]:
    """A server whose ring lies on a file system of its own, beside the batch log."""
    disk = folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "moescope-test", str(disk)],
        check=False, capture_output=True,
    )  # fmt: skip
    if mounted.returncode:
        # What needs none says the same of engine and agent, and has a cell of the matrix.
        pytest.skip("no file system can be mounted here")
    try:
        watched = start("disk", {})
        wait_until_ready(watched.server)
        yield watched
        watched.server.kill()
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_log_that_finds_no_room_stops_and_the_ring_does_not(
    watched: Watched, verified: Any
) -> None:
    """No byte more fits behind the log's files, as on a full disk: the rows stay in the ring."""
    watched.check_answers(load(1350))
    watched.drained()
    before, old = watched.counted(), len(watched.shipped())
    with Agent(watched.ring, watched.log) as agent:
        with no_file_longer_than(longest_file(watched.log)):
            computed = watched.check_answers(load(1351))
            assert watched.counted().since(before) == Counted(computed, 0, 0)
            with pytest.raises(BatchLogAppendError):
                agent.drain()
        assert agent.counters().failed_appends > 0
        agent.drain()
    batches = watched.shipped()[old:]
    own = [row for row in rows_of(batches) if not row.is_context]
    assert len({(row.request, row.position) for row in own}) == len(own) == computed
    assert not lost_rows(batches)
    verified(subject=SUBJECT, what="same answers, and all shipped: disk full while serving")


def test_a_folder_that_loses_its_permissions_stops_new_agents_only(
    watched: Watched, verified: Any
) -> None:
    """Engine and agent have open what they write to; who comes later is refused."""
    watched.check_answers(load(1360))
    watched.drained()
    before, old = watched.counted(), len(watched.shipped())
    with Agent(watched.ring, watched.log) as agent:
        agent.run_once()
        with unwritable(watched.ring):
            with pytest.raises(PermissionError):
                (watched.ring / "new").touch()
            computed = watched.check_answers(load(1361))
            with pytest.raises(PermissionError):
                Agent(watched.ring, watched.log)
            agent.drain()
    assert watched.counted().since(before) == Counted(computed, 0, 0)
    own = [row for row in rows_of(watched.shipped()[old:]) if not row.is_context]
    assert len(own) == computed
    verified(subject=SUBJECT, what="same answers, and all shipped: folder unwritable while serving")


def test_a_disk_that_fills_up_stops_the_log_and_not_the_ring(
    on_small_disk: Watched,
) -> None:
    """The ring has all its room from the start; what the log cannot take stays in the ring."""
    watched = on_small_disk
    watched.check_answers(load(1300))
    watched.drained()
    before, old = watched.counted(), len(watched.shipped())
    filler = watched.ring.parent / "filler"
    with Agent(watched.ring, watched.log) as agent:
        fill_up(filler)
        computed = watched.check_answers(load(1301))
        assert watched.counted().since(before) == Counted(computed, 0, 0)
        with pytest.raises(BatchLogAppendError):
            agent.drain()
        assert agent.counters().failed_appends > 0
        filler.unlink()
        agent.drain()
    batches = watched.shipped()[old:]
    own = [row for row in rows_of(batches) if not row.is_context]
    assert len({(row.request, row.position) for row in own}) == len(own) == computed
    assert not lost_rows(batches)


def test_a_folder_that_becomes_read_only_stops_new_agents_only(on_small_disk: Watched) -> None:
    """Engine and agent have open what they write to; who comes later is refused."""
    watched = on_small_disk
    watched.check_answers(load(1310))
    watched.drained()
    before, old = watched.counted(), len(watched.shipped())
    with Agent(watched.ring, watched.log) as agent:
        agent.run_once()
        with read_only(watched.ring):
            with pytest.raises(OSError, match="Read-only"):
                (watched.ring / "new").touch()
            computed = watched.check_answers(load(1311))
            with pytest.raises(OSError, match="Read-only"):
                Agent(watched.ring, watched.log)
            agent.drain()
    assert watched.counted().since(before) == Counted(computed, 0, 0)
    own = [row for row in rows_of(watched.shipped()[old:]) if not row.is_context]
    assert len(own) == computed


def longest_file(folder: Path) -> int:
    """Bytes of the longest file below a folder."""
    return max(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """No file that this process writes grows beyond some bytes: it is refused, as on a full disk.

    Python ignores the signal that comes with it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def unwritable(folder: Path) -> Iterator[None]:
    """Nothing of a folder can be opened for writing by this thread, not even by root."""
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}
    for path, mode in modes.items():
        path.chmod(mode & ~0o222)
    try:
        with bound_by_permissions():
            yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


def fill_up(file: Path) -> None:
    """Take all room that is left, down to the last byte."""
    for size in (1 << 16, 1):
        with suppress(OSError), file.open("ab", buffering=0) as opened:
            while True:
                opened.write(bytes(size))
    with pytest.raises(OSError, match="No space"):
        file.with_name("more").write_bytes(b"more")
    file.with_name("more").unlink()


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nobody can open a file of the folder for writing; who has one open goes on."""
    subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_an_engine_that_goes_away_leaves_its_rows(own: Start, verified: Any) -> None:
    """Killed, or told to end, amid requests: what it computed is shipped, and the next one serves.

    What clients got until then is what a server without the plugin says, and each of their tokens
    is shipped but for the passes that waited: vLLM kills its worker when it is told to end.
    """
    asked = prompts_of(1101, requests=4, length=40, tokens=400)
    watched = own("gone", {})
    wait_until_ready(watched.plain)
    expected = complete_all(watched.plain, asked)
    assert [len(reply.token_ids) for reply in expected] == [400] * 4
    for number, leave in enumerate((VllmServer.kill, VllmServer.stop)):
        again = [replace(prompt, request_id=f"gone-{next(_numbers)}") for prompt in asked]
        watched.check_answers(load(1102 + number))
        old = len(watched.drained())
        before = watched.counted()
        with ThreadPoolExecutor(1) as client:
            replies = client.submit(complete_all, watched.server, again)
            end = time.monotonic() + LONGEST_S
            while watched.counted().since(before).recorded < 4 * 60 and time.monotonic() < end:
                time.sleep(0.02)
            leave(watched.server)
        for reply, wanted in zip(replies.result(), expected, strict=True):
            assert len(reply.token_ids) < 400
            assert reply.token_ids == wanted.token_ids[: len(reply.token_ids)]
        recorded = watched.counted().since(before).recorded
        found = [row for row in rows_of(watched.drained()[old:]) if not row.is_context]
        assert len(found) == recorded
        shipped = Counter(row.request for row in found)
        for prompt, reply in zip(again, replies.result(), strict=True):
            # The last token that a client has was chosen, and need not have been computed with.
            computed = len(prompt.token_ids) + max(0, len(reply.token_ids) - 1)
            assert shipped.pop(f"cmpl-{prompt.request_id}") >= computed - HELD_PASSES
        assert not shipped
        if leave is VllmServer.kill:
            watched = own("gone", {})
    but = "same answers, and shipped but for passes that waited: engine"
    verified(subject=SUBJECT, what=f"{but} killed amid requests")
    verified(subject=SUBJECT, what=f"{but} stopped amid requests")


@pytest.fixture(scope="module")
def nan_rows(
    nursery: VllmNursery, start: Start, folder: Path, fault_plugin: tuple[Path, ...]
) -> NanRows:
    """What was counted of servers that answered as one without the plugin."""
    model = model_with_nan_router(folder / "nan-model")
    plain = nursery.launch("chaos-nan-plain", ServerOptions(model=model))
    file = folder / "always"
    variables = {"MOESCOPE_WEIGHTS": "1", FILE_VARIABLE: str(file)}
    watched = replace(start("nan", variables, model=model, paths=fault_plugin), plain=plain)
    computed = watched.check_answers(load(1200))
    counted = watched.counted()
    file.write_text(ERROR, encoding="ascii")
    watched.check_answers(load(801))
    watched.check_answers(load(802))
    failing = watched.counted().since(counted)
    plain.kill()
    watched.server.kill()
    return NanRows(counted, computed, failing, watched.server.log_text())


def test_a_probe_that_fails_again_and_again_goes_off(nan_rows: NanRows, verified: Any) -> None:
    """After eight errors it looks no more, says so once, and still counts the rows it misses."""
    assert (nan_rows.failing.recorded, nan_rows.failing.unseen > 0) == (0, True)
    assert nan_rows.log.count("after repeated errors") == 1
    verified(subject=SUBJECT, what="same answers, and counted: a failing probe")


def test_a_model_whose_router_is_not_a_number_serves_as_without(
    nan_rows: NanRows, verified: Any
) -> None:
    """NaN weights of a router give NaN scores: each row the engine computed is accounted for."""
    counted = nan_rows.counted
    assert counted.recorded + counted.rejected + counted.unseen == nan_rows.computed
    verified(subject=SUBJECT, what="same answers, and counted: a router that is not a number")


def test_rows_whose_weights_are_not_numbers_are_not_recorded(nan_rows: NanRows) -> None:
    """The ids beside such weights are whatever the kernel's comparison left."""
    assert (nan_rows.counted.recorded, nan_rows.counted.rejected) == (0, 0)
    assert nan_rows.counted.unseen == nan_rows.computed


def model_with_nan_router(folder: Path) -> Path:
    """The small MoE, with NaN in two rows of one layer's router."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(TINY_MOE, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.2.mlp.gate.weight"][[3, 7]] = np.nan
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
