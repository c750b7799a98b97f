"""Runs the demo: health, calibration by the real job, then incidents; and reads what came of it."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from moescope.console.changes import CreateBaseline, Order
from moescope.console.demo.feeding import BackgroundWork, Fleet, Recorded
from moescope.console.demo.incidents import recorded_stretches, simulated_stretches
from moescope.console.demo.plan import (
    RECORDINGS_START_US,
    SECOND_US,
    Timeline,
    read_recordings,
    timeline,
)
from moescope.console.demo.reading import Facts, read_facts
from moescope.console.demo.scorecard import Outcome, outcomes
from moescope.console.output import note
from moescope.console.owner import Owner
from moescope.console.places import log_root
from moescope.console.progress import progress
from moescope.console.working import carry_out
from moescope.core.errors import InputError, InternalError
from moescope.core.settings import Settings
from moescope.jobs.reports import calibration_report
from moescope.jobs.scheduler.reporting import reports_folder
from moescope.producers.simulator import LABELS_FILE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from moescope.processors.pipeline import PipelineTotals

DEMO_MARK: Final = ".moescope-demo"
AUTHOR: Final = "demo"
BASELINE: Final = "default"
DEMO_SETTINGS: Final = {
    "calibration.baseline": BASELINE,
    "calibration.block": 60,
    "windows.token": ((128, 128), (512, 512)),
    "windows.time": ((5 * SECOND_US, 5 * SECOND_US), (60 * SECOND_US, 60 * SECOND_US)),
    "profiles.lag_ratio": 0.25,
    "export.interval": 3600.0,
    "jobs.enabled": False,
}
"""The demo's blocks are minutes of disjoint requests: it plays hours, not days. It exports once,
at its end, and leaves out the shortest windows, of which there are most."""


SETTINGS_FILE: Final = """\
# What the demo ran with: for commands that work on its data.
[calibration]
baseline = "default"
block = 60

[windows]
token = [128, 512]
time = [5, 60]

[profiles]
lag_ratio = 0.25
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """Everything that the demo has to say.

    Attributes:
        seconds: Wall clock.
        replayed: Totals of the replay; None without recordings.
        simulated: Totals of the fleet.
        processed: Totals of the pipeline.
        calibrated: What the calibration job says of itself.
        outcomes: One per incident, healthy twin and stretch of held-out health.
        facts: Further figures, read from the store.
    """

    seconds: float
    data: str
    replayed: dict[str, int] | None
    simulated: dict[str, Any]
    processed: dict[str, Any]
    calibrated: dict[str, Any]
    reported: dict[str, Any]
    outcomes: tuple[Outcome, ...]
    facts: Facts


def run_demo(
    settings: Settings, recordings: Path | None, *, nodes: int, duration_s: int, seed: int
) -> DemoResult:
    """Run the demo in the data directory of the settings.

    Args:
        settings: Of the file, the environment and the options.
        recordings: Folder with the recordings; None: the simulated fleet only.
        nodes: Simulated nodes.
        duration_s: Event time to simulate.
        seed: Of everything random.

    Raises:
        InputError: The folder holds something that is no demo, or there are no recordings.
        InternalError: The simulator's process broke, or the calibration failed.
    """
    directory = settings.data_directory
    played = timeline(
        {} if recordings is None else read_recordings(recordings), RECORDINGS_START_US
    )
    make_room(directory)
    root = log_root(directory)
    root.mkdir()
    settings = Settings({**settings.values, **DEMO_SETTINGS}, settings.origins)
    (directory / "moescope.toml").write_text(SETTINGS_FILE, encoding="utf-8")
    began = time.monotonic()
    with ExitStack() as running:
        report = running.enter_context(progress("demo"))
        fleet = running.enter_context(
            Fleet(
                root,
                nodes=nodes,
                duration_s=duration_s,
                seed=seed,
                calibration_us=max(
                    played.calibration_us, RECORDINGS_START_US + duration_s * SECOND_US
                ),
            )
        )
        replay = None if recordings is None else Recorded(root, recordings)

        def on_commit(totals: PipelineTotals) -> None:
            report(
                totals.records,
                f"{totals.records:,} batches, {totals.token_windows:,} token windows",
            )

        owner = running.enter_context(Owner(settings, on_commit=on_commit))
        stages = _Stages(owner, fleet, replay, played)
        calibrated = stages.health()
        processed = stages.incidents()
        stretches = [*recorded_stretches(played), *simulated_stretches(root / LABELS_FILE)]
        reported = stages.look()
        with owner.parts.store.cursor() as cursor:
            facts = read_facts(cursor, stretches, settings)
            if facts.checked is not None:
                folder = reports_folder(directory)
                check = facts.checked.to_json()
                calibration_report(cursor, facts.checked.version, folder, check)
            found = tuple(
                replace(each, pulled=bool(facts.few_shot and facts.few_shot["pulled"]))
                for each in outcomes(cursor, stretches)
            )
        simulated = asdict(fleet.wait())
    return DemoResult(
        seconds=time.monotonic() - began,
        data=str(directory),
        replayed=stages.replayed,
        simulated=simulated,
        processed=asdict(processed),
        calibrated=calibrated,
        reported=reported,
        outcomes=found,
        facts=facts,
    )


class _Stages:
    """The demo's stages, in their order."""

    def __init__(
        self, owner: Owner, fleet: Fleet, replay: Recorded | None, played: Timeline
    ) -> None:
        self._owner = owner
        self._fleet = fleet
        self._replay = replay
        self._played = played
        self.replayed: dict[str, int] | None = None

    def health(self) -> dict[str, Any]:
        """Healthy history, then the calibration job on it; returns what that says of itself."""

        def feed() -> None:
            if self._replay is not None:
                self._replay.play(self._played.healthy, self._played.calibration_us)
            self._fleet.wait_for_health()

        self._process(feed)
        self._order(
            CreateBaseline(
                name=BASELINE,
                from_us=min(self._played.start_us, self._fleet.start_us),
                to_us=self._fleet.start_us + self._fleet.healthy_s * SECOND_US,
            ),
            "Healthy by construction: recorded and simulated without incidents.",
        )
        return self._job("calibrate", "The demo's healthy part is over.")

    def incidents(self) -> PipelineTotals:
        """Held-out health and incidents, until everything is processed."""

        def feed() -> None:
            self._fleet.go_on()
            if self._replay is not None:
                self._replay.play(self._played.afterwards, self._played.end_us)
                self.replayed = self._replay.close()
            self._fleet.wait()

        self._process(feed)
        return self._owner.pipeline.totals

    def look(self) -> dict[str, Any]:
        """Detectors, and the calibration report."""
        return {
            name: self._job(name, "The demo has played everything.")
            for name in ("patterns", "report")
        }

    def _process(self, feed: Callable[[], None]) -> None:
        """Roll up while the log is fed, and until everything in it is processed."""
        feeding = BackgroundWork(feed)
        self._owner.pipeline.run(stop=feeding.ended)
        feeding.join()
        self._owner.run(until_idle=True)

    def _job(self, name: str, reason: str) -> dict[str, Any]:
        result = self._owner.parts.runner.run_now(name, author=AUTHOR, reason=reason)
        if result["state"] != "done":
            raise InternalError(
                f"The job {name} did not do its work in the demo.",
                why=str(result),
                next_step="Report it, with the message above.",
            )
        return result

    def _order(self, change: CreateBaseline, reason: str) -> None:
        carry_out(Order(change=change, author=AUTHOR, reason=reason), self._owner.parts)


def make_room(directory: Path) -> None:
    """Empty a folder that an earlier demo made.

    Raises:
        InputError: It holds something else.
    """
    mark = directory / DEMO_MARK
    if directory.exists() and any(directory.iterdir()):
        if not mark.exists():
            raise InputError(
                f"{directory} is not empty, and no demo made it.",
                why="The demo replaces its folder.",
                next_step="Choose another one with --data.",
            )
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    mark.write_text("This folder is replaced by `moescope demo`.\n", encoding="utf-8")


def recordings_here() -> Path | None:
    """The recordings of a checkout; None in an installed wheel, which has none."""
    from pathlib import Path as FilePath

    for parent in FilePath(__file__).resolve().parents:
        folder = parent / "examples" / "tiny_moe" / "recordings"
        if folder.is_dir():
            return folder
    note("no recordings beside this installation: the demo plays the simulated fleet only")
    return None
