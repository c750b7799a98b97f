from __future__ import annotations

import importlib
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from moescope.core.kafka import Topic

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
FOLDERS = sorted(path.parent for path in (ROOT / "docs").rglob("README.md"))
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
DOTTED = re.compile(r"`(moescope(?:\.\w+)+)`")
REPOSITORY_FILE = re.compile(
    r"`((?:core|producers|processors|storage|jobs|console|tests|docs|scripts|benchmarks)/[\w./-]+)`"
)
NAMES_THAT_ARE_NO_MODULES = frozenset(
    {"moescope.duckdb", "moescope.toml", *(f"moescope.{topic.value}" for topic in Topic)}
)
"""File names that look like modules."""
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def name_of(path: Path) -> str:
    """A page's path as a test id."""
    return str(path.relative_to(ROOT))


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Files that a page links to, and the heading that is meant."""
    for target, heading in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        if "://" not in target:
            yield page.parent / target, heading.removeprefix("#")


@cache
def headings(page: Path) -> frozenset[str]:
    """Headings of a page as link targets."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    found = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    return frozenset(re.sub(r"[^\w -]", "", line).lower().replace(" ", "-") for line in found)


def resolve(dotted: str) -> object:
    """Import the longest module of a dotted name, and look the rest up in it."""
    parts = dotted.split(".")
    for length in range(len(parts), 1, -1):
        name = ".".join(parts[:length])
        try:
            found: object = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not f"{name}.".startswith(f"{error.name}."):
                raise  # a module that exists, and does not import
            continue
        for attribute in parts[length:]:
            found = getattr(found, attribute)
        return found
    raise ModuleNotFoundError(dotted)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    """A reader who follows a link arrives."""
    missing = [str(target) for target, _ in links(page) if not target.exists()]
    assert missing == []
    for target, heading in links(page):
        if heading and target.suffix == ".md":
            assert heading in headings(target), (target, heading)


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_each_page_is_linked_from_the_readme_of_its_folder(folder: Path) -> None:
    """A page that no list shows is never read."""
    linked = {target.resolve() for target, _ in links(folder / "README.md")}
    pages = {
        page
        for page in PAGES
        if page.name != "README.md"
        and next(parent for parent in page.parents if parent in FOLDERS) == folder
    }
    assert {name_of(page) for page in pages - linked} == set()


def test_modules_and_functions_that_pages_name_exist() -> None:
    """Who looks for the code behind a sentence finds it under that name."""
    named = {
        dotted: name_of(page)
        for page in PAGES
        for dotted in DOTTED.findall(page.read_text(encoding="utf-8"))
        if dotted not in NAMES_THAT_ARE_NO_MODULES
    }
    assert len(named) > len(PAGES)
    for dotted, page in named.items():
        try:
            resolve(dotted)
        except (AttributeError, ModuleNotFoundError) as error:
            pytest.fail(f"{page} names {dotted}: {error}")


def test_files_that_pages_name_exist() -> None:
    """A path in a sentence is a path in the repository."""
    missing = {
        (name_of(page), path)
        for page in PAGES
        for path in REPOSITORY_FILE.findall(page.read_text(encoding="utf-8"))
        if not (ROOT / path).exists()
    }
    assert missing == set()
