"""promtool and amtool, which read rules and settings as Prometheus and Alertmanager do."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FETCHED = ROOT / ".tools" / "prometheus"
PACKAGES = {"promtool": "prometheus", "amtool": "prometheus-alertmanager"}


def run_tool(name: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a tool in the repository's root.

    Where there is none the test is skipped, or fails if services are required.
    """
    fetched = FETCHED / name
    path = str(fetched) if fetched.is_file() else shutil.which(name)
    if path is None:
        what = f"no {name} (Debian package {PACKAGES[name]}): scripts/prometheus_tools.sh"
        if os.environ.get("MOESCOPE_REQUIRE_SERVICES") == "1":
            pytest.fail(what)
        pytest.skip(what)
    return subprocess.run(
        [path, *arguments],
        cwd=ROOT,
        check=False,
        input=stdin,
        capture_output=True,
        text=True,
    )
