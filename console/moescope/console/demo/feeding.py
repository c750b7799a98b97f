"""What fills the demo's batch log: the replay of recordings, and a simulated fleet beside it."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, Self

from moescope.core.errors import InternalError
from moescope.producers.replay import Replay
from moescope.producers.simulator import scenario_named, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection
    from pathlib import Path
    from types import TracebackType

    from moescope.console.demo.plan import Playing
    from moescope.producers.simulator import SimulationTotals

SCENARIO: Final = "demo"
DOMAIN: Final = "recordings"
FLEET_DOMAIN: Final = "fleet"
"""Not `live`: there a node that the roll-up reads late is set aside, and at a hundred times the
speed of its event time that would depend on the machine. Partitions of other domains are waited
for, so that the demo comes out the same each time."""
REPLAY_NODE: Final = "replay"
HEALTHY_SHARE: Final = 0.43
"""Of the fleet's time; its scenario plants nothing before half of it is over."""


class Recorded:
    """Plays recordings on a thread."""

    def __init__(self, root: Path, recordings: Path) -> None:
        self._replay = Replay(root, REPLAY_NODE, domain=DOMAIN)
        self._recordings = recordings

    def play(self, playings: Sequence[Playing], until_us: int) -> None:
        """Play them, and say that nothing earlier than `until_us` follows."""
        for playing in playings:
            recording = playing.recording
            self._replay.play(self._recordings, recording.name, playing.start_us, playing.part_us)
        self._replay.wait_until(until_us)

    def close(self) -> dict[str, int]:
        """Seal the replaying node's partition; returns what was played."""
        self._replay.close()
        return asdict(self._replay.totals)


class Fleet:
    """The simulated fleet, in a process of its own, that waits at the end of its healthy part.

    Args:
        root: Log root.
        nodes: Size of the fleet.
        duration_s: Event time in seconds.
        seed: Of everything random.
        calibration_us: Event time at which its healthy part ends.
    """

    def __init__(
        self, root: Path, *, nodes: int, duration_s: int, seed: int, calibration_us: int
    ) -> None:
        self.healthy_s = int(duration_s * HEALTHY_SHARE)
        self.start_us = calibration_us - self.healthy_s * 1_000_000
        self.seconds = 0
        self._totals: SimulationTotals | None = None
        self._waiting = threading.Event()
        self._ended = threading.Event()
        context = multiprocessing.get_context("spawn")
        self._pipe, far_end = context.Pipe()
        self._process = context.Process(
            target=_simulate,
            args=(root, nodes, duration_s, seed, self.start_us, self.healthy_s, far_end),
            daemon=True,
        )
        self._process.start()
        far_end.close()
        threading.Thread(target=self._listen, name="demo-fleet", daemon=True).start()

    def wait_for_health(self) -> None:
        """Return when the healthy part is written.

        Raises:
            InternalError: The fleet's process ended early.
        """
        self._waiting.wait()
        self._check()

    def go_on(self) -> None:
        """Let the fleet write the rest."""
        self._pipe.send("go on")

    def wait(self) -> SimulationTotals:
        """Return when everything is written.

        Raises:
            InternalError: The fleet's process ended early.
        """
        self._ended.wait()
        self._process.join()
        if self._totals is None:
            self._check()
        assert self._totals is not None  # noqa: S101 (checked just now)
        return self._totals

    def __enter__(self) -> Self:
        """The fleet itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the process, whatever it is doing."""
        if self._process.is_alive():
            self._process.terminate()
        self._process.join()

    def _listen(self) -> None:
        try:
            while self._totals is None:
                message = self._pipe.recv()
                if isinstance(message, int):
                    self.seconds = message
                    if message == self.healthy_s:
                        self._waiting.set()
                else:
                    self._totals = message
        except EOFError:
            pass
        finally:
            self._ended.set()
            self._waiting.set()

    def _check(self) -> None:
        if self._ended.is_set() and self._totals is None:
            self._process.join()
            raise InternalError(
                "The simulated fleet stopped early.",
                why=f"Its process ended with exit code {self._process.exitcode}.",
                next_step="See the messages above; `moescope simulate demo` runs it alone.",
            )


def _simulate(
    root: Path,
    nodes: int,
    duration_s: int,
    seed: int,
    start_us: int,
    healthy_s: int,
    pipe: Connection[Any, Any],
) -> None:
    # Ctrl-C reaches the whole process group; the owner's process decides, and ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def progress(seconds: int, _: SimulationTotals) -> None:
        pipe.send(seconds)
        if seconds == healthy_s:
            pipe.recv()

    totals = simulate(
        scenario_named(SCENARIO),
        root,
        seed=seed,
        duration_s=duration_s,
        nodes=nodes,
        node_prefix="node",
        start_us=start_us,
        domain=FLEET_DOMAIN,
        progress=progress,
    )
    pipe.send(totals)
    pipe.close()


class BackgroundWork:
    """Work on a thread whose failure is raised by `join`."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.ended = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for it."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as failure:  # noqa: BLE001 (raised by join)
            self._failure = failure
        finally:
            self.ended.set()
