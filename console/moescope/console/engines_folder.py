"""Whether engines record into the folder that the agent reads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from moescope.console.findings import Finding, Outcome
from moescope.console.places import ring_directory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from moescope.core.settings import Settings


def check_engines_folder(
    settings: Settings, environment: Mapping[str, str] = os.environ
) -> Iterator[Finding]:
    """Two folders that look like one: rings fill in the first, the agent waits at the second."""
    from moescope.producers.vllm_plugin.settings import DIRECTORY_VARIABLE

    given = environment.get(DIRECTORY_VARIABLE, "").strip()
    if not given:
        return
    rings = ring_directory(settings.data_directory)
    if Path(given).resolve() == rings.resolve():
        yield Finding("engines' folder", Outcome.OK, f"{DIRECTORY_VARIABLE} is {rings}")
        return
    yield Finding(
        "engines' folder",
        Outcome.WARNING,
        f"{DIRECTORY_VARIABLE} is {given}, and an agent with --data {settings.data_directory} "
        f"reads {rings}: it ships nothing of an engine with this environment",
        f"Set {DIRECTORY_VARIABLE}={rings.absolute()}, make {rings} a link to "
        f"{Path(given).absolute()}, or give the agent the data directory that it is in.",
    )
