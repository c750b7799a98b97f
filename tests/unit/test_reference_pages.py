from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from moescope.core import errors
from moescope.core.kafka import declared_topics
from moescope.core.kafka.broker_settings import BROKER_SETTINGS
from moescope.core.metrics import METRICS
from moescope.core.settings import SETTINGS, load_settings
from moescope.core.tables import TABLES, VIEWS
from moescope.producers.vllm_plugin.settings import DIRECTORY_VARIABLE, plugin_settings

if TYPE_CHECKING:
    from pathlib import Path

UP_TO_DATE, OUT_OF_DATE = 0, 1


def generate(root: Path, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the generator as `make docs` and `make check` do."""
    return subprocess.run(
        [sys.executable, "scripts/generate_reference.py", "--folder", folder, *options],
        cwd=root,
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def generated(repository_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Freshly generated pages, not to be changed."""
    folder = tmp_path_factory.mktemp("reference")
    outcome = generate(repository_root, folder)
    assert outcome.returncode == 0, outcome.stderr
    return folder


@pytest.fixture
def pages(generated: Path, tmp_path: Path) -> Path:
    """A copy of them for one test."""
    return shutil.copytree(generated, tmp_path / "reference")


def test_fresh_pages_pass_the_check(pages: Path, repository_root: Path) -> None:
    """Generating twice gives the same text, so the check only fails for a reason."""
    outcome = generate(repository_root, pages, "--check")
    assert outcome.returncode == UP_TO_DATE, outcome.stdout


def test_a_changed_page_fails_the_check(pages: Path, repository_root: Path) -> None:
    """A page edited by hand is noticed, and the difference is shown."""
    with (pages / "settings.md").open("a") as page:
        page.write("edited by hand\n")
    outcome = generate(repository_root, pages, "--check")
    assert outcome.returncode == OUT_OF_DATE
    assert "-edited by hand" in outcome.stdout


def test_a_missing_page_fails_the_check(pages: Path, repository_root: Path) -> None:
    """A new declaration without its page does not pass."""
    (pages / "metrics.md").unlink()
    assert generate(repository_root, pages, "--check").returncode == OUT_OF_DATE


def test_pages_written_by_hand_are_left_alone(pages: Path, repository_root: Path) -> None:
    """Only pages with the marker belong to the generator; a stale one goes away."""
    marker = (pages / "errors.md").read_text().splitlines()[0]
    (pages / "by-hand.md").write_text("# By hand\n")
    (pages / "stale.md").write_text(f"{marker}\n\n# Gone from the code\n")
    assert generate(repository_root, pages, "--check").returncode == OUT_OF_DATE
    assert generate(repository_root, pages).returncode == 0
    assert (pages / "by-hand.md").read_text() == "# By hand\n"
    assert not (pages / "stale.md").exists()


def test_every_declaration_has_a_row(pages: Path) -> None:
    """Nothing that a user can set or read is missing from the reference."""
    settings, metrics = (pages / "settings.md").read_text(), (pages / "metrics.md").read_text()
    assert [s.name for s in SETTINGS if f"| `{s.name}` | `{s.variable}` |" not in settings] == []
    assert [m.name for m in METRICS if f"| `{m.name}` |" not in metrics] == []
    relations = (pages / "tables.md").read_text()
    names = [*(declared.name for declared in TABLES), *(view.name for view in VIEWS)]
    assert [name for name in names if f"### `{name}`\n" not in relations] == []
    commands = (pages / "commands.md").read_text()
    assert "## `moescope demo`\n\n```text\nUsage: moescope demo [OPTIONS]" in commands


def test_defaults_of_the_plugin_are_those_that_it_takes(pages: Path) -> None:
    """Setting a variable to the default that its row names changes nothing."""
    page = (pages / "settings.md").read_text().partition("## Producers")[2]
    cells = [line.split(" | ") for line in page.splitlines() if line.startswith("| `MOESCOPE_")]
    rows = {name.strip("| `"): default.strip("` ") for name, _, default, _ in cells}
    folder = {DIRECTORY_VARIABLE: "ring"}
    named = {name: default for name, default in rows.items() if default}
    assert {"MOESCOPE_RING_MIB", "MOESCOPE_FIDELITY", "MOESCOPE_WEIGHTS"} <= named.keys()
    assert plugin_settings(folder | named) == plugin_settings(folder)
    assert {"MOESCOPE_CPU_BUDGET", "MOESCOPE_CONTENT_KEY_FILE"} <= rows.keys() - named.keys()


def test_topics_page_holds_what_a_broker_is_asked_for(pages: Path) -> None:
    """Whoever sets a broker up by hand finds every topic and every setting."""
    page = (pages / "topics.md").read_text()
    topics = declared_topics(load_settings(environment={}))
    assert [s.name for s in topics if f"| `{s.name}` | {s.partitions} |" not in page] == []
    lines = [f"{name}={value}" for name, value in BROKER_SETTINGS.items()]
    assert [line for line in lines if f"\n{line}\n" not in page] == []


def test_errors_are_those_that_python_sees(pages: Path) -> None:
    """Exit codes are inherited on the page as they are in the code."""
    rows = [
        [cell.strip(" `") for cell in line.split("|")[1:-1]]
        for line in (pages / "errors.md").read_text().splitlines()
        if line.startswith("| `")
    ]
    core = [row for row in rows if row[1] == "moescope.core.errors"]
    assert sorted(row[0] for row in core) == sorted(
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.MoescopeError)
    )
    for name, _, exit_code, retriable, _ in core:
        kind = getattr(errors, name)
        assert exit_code == str(kind.exit_code)
        assert retriable == ("yes" if kind.retriable else "no")


def test_links_of_the_documentation_lead_somewhere(repository_root: Path) -> None:
    """A page that is renamed or was never written leaves no dead link behind."""
    dead = []
    for page in (repository_root / "docs").rglob("*.md"):
        for piece in page.read_text().split("](")[1:]:
            target = piece.split(")")[0].split("#")[0]
            if target and "://" not in target and not (page.parent / target).exists():
                dead.append(f"{page.relative_to(repository_root)} -> {target}")
    assert dead == []
