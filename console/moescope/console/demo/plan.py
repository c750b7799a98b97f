"""When what is played: the demo's timeline, in event time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from moescope.console.demo.expectations import NOT_PRESENT, RECORDED, Expectation
from moescope.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

SECOND_US: Final = 1_000_000
MINUTE_US: Final = 60 * SECOND_US
MANIFEST: Final = "manifest.json"
RECORDINGS_START_US: Final = 1_798_761_600 * SECOND_US
"""2027-01-01 00:00:00 UTC: event time does not depend on when the demo runs."""

SETTLING_US: Final = 2 * MINUTE_US
"""From the calibration to the first window that it judges: at least 60 s are asked for."""
HEALTH_BETWEEN_BLOCKS: Final = 2
"""Held-out minutes before each incident, so that one alert ends before the next begins."""

HEALTHY: Final = ("healthy_prefill", "healthy_aligned", "healthy_decode")
HELD_OUT: Final = (
    "healthy_prefill_held_out",
    "healthy_decode_held_out",
)
INCIDENTS: Final = tuple(RECORDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One recording of the manifest.

    Attributes:
        first_us: Start of its first minute, in recorded time.
        blocks: Minutes.
        twin: Healthy recording of the same schedule.
    """

    name: str
    first_us: int
    blocks: int
    phases: tuple[str, ...]
    twin: str
    requests: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Playing:
    """A recording, or a part of it, in the demo's event time.

    Attributes:
        start_us: Event time of its first minute.
        part_us: [from, to) of recorded time.
        held_out: It is held-out health.
        expected: What should come out.
    """

    recording: Recording
    start_us: int
    part_us: tuple[int, int]
    held_out: bool = False
    expected: Expectation = NOT_PRESENT

    @property
    def end_us(self) -> int:
        """End of its last minute."""
        return self.start_us + self.part_us[1] - self.part_us[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Everything that is played.

    Attributes:
        start_us: Begin of the healthy history.
        calibration_us: Its end.
        healthy: What is calibrated on.
        afterwards: Held-out health and incidents.
    """

    start_us: int
    calibration_us: int
    healthy: tuple[Playing, ...]
    afterwards: tuple[Playing, ...]

    @property
    def end_us(self) -> int:
        """End of everything."""
        return max((each.end_us for each in self.afterwards), default=self.calibration_us)


def read_recordings(folder: Path) -> dict[str, Recording]:
    """The recordings of a manifest.

    Raises:
        InputError: There is no manifest, or not one that this version reads.
    """
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if manifest["version"] != 1:
            raise InputError(
                f"The manifest {path} has version {manifest['version']}.",
                why="This moescope reads version 1.",
            )
        block_us = int(manifest["block_us"])
        return {
            name: Recording(
                name=name,
                first_us=int(entry["first_event_us"]) // block_us * block_us,
                blocks=int(entry["blocks"]),
                phases=tuple(entry["phases"]),
                twin=str(entry["healthy_twin"] or ""),
                requests=int(entry["requests"]),
                tokens=int(entry["tokens"]),
            )
            for name, entry in manifest["recordings"].items()
        }
    except OSError as error:
        raise InputError(
            f"There are no recordings in {folder}.",
            why=str(error),
            next_step="Run the demo in a checkout, or name the folder with --recordings.",
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"The manifest {path} cannot be read.",
            why=f"{type(error).__name__}: {error}",
            next_step="Restore the file.",
        ) from error


def timeline(recordings: Mapping[str, Recording], start_us: int) -> Timeline:
    """Healthy history, calibration, then incidents with held-out health before each."""
    healthy, now_us = _in_a_row([recordings[n] for n in HEALTHY if n in recordings], start_us)
    calibration_us = now_us
    now_us += SETTLING_US
    held_out = _HeldOut([recordings[name] for name in HELD_OUT if name in recordings])
    afterwards: list[Playing] = []
    for name in INCIDENTS:
        if name not in recordings:
            continue
        recording = recordings[name]
        for playing in held_out.take(recording, HEALTH_BETWEEN_BLOCKS, now_us):
            afterwards.append(playing)
            now_us = playing.end_us
        afterwards.append(_whole(recording, now_us, expected=RECORDED[name]))
        now_us = afterwards[-1].end_us
    for playing in held_out.rest(now_us):
        afterwards.append(playing)
        now_us = playing.end_us
    return Timeline(
        start_us=start_us,
        calibration_us=calibration_us,
        healthy=tuple(healthy),
        afterwards=tuple(afterwards),
    )


def _in_a_row(recordings: Sequence[Recording], now_us: int) -> tuple[list[Playing], int]:
    played = []
    for recording in recordings:
        played.append(_whole(recording, now_us))
        now_us = played[-1].end_us
    return played, now_us


def _whole(recording: Recording, start_us: int, expected: Expectation = NOT_PRESENT) -> Playing:
    part_us = (recording.first_us, recording.first_us + recording.blocks * MINUTE_US)
    return Playing(recording=recording, start_us=start_us, part_us=part_us, expected=expected)


class _HeldOut:
    """Held-out minutes, each played once."""

    def __init__(self, recordings: Sequence[Recording]) -> None:
        self._recordings = recordings
        self._played = {recording.name: 0 for recording in recordings}

    def take(self, incident: Recording, blocks: int, now_us: int) -> Iterator[Playing]:
        """Minutes of health in the incident's phases, as long as there are any."""
        for recording in self._recordings:
            if recording.phases == incident.phases and self._left(recording):
                yield self._part(recording, min(blocks, self._left(recording)), now_us)
                return

    def rest(self, now_us: int) -> Iterator[Playing]:
        """Everything that was not played yet."""
        for recording in self._recordings:
            if self._left(recording):
                playing = self._part(recording, self._left(recording), now_us)
                yield playing
                now_us = playing.end_us

    def _left(self, recording: Recording) -> int:
        return recording.blocks - self._played[recording.name]

    def _part(self, recording: Recording, blocks: int, now_us: int) -> Playing:
        begin_us = recording.first_us + self._played[recording.name] * MINUTE_US
        self._played[recording.name] += blocks
        part_us = (begin_us, begin_us + blocks * MINUTE_US)
        return Playing(recording=recording, start_us=now_us, part_us=part_us, held_out=True)
