"""Dockerfile: no image is built here, so its lines are compared with what they rely on."""

from __future__ import annotations

import fnmatch
import re
import tomllib
from pathlib import Path
from typing import NamedTuple

import dockerfile
import pytest
from support.deployment import parse_command, settings_of

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


class Line(NamedTuple):
    """An instruction of the Dockerfile, in its stage."""

    stage: str
    word: str
    flags: tuple[str, ...]
    values: tuple[str, ...]


def lines() -> list[Line]:
    """Instructions, as the builder's own parser reads them."""
    stage, found = "", []
    for each in dockerfile.parse_file(str(ROOT / "Dockerfile")):
        if each.cmd.upper() == "FROM":
            assert each.value[1].upper() == "AS", "a stage without a name"
            stage = each.value[2]
        found.append(Line(stage, each.cmd.upper(), each.flags, each.value))
    return found


def of_stage(stage: str, word: str) -> list[Line]:
    """Instructions of one kind in a stage."""
    return [line for line in lines() if (line.stage, line.word) == (stage, word)]


def copied() -> list[str]:
    """Paths that come from the build context."""
    return [
        path
        for line in lines()
        if line.word == "COPY" and not any(flag.startswith("--from") for flag in line.flags)
        for path in line.values[:-1]
    ]


def test_stages_come_before_what_uses_them() -> None:
    """A stage is built from one that is above it, or from the base image."""
    known = {"${PYTHON_IMAGE}"}
    for line in lines():
        if line.word == "FROM":
            assert line.values[0] in known
            known.add(line.stage)
        for flag in line.flags:
            if flag.startswith("--from="):
                assert flag.removeprefix("--from=") in known
    assert lines()[-1].stage == "server", "the default image is the last stage"


def test_what_is_copied_is_what_the_wheel_needs() -> None:
    """The wheel is built from these paths alone: a component that is left out breaks it."""
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    needed = {package.split("/")[0] for package in wheel}
    needed |= {PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]}
    assert needed <= set(copied())
    assert "pyproject.toml" in copied()
    for path in copied():
        assert (ROOT / path).exists(), path


def test_the_build_context_holds_what_is_copied_and_little_else() -> None:
    """Everything is ignored but what is copied: no data or secret gets into a layer."""
    text = (ROOT / ".dockerignore").read_text(encoding="utf-8")
    rules = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert rules[0] == "*"
    taken = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    assert taken == set(copied())
    ignored_again = rules[1 + len(taken) :]
    assert any(fnmatch.fnmatch("core/moescope/__pycache__", rule) for rule in ignored_again)


def test_python_is_one_that_is_tested() -> None:
    """The hashes are for the versions that the project declares, from a tag that says which."""
    (image,) = [line.values[0] for line in lines() if line.values[0].startswith("PYTHON_IMAGE")]
    version = re.fullmatch(r"PYTHON_IMAGE=python:(\d+\.\d+)-slim-\w+", image)
    assert version
    classifier = f"Programming Language :: Python :: {version[1]}"
    assert classifier in PROJECT["project"]["classifiers"]


@pytest.mark.parametrize(("stage", "requirements"), [("server", "server"), ("agent", "base")])
def test_only_hashed_packages_are_installed(stage: str, requirements: str) -> None:
    """What is in the image is what was tested, and the wheel itself comes from the build stage."""
    commands = " && ".join(line.values[0] for line in of_stage(f"{stage}-environment", "RUN"))
    installs = re.findall(r"pip install ([^&]+)", commands)
    assert [install.split() for install in installs] == [
        ["--require-hashes", "-r", f"requirements/{requirements}.txt"],
        ["--no-deps", "--no-index", "/wheel/*.whl"],
    ]
    pins = (ROOT / "requirements" / f"{requirements}.txt").read_text(encoding="utf-8")
    assert re.search(r"^hatchling==", pins, re.MULTILINE) or requirements == "base"


@pytest.mark.parametrize(("stage", "component"), [("server", "store"), ("agent", "agent")])
def test_images_run_moescope_as_nobody_special(stage: str, component: str) -> None:
    """A process in the image is no root, says how it is, and starts what the name promises."""
    (user,) = of_stage("runtime", "USER")
    assert user.values == ("10001:10001",)
    assert not of_stage(stage, "USER")
    (entry,) = of_stage("runtime", "ENTRYPOINT")
    assert entry.values == ("moescope",)
    (command,) = of_stage(stage, "CMD")
    assert parse_command(command.values) == f"moescope run {component}"
    (health,) = of_stage(stage, "HEALTHCHECK")
    kind, program, *words = health.values
    assert (kind, program) == ("CMD", "moescope")
    assert parse_command(words) == "moescope doctor"
    assert words[-2:] == ["--component", component]


def test_variables_and_labels_of_the_image() -> None:
    """Folders that the user owns are those that variables name; the version is the project's."""
    pairs = of_stage("runtime", "ENV")[0].values
    variables = dict(zip(pairs[::2], pairs[1::2], strict=True))
    owned = next(line.values[0] for line in of_stage("runtime", "RUN")).split("install -d ")[1]
    assert settings_of(variables)["data.directory"] in owned.split()
    assert variables["NUMBA_CACHE_DIR"] in owned.split()
    version = next(line.values[0] for line in lines() if line.values[0].startswith("VERSION="))
    assert version == f"VERSION={PROJECT['project']['version']}"
    labels = of_stage("runtime", "LABEL")[0].values[::2]
    assert {f"org.opencontainers.image.{name}" for name in ("title", "licenses", "version")} <= set(
        labels
    )
