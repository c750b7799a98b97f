"""The rings of this machine, as `moescope doctor` looks at them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.console.findings import Finding, Outcome
from moescope.console.places import ring_directory
from moescope.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from moescope.core.settings import Settings

_CHECK = "rings"


def check_rings(settings: Settings) -> Iterator[Finding]:
    """Whether engines record here, and what they record can be read."""
    from moescope.producers.recording.switch import DISABLE_FILE
    from moescope.producers.ring.layout import DAMAGED_SUFFIX, RING_SUFFIX

    rings = ring_directory(settings.data_directory)
    if not rings.exists():
        return
    found = sorted(rings.glob(f"*{RING_SUFFIX}"))
    faults = [fault for path in found if (fault := _fault(path)) is not None]
    yield from faults
    for path in sorted(rings.glob(f"*{DAMAGED_SUFFIX}")):
        yield Finding(
            _CHECK,
            Outcome.WARNING,
            f"the agent set {path} aside: nothing of it is shipped any more",
            "Its log says why. Restart the engine that writes it, if it still runs: it makes a "
            "new ring. Then remove the file.",
        )
    switch = rings / DISABLE_FILE
    if switch.exists():
        yield Finding(
            _CHECK,
            Outcome.WARNING,
            f"recording is switched off by the file {switch}",
            "Remove it to record again.",
        )
    if sound := len(found) - len(faults):
        yield Finding(_CHECK, Outcome.OK, f"{sound} in {rings}")
    elif not found:
        yield Finding(
            _CHECK,
            Outcome.WARNING,
            f"no engine has a ring in {rings}",
            "If one runs that should be recorded: its log says why it is not, in lines with "
            "`moescope`. Does it record into this folder?",
        )


def _fault(path: Path) -> Finding | None:
    """Why an agent would not ship a ring, if so."""
    from moescope.producers.profile import Profile
    from moescope.producers.ring.reader import RingReader

    try:
        ring = RingReader(path, is_looking=True)
        try:
            ring.check(Profile.from_bytes(ring.profile).shape)
        finally:
            ring.close()
    except InputError as error:
        told = f"{path}: {error.what} {error.why}".rstrip()
        return Finding(_CHECK, Outcome.FAILURE, told, error.next_step)
    except FileNotFoundError:  # all of it was shipped a moment ago
        return None
    except PermissionError as error:
        told = f"{path}: {error.strerror}"
        return Finding(_CHECK, Outcome.WARNING, told, "Run this as the agent's user.")
    return None
