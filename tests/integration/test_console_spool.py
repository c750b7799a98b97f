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
    with SpoolServer(tmp_path, lambda _: pytest.fail("carried out"), CLOCK, lambda _: None):
        while folder.names(ASKED):
            CLOCK.sleep(0.02)
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
