from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

COMPONENTS = ("core", "producers", "processors", "storage", "jobs", "console")


@pytest.fixture(scope="session")
def distributions(repository_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, built once."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", folder],
        cwd=repository_root,
        check=True,
        capture_output=True,
    )
    return folder


@pytest.fixture(scope="session")
def wheel(distributions: Path) -> dict[str, bytes]:
    """Name and content of each file of the wheel."""
    (path,) = distributions.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="session")
def sdist(distributions: Path) -> list[str]:
    """Names in the sdist, without its top folder."""
    (path,) = distributions.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        return [name.partition("/")[2] for name in archive.getnames()]


def test_wheel_holds_every_source_file(wheel: dict[str, bytes], repository_root: Path) -> None:
    """What is tested in the checkout is what gets installed."""
    expected = {
        str(path.relative_to(repository_root / component))
        for component in COMPONENTS
        for path in (repository_root / component / "moescope").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected
    assert {name for name in wheel if name.startswith("moescope/")} == expected


def test_wheel_holds_nothing_else(wheel: dict[str, bytes]) -> None:
    """An installed moescope puts one name into site-packages, and no stray __init__.py."""
    tops = {name.partition("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"moescope"}
    assert "moescope/__init__.py" not in wheel
    assert {f"moescope/{component}/py.typed" for component in COMPONENTS} <= set(wheel)


def test_wheel_says_what_it_is(wheel: dict[str, bytes], repository_root: Path) -> None:
    """Name, licence, command and extras are what the front page promises."""
    (info,) = {name.partition("/")[0] for name in wheel if ".dist-info/" in name}
    metadata = message_from_bytes(wheel[f"{info}/METADATA"])
    assert metadata["Name"] == "moescope"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert {"client", "server"} <= set(metadata.get_all("Provides-Extra", []))
    assert wheel[f"{info}/licenses/LICENSE"] == (repository_root / "LICENSE").read_bytes()
    assert b"moescope = moescope.console.main:main" in wheel[f"{info}/entry_points.txt"]


def test_sdist_holds_what_builds_the_wheel_and_no_more(sdist: list[str]) -> None:
    """Research data, tests and caches of a checkout do not travel to an index."""
    tops = {name.partition("/")[0] for name in sdist}
    assert tops == {
        *COMPONENTS, ".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md",
        "pyproject.toml",
    }  # fmt: skip
    assert [name for name in sdist if "__pycache__" in name or name.endswith(".pyc")] == []
