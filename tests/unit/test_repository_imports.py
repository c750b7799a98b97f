from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

COMPONENTS = ("core", "producers", "processors", "storage", "jobs", "console")
HEAVY = frozenset(
    {
        "altair", "apscheduler", "duckdb", "jinja2", "kafka", "llvmlite", "matplotlib", "numba",
        "pandas", "polars", "prometheus_client", "pyarrow", "pydantic", "pyspark", "rich", "scipy",
        "starlette", "torch", "transformers", "uvicorn", "vl_convert", "vllm",
    }
)  # fmt: skip
# The help of a command line is drawn by typer, which brings rich and pydantic itself.
DRAWS_HELP = frozenset({"rich", "pydantic"})


def loaded_modules(code: str) -> set[str]:
    """Top-level names in `sys.modules` after `code` ran in a process of its own."""
    listing = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint('LOADED', *sorted(sys.modules))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    last = listing.strip().splitlines()[-1].split()
    assert last[0] == "LOADED"
    return {name.partition(".")[0] for name in last[1:]}


@pytest.mark.parametrize("module", ["moescope.core", "moescope.producers"])
def test_an_inference_engine_loads_nothing_heavy(module: str) -> None:
    """Importing the recorder inside an engine costs numpy and little else."""
    loaded = loaded_modules(f"import {module}")
    assert "moescope" in loaded
    assert loaded & (HEAVY | {"typer", "click"}) == set()


def test_an_engine_finds_by_name_what_is_imported_when_asked_for() -> None:
    """`dir` lists what the pages use, and listing it imports nothing."""
    loaded = loaded_modules("""
import moescope.producers as mp
names = {"Ranks", "Recorder", "RecorderCounters", "RequestFacts", "attach"}
assert names == set(mp.__all__) and names <= set(dir(mp)), dir(mp)
assert "moescope.producers.torch_probe" not in sys.modules
from moescope.producers import torch_probe
assert mp.RequestFacts is torch_probe.RequestFacts and mp.attach is torch_probe.attach
""")
    assert loaded & HEAVY == set()


def test_help_loads_nothing_heavy() -> None:
    """`moescope --help` answers at once: commands import what they need when they run."""
    code = """
sys.argv = ["moescope", "--help"]
from moescope.console.main import main
try:
    main()
except SystemExit as exit:
    assert not exit.code, exit.code
"""
    assert loaded_modules(code) & (HEAVY - DRAWS_HELP) == set()


def project(root: Path) -> dict[str, Any]:
    """pyproject.toml."""
    return tomllib.loads((root / "pyproject.toml").read_text())


def normal(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=!~;\[ ]", name, maxsplit=1)[0]).lower()


def imported_distributions(root: Path, components: tuple[str, ...]) -> set[str]:
    """Distributions that the sources of these components import, functions included."""
    owners = packages_distributions()
    names: set[str] = set()
    for component in components:
        for path in (root / component).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    names.update(alias.name.partition(".")[0] for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                    names.add(node.module.partition(".")[0])
    # _typeshed exists for type checkers only.
    third_party = names - sys.stdlib_module_names - {"moescope", "_typeshed"}
    return {normal(owners[name][0]) if name in owners else normal(name) for name in third_party}


def test_every_import_is_a_declared_dependency(repository_root: Path) -> None:
    """What the code imports, the package installs: nothing works only by luck of the machine."""
    declared = project(repository_root)["project"]
    base = {normal(name) for name in declared["dependencies"]}
    extras = {
        extra: {normal(name) for name in names}
        for extra, names in declared["optional-dependencies"].items()
    }
    node = imported_distributions(repository_root, ("core", "producers"))
    assert node - base - extras.get("torch", set()) == set()
    everything = imported_distributions(repository_root, COMPONENTS)
    assert everything - base - set().union(*extras.values()) == set()


def test_every_declared_dependency_is_imported(repository_root: Path) -> None:
    """Nobody installs, audits and updates what nothing uses."""
    declared = project(repository_root)["project"]
    names = {normal(name) for name in declared["dependencies"]}
    for extra in declared["optional-dependencies"].values():
        names |= {normal(name) for name in extra}
    assert names - imported_distributions(repository_root, COMPONENTS) == set()


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on a copy of the sources."""
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(folder / c) for c in COMPONENTS)},
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def copied_sources(repository_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the components and of pyproject.toml, to plant mistakes in."""
    folder = tmp_path_factory.mktemp("sources")
    shutil.copy(repository_root / "pyproject.toml", folder)
    for component in COMPONENTS:
        shutil.copytree(
            repository_root / component,
            folder / component,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    return folder


PLANTED = {
    "core imports upwards": ("core", "import moescope.storage"),
    "producers import a sibling": ("producers", "import moescope.processors"),
    "processors import the store": ("processors", "import moescope.storage"),
    "storage imports jobs": ("storage", "import moescope.jobs"),
    "jobs import the console": ("jobs", "import moescope.console"),
    "jobs import processors beyond metrics": ("jobs", "import moescope.processors"),
    "jobs import producers": ("jobs", "import moescope.producers"),
    "a producer imports polars in a function": ("producers", "def f():\n    import polars"),
    "core imports typer": ("core", "import typer"),
}


@pytest.mark.parametrize("mistake", sorted(PLANTED))
def test_a_wrong_import_is_caught(copied_sources: Path, mistake: str) -> None:
    """The contracts in pyproject.toml really see the parts of the namespace package."""
    component, code = PLANTED[mistake]
    planted = copied_sources / component / "moescope" / component / "planted_by_a_test.py"
    planted.write_text(code + "\n")
    try:
        outcome = lint_imports(copied_sources)
    finally:
        planted.unlink()
    assert outcome.returncode == 1
    assert "planted_by_a_test" in outcome.stdout


def test_the_contracts_hold(copied_sources: Path) -> None:
    """Without a planted mistake the same check passes, so it is the mistake that it sees."""
    outcome = lint_imports(copied_sources)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
