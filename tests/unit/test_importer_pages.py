"""The reference pages of import formats name what the code declares."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from moescope.core.metrics import METRICS, Needs
from moescope.jobs.reports.comparison.schema import Stability
from moescope.producers.importers import FORMATS
from moescope.producers.simulator import SCENARIOS

if TYPE_CHECKING:
    from pathlib import Path

LOST = {
    "times": {Needs.POSITIONS, Needs.REQUESTS, Needs.PASSES},
    "scores": {Needs.SCORES},
    "rank order": {Needs.RANKS},
    "drops": {Needs.DROPS},
    "placement": {Needs.PLACEMENT},
}
"""What a metric lacks where a format lacks something; passes are told apart by their times, too."""


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_option_is_on_the_page_of_its_format_and_no_other(
    name: str, repository_root: Path
) -> None:
    """An option that no page names does not exist for its users."""
    page = repository_root / "docs" / "reference" / "importers" / f"{name}.md"
    table = page.read_text(encoding="utf-8").split("| option | default |")[1].split("\n\n")[0]
    first_cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    documented = set(re.findall(r"`([\w.]+)`", " ".join(first_cells)))
    assert documented == {option.name for option in FORMATS[name].options}


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_lost_metrics_are_those_of_the_registry(name: str, repository_root: Path) -> None:
    """Who looks for a metric under the name of a page finds it, and each that he will not have."""
    page = repository_root / "docs" / "reference" / "importers" / f"{name}.md"
    _, *tables = page.read_text(encoding="utf-8").split("| not in the file | consequence |\n")
    assert bool(tables) is (name not in {"jsonl", "counts-json"})  # these hold what one puts in
    for line in tables[0].split("\n\n")[0].splitlines()[1:] if tables else []:
        _, lost, consequence, _ = line.split("|")
        named = set(re.findall(r"`(.+?)`", consequence)) - set(Stability.__annotations__)
        lacking = set().union(*(needs for word, needs in LOST.items() if word in lost))
        assert named <= {metric.name for metric in METRICS}
        assert not lacking or named == {each.name for each in METRICS if each.needs in lacking}


def test_the_how_to_names_every_format(repository_root: Path) -> None:
    """It is where people look first."""
    page = (repository_root / "docs/how-to/import-routing.md").read_text(encoding="utf-8")
    assert all(f"(../reference/importers/{name}.md)" in page for name in FORMATS)


def test_the_simulator_page_names_every_scenario(repository_root: Path) -> None:
    """Scenario names are an interface of the command line."""
    page = (repository_root / "docs/explanation/simulator.md").read_text(encoding="utf-8")
    families = ("engine_fault_", "fixed_system_prompt_")
    for name in SCENARIOS:
        base = name.removesuffix("_twin")
        shown = next((family for family in families if base.startswith(family)), base)
        assert shown in page
