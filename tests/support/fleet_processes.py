"""Processes of a fleet, forked from one that has imported and compiled everything.

    with Nursery(folder) as nursery:
        agent = nursery.start("agent-a", run_role, "agent", settings)
        agent.kill()

The parent of them all is `multiprocessing`'s fork server: it has no threads, and ends when this
process does, and they with it.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from multiprocessing.context import ForkServerProcess

TESTS = Path(__file__).resolve().parent.parent
PR_SET_PDEATHSIG = 1
LONGEST_STOP_S = 60.0


class _Program:
    """A program with the few methods of a forked process that are needed."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], log: Path) -> None:
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                command,
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 (one system call)
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exitcode(self) -> int | None:
        return self._popen.poll()

    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def kill(self) -> None:
        self._popen.kill()

    def terminate(self) -> None:
        self._popen.terminate()

    def join(self, timeout: float | None = None) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout)


class FleetError(AssertionError):
    """A process of the fleet did what it should not."""


class FleetProcess:
    """One process, in its latest life."""

    def __init__(self, name: str, process: ForkServerProcess | _Program, log: Path) -> None:
        self.name, self._process, self.log = name, process, log

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it lives."""
        return self._process.is_alive()

    def kill(self) -> None:
        """End it as a crash would, and wait until it is gone.

        Raises:
            FleetError: It was gone already.
        """
        if not self.is_running:
            raise FleetError(f"{self.name} had ended by itself:\n{self.last_words()}")
        self._process.kill()
        self._process.join()

    def pause(self) -> None:
        """Stop its execution."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Ask it to end, and wait until it has ended well.

        Raises:
            FleetError: It failed, or took too long.
        """
        self.ask_to_stop()
        self.wait()

    def ask_to_stop(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def wait(self, seconds: float = LONGEST_STOP_S) -> None:
        """Wait until it has ended well; raises like :meth:`stop`."""
        self._process.join(seconds)
        if self.is_running:
            os.kill(self.pid, signal.SIGABRT)
            self._process.join()
            raise FleetError(f"{self.name} did not end in {seconds:g} s:\n{self.last_words()}")
        if self._process.exitcode != 0:
            raise FleetError(f"{self.name} ended {self._process.exitcode}:\n{self.last_words()}")

    def exit_code(self, seconds: float = LONGEST_STOP_S) -> int:
        """Wait until it ends by itself.

        Raises:
            FleetError: It takes too long.
        """
        self._process.join(seconds)
        if self._process.exitcode is None:
            raise FleetError(f"{self.name} goes on after {seconds:g} s:\n{self.last_words()}")
        return self._process.exitcode

    def give_up(self) -> None:
        """End it, whatever it does; nothing is checked."""
        if self.is_running:
            self._process.kill()
            self._process.join()

    def last_words(self) -> str:
        """The end of what it wrote."""
        return self.log.read_text(errors="replace")[-3_000:] if self.log.exists() else ""


class Nursery:
    """Starts processes quickly, and leaves none behind.

    Args:
        folder: Where they write what they have to say.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._alive: list[FleetProcess] = []
        self._context = multiprocessing.get_context("forkserver")
        # Module names are found by path: the fork server does not look where pytest looks.
        paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
        self._context.set_forkserver_preload(["support.fleet_warm"])

    def start(self, name: str, target: Callable[..., None], *arguments: Any) -> FleetProcess:
        """Fork a process that calls a function of a module."""
        self._alive = [process for process in self._alive if process.is_running]
        log = self._folder / f"{name}.log"
        process = self._context.Process(
            target=_live, args=(str(log), target, arguments), name=name, daemon=False
        )
        process.start()
        started = FleetProcess(name, process, log)
        self._alive.append(started)
        return started

    def start_command(
        self, name: str, arguments: Sequence[str], variables: Mapping[str, str]
    ) -> FleetProcess:
        """Start the real command, as a user would; it takes as long as it takes."""
        log = self._folder / f"{name}.log"
        command = [sys.executable, "-m", "moescope", *arguments]
        started = FleetProcess(name, _Program(command, variables, log), log)
        self._alive.append(started)
        return started

    def __enter__(self) -> Self:
        """Nothing to open."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        """End every process that still lives."""
        for process in self._alive:
            process.give_up()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _live(log: str, target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """The life of a forked process: what it writes goes to its log, its end is its target's."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    # Who does not end in time is aborted, and then says where it hung.
    faulthandler.enable(all_threads=True)
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    try:
        target(*arguments)
    except Exception:
        traceback.print_exc()
        raise


def wait_for(
    what: str,
    is_so: Callable[[], bool],
    seconds: float,
    pause: float = 0.1,
    start: float | None = None,
) -> float:
    """Wait until something is so; gives the seconds that it took since `start`.

    Raises:
        FleetError: It is not so in time, or was so too late by the time since `start`.
    """
    begin = time.monotonic() if start is None else start
    while not is_so():
        if time.monotonic() - begin > seconds:
            raise FleetError(f"Not within {seconds:g} s: {what}.")
        time.sleep(pause)
    took = time.monotonic() - begin
    if start is not None and took >= seconds:
        raise FleetError(f"Not within {seconds:g} s, but after {took:.1f} s: {what}.")
    return took


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that another process renames into place; empty where there is none."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return found
