"""Results of fault scenarios: tables in Markdown, between marks of a page."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from support.fleet import SETTINGS

from moescope.core.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.fleet_faults import Recoveries
    from support.fleet_judge import Verdict
    from support.fleet_ring import RingRows

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("duckdb", "numpy", "numba", "kafka-python")
TIME_OUTS = (
    "kafka.session_timeout", "kafka.transaction_timeout", "kafka.delivery_timeout",
    "kafka.request_timeout", "kafka.connect_timeout",
)  # fmt: skip
PAGE = "docs/reliability.md"
KAFKA_POM = ROOT / "scripts/kafka_libs/pom.xml"


class Table(NamedTuple):
    """One table: heads and rows of cells."""

    heads: Sequence[str]
    rows: Sequence[Sequence[object]]

    def text(self) -> str:
        """The table in Markdown."""
        lines = ["| " + " | ".join(self.heads) + " |", "|" + "---|" * len(self.heads)]
        lines += ["| " + " | ".join(map(str, row)) + " |" for row in self.rows]
        return "\n".join(lines)


class Result(NamedTuple):
    """What a scenario came to.

    Attributes:
        table: What the page shows.
        is_good: Whether everything was as promised.
        details: More, for whoever ran it.
        load: What the fleet had to carry, in words.
    """

    table: Table
    is_good: bool
    details: str = ""
    load: str = ""


def kill_table(recoveries: Recoveries, verdict: Verdict, rings: RingRows | None) -> Table:
    """Recoveries by fault, and what the end state came to."""
    heads: tuple[str, ...] = (
        "fault", "times", "recovery median, s", "longest, s", "batches", "missing", "sent again",
        "window rows", "assignments", "lost", "counted twice", "tables equal",
    )  # fmt: skip
    rows: list[list[object]] = []
    for fault, seconds in recoveries.seconds.items():
        rows.append([fault, len(seconds), f"{median(seconds):.1f}", f"{max(seconds):.1f}"])
    for number in range(1, len(rows)):
        rows[number] += [""] * 8
    rows[0] += [
        verdict.batches, verdict.missing, verdict.repeated, verdict.windows, verdict.assignments,
        verdict.lost, verdict.twice, _equality(verdict),
    ]  # fmt: skip
    if rings is not None:
        heads += ("rows through a ring", "missing, told as lost", "in two batches")
        rows[0] += [rings.rows, f"{rings.missing}, {rings.told}", rings.twice]
    return Table(heads, rows)


def _equality(verdict: Verdict) -> str:
    if verdict.same_tables:
        return "yes"
    if not verdict.is_good:
        return "NO"
    return f"but for {verdict.marked} marked windows; at most {verdict.late} assignments late"


def circumstances(commit: str, seed: int, scale: float, seconds: float, load: str = "") -> str:
    """Commit, versions, machine and load of a run.

    Args:
        commit: That the code is of; marked where it is not quite.
        seed: Of all that is left to chance.
        scale: Share of the full counts.
        seconds: That it took.
        load: Of `Result`.
    """
    if changes_since(commit):
        commit += " with changes"
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    scaled = "" if scale == 1 else f", at {scale:g} of the full counts"
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, commit {commit}, seed {seed}{scaled}, "
        f"{seconds / 60:.1f} min, Python {platform.python_version()}, {packages}, "
        f"Apache Kafka {kafka_version()}, {os.cpu_count()} cores, {platform.system()} "
        f"{platform.machine()}. {load}{'. ' if load else ''}{time_outs()}."
    )


def time_outs() -> str:
    """Time-outs of the fleet that are not the usual ones."""
    usual = load_settings(environment={}, options={"kafka.bootstrap_servers": "localhost:9092"})
    found = []
    for name in TIME_OUTS:
        what = name.removeprefix("kafka.").removesuffix("_timeout")
        found.append(f"{what} {SETTINGS[name]} ({usual[name]:g})")
    return f"Time-outs in s (usual ones): {', '.join(found)}"


def present_commit() -> str:
    """The commit that is checked out, short."""
    return _git("rev-parse", "--short", "HEAD")


def changes_since(commit: str) -> list[str]:
    """Files that are not as in a commit, or not in it; what Git ignores does not count.

    The page of the results is left out: it changes with the first scenario's.
    """
    changed = _git("diff", "--name-only", commit, "--", ".", f":!{PAGE}").splitlines()
    new = _git("ls-files", "--others", "--exclude-standard", "--", ".", f":!{PAGE}").splitlines()
    return sorted({*changed, *new})


def refusal(commit: str) -> str:
    """Why the page is not written while the code is not that of a commit; empty: it may be."""
    changes = changes_since(commit)
    if not changes:
        return ""
    return (
        f"{PAGE} names the commit that is run, and {len(changes)} files are not as in {commit}"
        f" ({', '.join(changes[:5])}). Commit them, or run less, which writes no page."
    )


def kafka_version() -> str:
    """Version of the broker that the jars are for."""
    text = KAFKA_POM.read_text(encoding="utf-8")
    return text.partition("kafka_2.13</artifactId>")[2].partition("<version>")[2].partition("<")[0]


def write_results(page: Path, scenario: str, text: str) -> None:
    """Replace what stands between a scenario's marks.

    Raises:
        ValueError: The page has no such marks.
    """
    begin, end = f"<!-- results: {scenario} -->", f"<!-- end of results: {scenario} -->"
    whole = page.read_text(encoding="utf-8")
    head, found, rest = whole.partition(begin)
    _, closed, tail = rest.partition(end)
    if not (found and closed):
        message = f"{page.name} has no place for the results of {scenario}."
        raise ValueError(message)
    half = page.with_suffix(".half")
    half.write_text(f"{head}{begin}\n\n{text}\n\n{end}{tail}", encoding="utf-8")
    half.replace(page)


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()
