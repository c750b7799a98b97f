"""The reference pages of import formats name what the code declares."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from moescope.producers.importers import FORMATS
from moescope.producers.simulator import SCENARIOS

if TYPE_CHECKING:
    from pathlib import Path


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
