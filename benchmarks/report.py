"""Writes docs/performance.md from the results of the last runs."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from benchmarks.figures import Result
from benchmarks.harness import RESULTS
from benchmarks.machine import ROOT
from benchmarks.table import HEAD, profile_cells, rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

PAGE = ROOT / "docs" / "performance.md"
BUSY = 0.5
"""Load average per core from which on figures are marked as measured on a busy machine."""

INTRODUCTION = """
Written by `make bench`; each figure is beside its target and beside what one would use otherwise,
measured in the same run. Repetitions of a figure and of its baselines take turns, so that a slow
minute of the machine hits both: **trust ratios more than rates**. *median* and *best* are over the
repetitions; a ratio is the median of the ratios of neighbouring repetitions, and above 1 where
moescope is better. *met?* compares the median with the target; *best run only* says that the best
repetition reaches it and the median does not. Figures *per core* divide by the CPU time of the
process (all its threads added), others by wall-clock time.
""".strip()


def load_results(folder: Path) -> list[Result]:
    """Results in the order of the page.

    Raises:
        SystemExit: There are none.
    """
    found = [
        Result.from_json(json.loads(path.read_text(encoding="utf-8")))
        for path in sorted(folder.glob("*.json"))
    ]
    if not found:
        raise SystemExit(f"There are no results in {folder}: run `make bench` first.")
    return sorted(found, key=lambda result: result.order)


def page(results: Iterable[Result]) -> str:
    """The whole page."""
    results = list(results)
    lines = ["# Performance", "", INTRODUCTION, ""]
    if any(result.quick for result in results):
        lines += ["**From `--quick` runs: these are no figures.**", ""]
    lines += _machine(results)
    lines += _unmet(results)
    for result in results:
        lines += _section(result)
    return "\n".join(lines).rstrip() + "\n"


def _machine(results: list[Result]) -> Iterator[str]:
    yield "## Measured on"
    yield ""
    for name, value in _facts(results[0].machine):
        yield f"- {name}: {value}"
    commits = list(dict.fromkeys(result.machine["commit"] for result in results))
    yield f"- commit: {', '.join(commits)}"
    unset = sorted({name for result in results for name in result.machine["unset"]})
    if unset:
        yield (
            f"- {' and '.join(f'`{name}`' for name in unset)} were set in the environment, and"
            " removed for the benchmarks: they choose a kernel of numpy's linear algebra"
        )
    yield ""
    yield "| section | when | load average over 1 min, before → after |"
    yield "|---|---|---|"
    for result in results:
        before, after = result.machine["load_before"][0], result.machine["load_after"][0]
        busy = " (busy)" if before > BUSY * result.machine["cores"] else ""
        yield f"| {result.title} | {result.machine['time']} | {before} → {after}{busy} |"
    yield ""
    yield (
        "*Busy*: other programs ran beside the benchmark, and wall-clock figures are worse than"
        " on a machine of their own; figures per core suffer from shared caches."
    )
    yield ""


def _facts(machine: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "machine", f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB"
    yield "system", f"{machine['system']}, Python {machine['python']}"
    yield "packages", ", ".join(f"{name} {number}" for name, number in machine["packages"].items())


def _unmet(results: list[Result]) -> Iterator[str]:
    missed = []
    for result in results:
        figure = ""
        for row in rows(result):
            what = row.what
            if what.startswith("↳"):
                what = f"{figure}, against {what.removeprefix('↳ ')}"
            else:
                figure = what
            if row.met in {"no", "best run only"}:
                reached = row.ratio or row.median
                missed.append(f"- {result.title}: {what}: {reached}, target {row.target}")
    yield "## Targets that are not met"
    yield ""
    yield from missed or ["None."]
    yield ""


def _section(result: Result) -> Iterator[str]:
    yield f"## {result.title}"
    yield ""
    yield result.text.strip()
    yield ""
    if not result.figures:
        return
    yield "| " + " | ".join(HEAD) + " |"
    yield "|---" + "|---:" * (len(HEAD) - 1) + "|"
    for row in rows(result):
        yield "| " + " | ".join(row) + " |"
    yield ""
    notes = [f"- {figure.what}: {figure.note}" for figure in result.figures if figure.note]
    if notes:
        yield from notes
        yield ""
    for profile in result.profiles:
        yield f"### {profile.title}"
        yield ""
        if profile.note:
            yield profile.note
            yield ""
        yield "| stage | calls | CPU time | share | wall-clock time |"
        yield "|---|---:|---:|---:|---:|"
        for cells in profile_cells(profile):
            yield "| " + " | ".join(cells) + " |"
        yield ""


def main() -> None:
    """What `python -m benchmarks.report` does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="from quick runs, to the build folder")
    quick = parser.parse_args().quick
    target = RESULTS / "quick" / "performance.md" if quick else PAGE
    target.write_text(
        page(load_results(RESULTS / ("quick" if quick else "full"))), encoding="utf-8"
    )
    print(f"wrote {target.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
