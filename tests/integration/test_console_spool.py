from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from moescope.console.spool.client import NotServedError, ask_owner
from moescope.console.spool.folder import ANSWER, ASKED, TAKEN, SpoolFolder
from moescope.console.spool.server import SpoolServer
from moescope.core.clock import SystemClock
from moescope.core.errors import DependencyUnreachableError, InputError, InternalError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CLOCK = SystemClock()


def server(folder: Path, execute: Callable[[dict[str, Any]], dict[str, Any]]) -> SpoolServer:
    """A server that must have nothing to complain about."""
    return SpoolServer(folder, execute, CLOCK, pytest.fail)


def left_over(folder: Path) -> list[str]:
    """Files of commands and answers."""
    return sorted(path.name for path in (folder / "commands").glob("*.json*"))


def test_two_askers_get_their_own_answers(tmp_path: Path) -> None:
    """Commands of several people are carried out one after the other, and nothing is left."""
    order: list[int] = []

    def execute(request: dict[str, Any]) -> dict[str, Any]:
        order.append(request["number"])
        return {"twice": 2 * request["number"]}

    answers: dict[int, dict[str, Any]] = {}
    with server(tmp_path, execute):
        askers = [
            threading.Thread(
                target=lambda n=n: answers.update({n: ask_owner(tmp_path, {"number": n}, CLOCK)})
            )
            for n in range(6)
        ]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
    assert answers == {n: {"twice": 2 * n} for n in range(6)}
    assert sorted(order) == list(range(6))
    assert left_over(tmp_path) == []


def test_errors_arrive_as_they_were_raised(tmp_path: Path) -> None:
    """Exit code, cause and next step survive the spool; a bug is reported and ends nothing."""

    def execute(request: dict[str, Any]) -> dict[str, Any]:
        if request["wrong"]:
            raise InputError("No.", why="Because.", next_step="Do.")
        raise ZeroDivisionError("oops")

    with server(tmp_path, execute):
        with pytest.raises(InputError) as refused:
            ask_owner(tmp_path, {"wrong": True}, CLOCK)
        assert (refused.value.why, refused.value.next_step) == ("Because.", "Do.")
        with pytest.raises(InternalError, match="ZeroDivisionError: oops"):
            ask_owner(tmp_path, {"wrong": False}, CLOCK)


def test_without_an_owner_nothing_is_left_behind(tmp_path: Path) -> None:
    """A command that nobody can take is not there for a later owner to find."""
    with pytest.raises(NotServedError):
        ask_owner(tmp_path, {}, CLOCK)
    assert left_over(tmp_path) == []
    assert (tmp_path / "commands").stat().st_mode & 0o777 == 0o700


def test_a_command_is_withdrawn_when_it_waits_too_long(tmp_path: Path) -> None:
    """While a long command runs, another one gives up; it is not carried out afterwards."""
    begun, release = threading.Event(), threading.Event()
    carried_out: list[str] = []

    def execute(request: dict[str, Any]) -> dict[str, Any]:
        carried_out.append(request["name"])
        begun.set()
        release.wait(60)
        return {}

    with server(tmp_path, execute):
        long = threading.Thread(target=lambda: ask_owner(tmp_path, {"name": "long"}, CLOCK))
        long.start()
        assert begun.wait(60)
        with pytest.raises(DependencyUnreachableError, match="withdrawn"):
            ask_owner(tmp_path, {"name": "late"}, CLOCK, patience_seconds=0.1)
        release.set()
        long.join()
        assert ask_owner(tmp_path, {"name": "next"}, CLOCK) == {}
    assert carried_out == ["long", "next"]


def test_stale_and_damaged_files_are_not_carried_out(tmp_path: Path) -> None:
    """What a killed asker left, and what is no command, changes nothing."""
    folder = SpoolFolder(tmp_path)
    folder.write("1-stale", ASKED, {"deadline_us": CLOCK.now_us() - 1})
    folder.write("2-undated", ASKED, {})
    folder.path("3-damaged", ASKED).write_text("{ no json")
    folder.path("4-link", ASKED).symlink_to("/etc/passwd")
    (tmp_path / "commands" / ".5-half.asked.json.1").write_text("{")
    carried_out: list[dict[str, Any]] = []

    def execute(request: dict[str, Any]) -> dict[str, Any]:
        carried_out.append(request)
        return {}

    with SpoolServer(tmp_path, execute, CLOCK, lambda _: None):
        while folder.names(ASKED):
            CLOCK.sleep(0.02)
    assert carried_out == []
    assert not list((tmp_path / "commands").glob(".*half*"))
    for name in ("1-stale", "2-undated", "3-damaged"):
        assert "error" in (folder.read(name, ANSWER) or {})


DYING_OWNER = """
import os, sys
from pathlib import Path
from moescope.console.spool.server import SpoolServer
from moescope.core.clock import SystemClock

def execute(request):
    print("begun", flush=True)
    sys.stdin.read()
    return {}

with SpoolServer(Path(sys.argv[1]), execute, SystemClock(), print):
    print("serving", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("next_owner", [False, True], ids=["nobody follows", "another follows"])
def test_an_owner_that_dies_in_between_is_told(tmp_path: Path, *, next_owner: bool) -> None:
    """Whoever asked hears that the owner is gone, and does not wait for ever."""
    owner = subprocess.Popen(
        [sys.executable, "-c", DYING_OWNER, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "serving\n"
    outcome: list[BaseException] = []

    def ask() -> None:
        try:
            ask_owner(tmp_path, {}, CLOCK)
        except DependencyUnreachableError as error:
            outcome.append(error)

    asker = threading.Thread(target=ask)
    asker.start()
    assert owner.stdout.readline() == "begun\n"
    os.kill(owner.pid, signal.SIGKILL)
    owner.communicate()
    if next_owner:
        with server(tmp_path, lambda _: pytest.fail("carried out twice")):
            asker.join()
    asker.join()
    assert "owner ended" in str(outcome[0])
    assert SpoolFolder(tmp_path).names(TAKEN) == []


def test_whatever_a_command_ends_in_is_answered(tmp_path: Path) -> None:
    """The owner answers an exit, a result that is no JSON or too large, a huge error."""

    def execute(request: dict[str, Any]) -> dict[str, Any]:
        match request["case"]:
            case "exit":
                sys.exit(3)
            case "set":
                return {"value": {1, 2}}
            case "large":
                return {"value": "x" * (1 << 20)}
            case "long error":
                raise InputError("\N{GRINNING FACE}" * 1_000_000)
        return {"value": "small"}

    with server(tmp_path, execute):
        with pytest.raises(InternalError, match="SystemExit: 3"):
            ask_owner(tmp_path, {"case": "exit"}, CLOCK)
        with pytest.raises(InternalError, match=r"was carried out.*\n.*written as JSON"):
            ask_owner(tmp_path, {"case": "set"}, CLOCK)
        with pytest.raises(InternalError, match=r"was carried out.*\n.*1048576 may be sent"):
            ask_owner(tmp_path, {"case": "large"}, CLOCK)
        with pytest.raises(InputError, match=r"\(cut\)"):
            ask_owner(tmp_path, {"case": "long error"}, CLOCK)
        with pytest.raises(InputError, match="may have 1048576 bytes"):
            ask_owner(tmp_path, {"case": "x" * (1 << 20)}, CLOCK)
        assert ask_owner(tmp_path, {"case": "small"}, CLOCK) == {"value": "small"}
    assert left_over(tmp_path) == []


def test_a_command_that_never_ends_keeps_nobody_waiting_for_ever(tmp_path: Path) -> None:
    """Whoever asked is told in the end that it may still be carried out, and where to look."""
    release = threading.Event()

    def execute(_: dict[str, Any]) -> dict[str, Any]:
        release.wait(60)
        return {}

    with server(tmp_path, execute):
        with pytest.raises(DependencyUnreachableError, match="may still be") as given_up:
            ask_owner(tmp_path, {}, CLOCK, answer_seconds=1.0)
        release.set()
    assert "`audit`" in given_up.value.next_step


OWNER_THAT_CANNOT_WRITE = """
import resource, sys
from pathlib import Path
from moescope.console.spool.server import SpoolServer
from moescope.core.clock import SystemClock

resource.setrlimit(resource.RLIMIT_FSIZE, (5, 5))
with SpoolServer(Path(sys.argv[1]), lambda _: {}, SystemClock(), print):
    print("serving", flush=True)
    sys.stdin.read()
"""


def test_an_owner_that_cannot_write_answers_says_so(tmp_path: Path) -> None:
    """It starts with unsettled commands, goes on after each, and nobody waits for its answer."""
    SpoolFolder(tmp_path).write("1-unsettled", TAKEN, {})
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER_THAT_CANNOT_WRITE, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    assert "'1-unsettled' could not be answered" in owner.stdout.readline()
    assert owner.stdout.readline() == "serving\n"
    for _ in range(2):
        with pytest.raises(DependencyUnreachableError, match="could not write its answer"):
            ask_owner(tmp_path, {}, CLOCK)
    assert owner.communicate("")[0].count("could not be answered") == 2
    assert owner.returncode == 0
    assert left_over(tmp_path) == []


def test_what_is_no_plain_file_is_left_alone(tmp_path: Path) -> None:
    """Folders, pipes, links and overlong names stop neither the start nor the commands."""
    SpoolFolder(tmp_path)
    spool = tmp_path / "commands"
    for name in ("a.taken.json", "b.asked.json", "c.answer.json", ".d.json.1"):
        (spool / name).mkdir()
        os.utime(spool / name, (0, 0))
    os.mkfifo(spool / "e.asked.json")
    os.mkfifo(spool / "f.taken.json")
    (spool / "g.asked.json").symlink_to("/etc/passwd")
    (spool / f"{'h' * 244}.taken.json").write_text("{}")
    (spool / f"{'i' * 244}.asked.json").write_text("{}")
    before = left_over(tmp_path)
    log: list[str] = []
    with SpoolServer(tmp_path, lambda _: {"done": True}, CLOCK, log.append):
        for _ in range(2):
            assert ask_owner(tmp_path, {}, CLOCK) == {"done": True}
    assert left_over(tmp_path) == before
    assert len(log) == 8
    assert all("left alone" in line for line in log)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("x")])
def test_only_plain_files_are_read(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """A pipe put in place of a command does not keep its reader waiting."""
    folder = SpoolFolder(tmp_path)
    make(folder.path("a", TAKEN))
    with pytest.raises(InputError, match="no plain file"):
        folder.read("a", TAKEN)


def test_a_spool_that_goes_away_does_not_end_the_owner(tmp_path: Path) -> None:
    """Once it is back, commands are served again; the trouble is logged once."""
    SpoolFolder(tmp_path)
    spool, away = tmp_path / "commands", tmp_path / "away"
    log: list[str] = []
    with SpoolServer(tmp_path, lambda _: {"done": True}, CLOCK, log.append):
        spool.rename(away)
        while not log:
            CLOCK.sleep(0.02)
        away.rename(spool)
        assert ask_owner(tmp_path, {}, CLOCK) == {"done": True}
    assert len(log) == 1
    assert "FileNotFoundError" in log[0]
