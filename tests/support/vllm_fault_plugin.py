"""A plugin of vLLM that breaks what moescope's plugin sees, as a file says: for tests of chaos.

It runs inside the engine. After each pass it reads the word in the file that `TEST_FAULTS_FILE`
names, and spoils the buffers before moescope reads them; it never touches what the engine uses.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

FILE_VARIABLE = "TEST_FAULTS_FILE"
IDS_BEYOND = "ids-beyond"
NEGATIVE_IDS = "negative-ids"
ZEROS = "zeros"
FEWER_ROWS = "fewer-rows"
MISSED_LAYER = "missed-layer"
ERROR = "error"
NOT_AN_EXPERT = 10_000


def register() -> None:
    """Called by vLLM."""
    from moescope.producers.vllm_plugin.capture import RoutingCapture  # noqa: PLC0415 - not before vLLM asks

    if getattr(RoutingCapture, "is_broken_by_test", False):
        return
    file = Path(os.environ[FILE_VARIABLE])
    disarm = RoutingCapture.disarm

    def disarm_and_break(capture: Any) -> None:
        disarm(capture)
        if file.exists():
            _break(capture, file.read_text(encoding="ascii"))

    RoutingCapture.disarm = disarm_and_break  # type: ignore[method-assign,assignment]  # breaking in is the point
    RoutingCapture.is_broken_by_test = True  # type: ignore[attr-defined]  # the mark of the test


def _break(capture: Any, fault: str) -> None:
    rows = capture._rows  # noqa: SLF001 (breaking in is the point)
    if fault == IDS_BEYOND:
        capture.ids[:, 1, 0] = NOT_AN_EXPERT
    elif fault == NEGATIVE_IDS:
        capture.ids[:, 2, 1] = -7
    elif fault == ZEROS:
        capture.ids.zero_()
    elif fault == FEWER_ROWS:
        capture._rows = [count - 1 for count in rows]  # noqa: SLF001 - breaking in is the point
    elif fault == MISSED_LAYER:
        rows[3] = -1
    elif fault == ERROR:
        del capture._rows  # noqa: SLF001 (every later look at it fails)


def install(folder: Path) -> tuple[Path, ...]:
    """Make the plugin known to vLLM; returns what has to be on `sys.path`."""
    information = folder / "moescope_test_faults-0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: moescope-test-faults\nVersion: 0\n", encoding="ascii"
    )
    (information / "entry_points.txt").write_text(
        f"[vllm.general_plugins]\ntest_faults = {Path(__file__).stem}:register\n", encoding="ascii"
    )
    return (folder, Path(__file__).parent)
