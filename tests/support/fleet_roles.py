"""What the processes of a fleet do: moescope's own commands, and the load."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from support.fleet_disk import enter_disk
from support.fleet_load import LoadWriter

from moescope.core import clock as clocks
from moescope.core.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from support.fleet_load import Machine

_right_now_us = SystemClock.now_us


def set_clock_wrong(error_us: int) -> None:
    """Make this process's wall clock wrong."""

    def now_us(self: SystemClock) -> int:
        return _right_now_us(self) + error_us

    clocks.SystemClock.now_us = now_us  # type: ignore[method-assign]  # a clock gone wrong


def run_command(
    arguments: Sequence[str],
    variables: Mapping[str, str],
    clock_error_us: int = 0,
    disk_holder: int = 0,
) -> None:
    """Run `moescope` as the command line would, in this process.

    Args:
        arguments: Behind `moescope`.
        variables: Of the environment.
        clock_error_us: How wrong its clock is.
        disk_holder: Process whose small disk it sees; 0: none.
    """
    from moescope.console.main import main  # noqa: PLC0415 (imported when it is called)

    os.environ.update(variables)
    if disk_holder:
        enter_disk(disk_holder)
    if clock_error_us:
        set_clock_wrong(clock_error_us)
    sys.argv = ["moescope", *arguments]
    main()


def write_load(machine: Machine, root: Path, start_us: int, stage_file: Path) -> None:
    """Write a load: the first SIGTERM ends it, each one allows one kind of heartbeats.

    Args:
        machine: What is written.
        root: Log root of the machine.
        start_us: When the load begins.
        stage_file: Says how many kinds of heartbeats are written.
    """
    asked: list[int] = []

    def ask(number: int, _: Any) -> None:
        asked.append(number)

    def tell(stage: int) -> None:
        half = stage_file.with_suffix(".half")
        half.write_text(str(stage))
        half.replace(stage_file)

    signal.signal(signal.SIGTERM, ask)
    if machine.clock_error_us:
        set_clock_wrong(machine.clock_error_us)
    LoadWriter(machine, root, SystemClock(), start_us).run(lambda: len(asked), tell)
