from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMPONENTS = ("core", "producers", "processors", "storage", "jobs", "console")
RUN_AS_MODULE = "console/moescope/__main__.py"
"""What `python -m moescope` runs: the one module beside the sub-packages."""
README_LINES = 150
COMPONENT_README_LINES = 10
IGNORE = re.compile(
    r"(ruff: )?noqa(: *[A-Z]+[0-9]+(, *[A-Z]+[0-9]+)*)?"
    r"|type: ignore(\[[a-z, -]*\])?"
    r"|pragma: no cover"
)
"""What keeps a tool from telling of a line, or of a file."""


def tracked_files(root: Path) -> list[Path]:
    """Files that git tracks or would take, so that a new file is looked at before its commit."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [root / name for name in listing.split("\0") if name and (root / name).is_file()]


@pytest.fixture(scope="module")
def files(repository_root: Path) -> list[Path]:
    """What belongs to the repository."""
    return tracked_files(repository_root)


@pytest.fixture(scope="module")
def texts(files: list[Path]) -> dict[Path, str]:
    """The text files among them."""
    found = {}
    for path in files:
        data = path.read_bytes()
        if b"\0" not in data:
            found[path] = data.decode(errors="replace")
    return found


@pytest.mark.parametrize("component", COMPONENTS)
def test_namespace_has_no_init(repository_root: Path, component: str) -> None:
    """An __init__.py beside the sub-package would hide every other component from import."""
    assert not (repository_root / component / "moescope" / "__init__.py").exists()


@pytest.mark.parametrize("component", COMPONENTS)
def test_component_is_typed_and_described(repository_root: Path, component: str) -> None:
    """Users' type checkers need py.typed; people need to know what a folder is for."""
    package = repository_root / component / "moescope" / component
    assert (package / "py.typed").is_file()
    assert (package / "__init__.py").is_file()
    readme = (repository_root / component / "README.md").read_text().splitlines()
    assert 0 < len(readme) <= COMPONENT_README_LINES
    assert any("May import" in line for line in readme)


def test_every_source_folder_is_a_package(files: list[Path], repository_root: Path) -> None:
    """A folder without __init__.py would be left out by tools that look for packages."""
    folders = {
        path.parent
        for path in files
        if path.suffix == ".py"
        and path.relative_to(repository_root).parts[0] in COMPONENTS
        and path != repository_root / RUN_AS_MODULE
    }
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_no_machine_paths_and_no_registry_hosts(
    texts: dict[Path, str], repository_root: Path
) -> None:
    """The repository works anywhere: it names no folder of one machine and no package index."""
    patterns = [
        "/" + "work/",
        "/" + "root/",
        "/" + r"home/(?!moescope\b)\w+",
        "pypi" + r"\.org",
        "pythonhosted" + r"\.org",
        "repo1?" + r"\.maven\.org",
        "registry" + r"\.npmjs\.org",
        "--(extra-)?index" + r"-url[ =]\S*://",
    ]
    forbidden = re.compile("|".join(patterns))
    hits = [
        f"{path.relative_to(repository_root)}:{number}: {line.strip()[:120]}"
        for path, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        if forbidden.search(line)
    ]
    assert hits == []


def test_requirement_files_are_hashed_and_without_addresses(repository_root: Path) -> None:
    """A lock file pins content, and leaves the choice of the index to whoever installs."""
    locks = sorted((repository_root / "requirements").glob("*.txt"))
    assert [lock.stem for lock in locks] == ["base", "dev", "server", "uv"]
    for lock in locks:
        text = lock.read_text().replace("\\\n", " ")
        assert "://" not in text
        assert not re.search(r"^\s*(-i|-f|--index|--extra-index|--find-links)", text, re.MULTILINE)
        requirements = [line for line in text.splitlines() if re.match(r"[A-Za-z0-9]", line)]
        assert requirements
        for requirement in requirements:
            assert re.search(r"^[\w.\[\]-]+==\S+", requirement), requirement
            assert "--hash=sha256:" in requirement, requirement


def pins(lock: Path) -> set[str]:
    """`name==version ; marker` of each requirement."""
    return {line.rstrip(" \\") for line in lock.read_text().splitlines() if "==" in line[:60]}


def test_requirement_files_agree(repository_root: Path) -> None:
    """What is tested (dev) is what the server and a node install, version for version."""
    locks = repository_root / "requirements"
    names = {pin.split(" ")[0] for pin in pins(locks / "dev.txt")}
    for smaller in ("base", "server"):
        found = {pin.split(" ")[0] for pin in pins(locks / f"{smaller}.txt")}
        assert found
        assert found - names == set()


def test_readme_is_short(repository_root: Path) -> None:
    """The front page is read whole or not at all."""
    assert len((repository_root / "README.md").read_text().splitlines()) <= README_LINES


def test_licence_is_the_whole_apache_text(repository_root: Path) -> None:
    """The licence named in the package is the one in the repository, complete."""
    text = (repository_root / "LICENSE").read_text()
    assert "Apache License\n                           Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    sections = re.findall(r"^   (\d)\. ", text, re.MULTILINE)
    assert sections == [str(number) for number in range(1, 10)]


def test_module_names_of_tests_are_unique(files: list[Path], repository_root: Path) -> None:
    """Two test modules of one name cannot be told apart in a report."""
    names = [
        path.name for path in files if path.is_relative_to(repository_root / "tests")
        and path.name.startswith("test_")
    ]  # fmt: skip
    assert sorted(names) == sorted(set(names))


def functions_under_test(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Test functions of a module, methods included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test_"
        ):
            yield node


def test_every_test_says_what_it_protects(files: list[Path], repository_root: Path) -> None:
    """A test without a sentence is deleted by the next person whom it annoys."""
    silent = [
        f"{path.relative_to(repository_root)}:{function.lineno} {function.name}"
        for path in files
        if path.is_relative_to(repository_root / "tests") and path.name.startswith("test_")
        for function in functions_under_test(path)
        if not ast.get_docstring(function)
    ]
    assert silent == []


def ignores_without_reason(text: str) -> Iterator[int]:
    """Lines of a module where the comment that ignores something says nothing else."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_ignore = token.type == tokenize.COMMENT and IGNORE.search(token.string)
        if is_ignore and not re.search(r"[A-Za-z]{2}", IGNORE.sub("", token.string)):
            yield token.start[0]


@pytest.mark.parametrize(
    ("line", "is_silent"),
    [
        ("x = 1  # noqa", True),
        ("x = 1  # noqa: E741", True),
        ("x = 1  # noqa: E741, PLR2004", True),
        ("x = 1  # noqa: E741 - ", True),
        ("x = 1  # noqa: E741 - as in the paper", False),
        ("x = 1  # noqa: E741 (as in the paper)", False),
        ("# ruff: noqa: T201", True),
        ("# ruff: noqa: T201 - a script prints", False),
        ("x = 1  # type: ignore[misc, arg-type]", True),
        ("x = 1  # type: ignore[misc]  # noqa: E741", True),
        ("x = 1  # type: ignore[misc]  # noqa: E741 - a test", False),
        ("x = 1  # type: ignore[misc]  # untyped", False),
        ("x = 1  # pragma: no cover", True),
        ("x = 1  # pragma: no cover - only on Windows", False),
        ("x = '# noqa: E741'", False),
        ("x = 1  # a plain comment", False),
    ],
)
def test_ignores_without_reason_are_found(line: str, is_silent: bool) -> None:
    """The rule below is only as good as what it takes for a reason."""
    assert list(ignores_without_reason(f"y = 0\n{line}\n")) == ([2] if is_silent else [])


def test_every_ignore_says_why(texts: dict[Path, str], repository_root: Path) -> None:
    """Nobody can tell an ignore that is needed from one that hides a fault without its reason."""
    modules = {
        path.relative_to(repository_root).as_posix(): text
        for path, text in texts.items()
        if path.suffix in {".py", ".pyi"}
    }
    silent = [
        f"{name}:{number}"
        for name, text in modules.items()
        for number in ignores_without_reason(text)
    ]
    assert silent == []


def test_every_rule_that_is_switched_off_says_why(repository_root: Path) -> None:
    """A rule that a folder need not keep has its reason beside it, as a line's ignore has."""
    text = (repository_root / "pyproject.toml").read_text()
    rules = re.findall(
        r'^  "[A-Z]+[0-9]*",.*', text[text.index("[tool.ruff.lint]") :], re.MULTILINE
    )
    assert rules
    assert [line for line in rules if not re.search(r'",\s+# \w', line)] == []
