"""What a figure was measured on."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import UNSET

ROOT = Path(__file__).parents[1]
PACKAGES = ("numpy", "numba", "zstandard", "duckdb", "polars", "pyarrow")


def describe() -> dict[str, Any]:
    """Commit, machine, versions and load, now."""
    return {
        "time": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "load_before": load(),
        "unset": list(UNSET),
    }


def load() -> list[float]:
    """Load averages over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def _cpu() -> str:
    model, features = platform.machine(), ""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            model = value.strip()
        if name.strip() == "flags":
            features = ", ".join(each for each in ("avx2", "avx512f") if each in value.split())
            break
    return f"{model} ({features or 'no AVX2'})"


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(  # noqa: S603 (our own arguments)
            ["git", *arguments],  # noqa: S607 (as a person would)
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
        ).stdout.strip()

    code = ("core", "producers", "processors", "storage", "jobs", "console", "benchmarks")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", *code)
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + (
        " with uncommitted changes" if changed else ""
    )
