"""A processor of a group in a process of its own, warmed, that processes what it is told to."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Self

import psutil

from benchmarks.machine import ROOT
from moescope.core.settings import load_settings

if TYPE_CHECKING:
    from moescope.core.settings import Settings

_DONE = "done"
_STOP = "stop"


class ProcessorProcess:
    """Is `moescope run processor`, again and again, without the start of Python each time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.processor_process"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._cpu = psutil.Process(self._process.pid)

    def begin(self, settings: Settings) -> None:
        """Let it process a topic."""
        options = {
            name: settings[name] for name, origin in settings.origins.items() if origin == "option"
        }
        self._tell(json.dumps(options))

    def end(self) -> None:
        """Let it leave the group.

        Raises:
            AssertionError: It failed.
        """
        self._tell(_STOP)
        assert self._process.stdout is not None  # noqa: S101 (a pipe)
        said = self._process.stdout.readline().strip()
        if said != _DONE:
            message = f"the processor said {said!r}"
            raise AssertionError(message)

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None  # noqa: S101 (a pipe)
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def cpu_seconds(self) -> float:
        """Of the process, up to now."""
        times = self._cpu.cpu_times()
        return float(times.user + times.system)

    def __enter__(self) -> Self:
        """The process."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


def main() -> None:
    """What the process does: a line of options in, one to stop, and one out when it has."""
    # Whatever the processor prints would be taken for an answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    from moescope.console.processor_work import run_processor  # noqa: PLC0415 (after that)
    from moescope.console.warming import warm_finisher  # noqa: PLC0415 - also after that

    warm_finisher()
    while line := sys.stdin.readline():
        settings = load_settings(environment={}, options=json.loads(line))
        stop = threading.Event()
        waiting = threading.Thread(target=_stop_when_told, args=(stop,))
        waiting.start()
        run_processor(settings, stop)
        waiting.join()
        print(_DONE, file=answers, flush=True)


def _stop_when_told(stop: threading.Event) -> None:
    sys.stdin.readline()
    stop.set()


if __name__ == "__main__":
    main()
